#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"

namespace cairn::bench {
namespace {

/// Multiplies matrices on all cores until it is destroyed, counting.
class MatmulLoop {
 public:
  explicit MatmulLoop(int threads) {
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    for (int i = 0; i < threads; ++i) {
      workers_.emplace_back([this](const std::stop_token& stop) { Work(stop); });
    }
  }
  std::uint64_t rows() const { return rows_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kSize = 256;

  void Work(const std::stop_token& stop) {
    std::vector<float> a(kSize * kSize, 1.5F);
    std::vector<float> b(kSize * kSize, 0.5F);
    std::vector<float> c(kSize * kSize);
    while (!stop.stop_requested()) {
      for (int i = 0; i < kSize; ++i) {
        float* out = &c[static_cast<std::size_t>(i) * kSize];
        for (int j = 0; j < kSize; ++j) out[j] = 0;
        for (int k = 0; k < kSize; ++k) {
          const float x = a[static_cast<std::size_t>(i) * kSize + static_cast<std::size_t>(k)];
          const float* row = &b[static_cast<std::size_t>(k) * kSize];
          for (int j = 0; j < kSize; ++j) out[j] += x * row[j];
        }
        rows_.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  std::atomic<std::uint64_t> rows_{0};
  std::vector<std::jthread> workers_;
};

}  // namespace

Status RunMatmul(const Options& options) {
  State state(UniformShapes(options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "matmul"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  manager_options.retention.keep_last = 1;
  manager_options.copy_threads = options.threads;
  manager_options.pool_bytes = 0;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  std::int64_t step = 0;
  const auto save = [&]() -> Result<SaveHandle> {
    state.ChangeAll();
    SaveRequest request;
    request.step = ++step;
    request.tensors = state.Views();
    return manager->Save(std::move(request));
  };
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(const SaveHandle handle, save());
    RETURN_IF_ERROR(handle.Wait().status());
  }
  const std::string path = directory + "/raw";
  const std::vector<Contender> contenders = {
      {"raw direct", state.bytes(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status wrote = WriteDirect(path, state.Contiguous(), /*overwrite=*/false);
         watch->Stop();
         unlink(path.c_str());
         return wrote;
       }},
      {"raw buffered", state.bytes(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status wrote = WriteBuffered(path, state.Contiguous(), /*overwrite=*/false);
         watch->Stop();
         unlink(path.c_str());
         return wrote;
       }},
      {"cairn", state.bytes(),
       [&](Stopwatch* watch) -> Status {
         MatmulLoop loop(options.threads);
         std::this_thread::sleep_for(std::chrono::milliseconds(100));
         std::uint64_t rows = loop.rows();
         double began = Now();
         std::this_thread::sleep_for(std::chrono::milliseconds(1000));
         const double before = static_cast<double>(loop.rows() - rows) / (Now() - began);
         ASSIGN_OR_RETURN(const SaveHandle handle, save());
         watch->Start();
         rows = loop.rows();
         began = Now();
         const Status durable = handle.Wait().status();
         watch->Stop();
         const double during = static_cast<double>(loop.rows() - rows) / (Now() - began);
         watch->Note("before", before);
         watch->Note("during", during);
         RETURN_IF_ERROR(durable);
         return manager->WaitAll();
       }},
  };
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "matmul", prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

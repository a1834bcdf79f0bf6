#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"

namespace cairn::bench {
namespace {

/// XXH3 of the bytes, each thread its share.
std::uint64_t HashOnThreads(std::span<const std::byte> bytes, int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  const std::size_t share = bytes.size() / static_cast<std::size_t>(threads);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      workers.emplace_back([&, i] { sums[i] = XXH3_64bits(bytes.data() + i * share, share); });
    }
  }
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all ^= sum;
  return all;
}

}  // namespace

Status RunUnchanged(const Options& options) {
  State state(UniformShapes(options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "unchanged"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  manager_options.retention.keep_last = 1;
  manager_options.copy_threads = options.threads;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  const std::uint64_t room = state.bytes() + (2u << 20);
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return ResourceExhaustedError("no memory for the copy");
  madvise(mapped, room, MADV_HUGEPAGE);
  std::memset(mapped, 1, room);
  auto* copy = static_cast<std::byte*>(mapped);

  // 3 of 64 tensors change from save to save: 95.3 % of the bytes do not.
  constexpr std::size_t kChanged = 3;
  const std::uint64_t changed_bytes = kChanged * state.memory(0).size();
  std::int64_t step = 0;
  const auto save = [&](bool blocking, Stopwatch* watch) -> Status {
    state.Change(20, kChanged);
    SaveRequest request;
    request.step = ++step;
    request.tensors = state.Views();
    request.blocking = blocking;
    watch->Start();
    auto handle = manager->Save(std::move(request));
    const Status durable = handle.ok() ? handle->Wait().status() : handle.status();
    watch->Stop();
    RETURN_IF_ERROR(durable);
    watch->Note("shared", static_cast<double>(handle->BytesShared()));
    watch->Note("written", static_cast<double>(handle->BytesWritten()));
    return manager->WaitAll();
  };
  for (int i = 0; i < 5; ++i) {
    Stopwatch unused;
    RETURN_IF_ERROR(save(/*blocking=*/i != 0, &unused));  // the arena too is warm
  }
  volatile std::uint64_t sink = 0;
  const auto baseline = [&](int hash_threads, Stopwatch* watch) {
    const std::string path = directory + "/raw";
    unlink(path.c_str());
    Settle();
    watch->Start();
    CopyOnThreads(state.Contiguous(), copy, options.threads);
    sink = HashOnThreads({copy, state.bytes()}, hash_threads);
    const Status wrote = WriteDirect(path, {copy, changed_bytes}, /*overwrite=*/false);
    watch->Stop();
    return wrote;
  };
  const std::vector<Contender> contenders = {
      {"baseline", state.bytes(), [&](Stopwatch* watch) { return baseline(1, watch); }},
      {"baseline, hashed on all cores", state.bytes(),
       [&](Stopwatch* watch) { return baseline(options.threads, watch); }},
      {"cairn", state.bytes(), [&](Stopwatch* watch) { return save(/*blocking=*/true, watch); }},
      {"cairn in the background", state.bytes(),
       [&](Stopwatch* watch) { return save(/*blocking=*/false, watch); }},
  };
  const auto prepare = [] {
    Settle();
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "unchanged", prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  munmap(mapped, room);
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

#include <sys/mman.h>

#include <chrono>
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

/// The caller's next computation: long enough for the copy behind it.
void ComputeFor(double seconds) {
  const double end = Now() + seconds;
  volatile double x = 1;
  while (Now() < end) {
    for (int i = 0; i < 1000; ++i) x = x * 1.0000001;
  }
}

}  // namespace

Status RunBlocked(const Options& options) {
  State state(UniformShapes(options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "blocked"));
  ManagerOptions manager_options;
  manager_options.directory = directory;
  manager_options.retention.keep_last = 1;
  manager_options.copy_threads = options.threads;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  // The same source addresses for both: the state as it lies in memory.
  const std::span<const std::byte> from(state.memory(0).data(), state.bytes());
  const std::uint64_t room = state.bytes() + (2u << 20);
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return ResourceExhaustedError("no memory for the copy");
  madvise(mapped, room, MADV_HUGEPAGE);
  std::memset(mapped, 1, room);
  auto* to = static_cast<std::byte*>(mapped);

  std::int64_t step = 0;
  const auto save = [&](bool lazy, Stopwatch* watch) -> Status {
    state.ChangeAll();
    SaveRequest request;
    request.step = ++step;
    request.tensors = state.Views();
    request.lazy = lazy;
    watch->Start();
    auto handle = manager->Save(std::move(request));
    watch->Stop();
    RETURN_IF_ERROR(handle.status());
    if (lazy) {
      ComputeFor(1);
      const double guarded = Now();
      RETURN_IF_ERROR(handle->Guard());
      watch->Note("guard", Now() - guarded);
      watch->SetSeconds(watch->seconds() + Now() - guarded);
    }
    RETURN_IF_ERROR(handle->Wait().status());
    return manager->WaitAll();
  };
  for (int i = 0; i < 2; ++i) {
    Stopwatch unused;
    RETURN_IF_ERROR(save(/*lazy=*/false, &unused));
  }
  const std::vector<Contender> contenders = {
      {"memcpy", state.bytes(),
       [&](Stopwatch* watch) {
         watch->Start();
         CopyOnThreads(from, to, options.threads);
         watch->Stop();
         return Status::Ok();
       }},
      {"cairn", state.bytes(), [&](Stopwatch* watch) { return save(/*lazy=*/false, watch); }},
      {"cairn lazy", state.bytes(), [&](Stopwatch* watch) { return save(/*lazy=*/true, watch); }},
  };
  const auto prepare = [] {
    Settle();
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "blocked", prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  munmap(mapped, room);
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

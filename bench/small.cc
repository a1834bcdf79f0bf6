#include <unistd.h>

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"

namespace cairn::bench {

Status RunSmall(const Options& options) {
  const std::vector<State::Shape> shapes = SmallShapes(options.bytes / 4096, 4096);
  State state(shapes);
  State target(shapes);
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "small"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  manager_options.retention.keep_last = 1;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  std::int64_t step = 0;
  for (int i = 0; i < 3; ++i) {
    state.ChangeAll();
    RETURN_IF_ERROR(SaveDurably(manager.get(), state, ++step));
  }
  const std::string path = directory + "/raw";
  const std::span<const std::byte> whole = target.Contiguous();
  const std::span<std::byte> into(const_cast<std::byte*>(whole.data()), whole.size());

  const std::vector<Contender> saves = {
      {"raw buffered", whole.size(),
       [&](Stopwatch* watch) {
         unlink(path.c_str());
         Settle();
         watch->Start();
         const Status wrote = WriteBuffered(path, state.Contiguous(), /*overwrite=*/false);
         watch->Stop();
         return wrote;
       }},
      {"cairn", state.bytes(),
       [&](Stopwatch* watch) -> Status {
         state.ChangeAll();
         SaveRequest request;
         request.step = ++step;
         request.tensors = state.Views();
         request.blocking = true;
         Settle();
         watch->Start();
         const Status saved = manager->Save(std::move(request)).status();
         watch->Stop();
         RETURN_IF_ERROR(saved);
         return manager->WaitAll();
       }},
  };
  const auto prepare = [&] {
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "small/save", prepare, saves));

  const std::vector<Contender> restores = {
      {"raw buffered", whole.size(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status read = ReadBuffered(path, into);
         watch->Stop();
         return read;
       }},
      {"cairn", state.bytes(),
       [&](Stopwatch* watch) {
         RestoreRequest request;
         request.into = target.Targets();
         watch->Start();
         const Status restored = manager->Restore(std::move(request)).status();
         watch->Stop();
         return restored;
       }},
  };
  const auto prepare_cold = [&] {
    TouchAndFree(MemoryToTouch(options));
    Settle();
    return DropCaches();
  };
  RETURN_IF_ERROR(RunRounds(options, "small/restore", prepare_cold, restores));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

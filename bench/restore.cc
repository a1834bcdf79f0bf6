#include <cstring>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"

namespace cairn::bench {

Status RunRestore(const Options& options) {
  const std::vector<State::Shape> shapes = ShapesOf(options.variant, options.bytes);
  State state(shapes);
  State target(shapes);
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "restore"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  state.ChangeAll();
  RETURN_IF_ERROR(SaveDurably(manager.get(), state, 1));
  const std::string path = directory + "/raw";
  RETURN_IF_ERROR(WriteDirect(path, state.Contiguous(), /*overwrite=*/false));

  const std::span<const std::byte> whole = target.Contiguous();
  const std::span<std::byte> into(const_cast<std::byte*>(whole.data()), whole.size());
  const std::vector<Contender> contenders = {
      {"raw direct", into.size(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status read = ReadDirect(path, into);
         watch->Stop();
         return read;
       }},
      {"raw buffered", into.size(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status read = ReadBuffered(path, into);
         watch->Stop();
         return read;
       }},
      {"cairn", state.bytes(),
       [&](Stopwatch* watch) -> Status {
         RestoreRequest request;
         request.into = target.Targets();
         watch->Start();
         const auto restored = manager->Restore(std::move(request));
         watch->Stop();
         RETURN_IF_ERROR(restored.status());
         for (std::size_t i = 0; i < state.count(); ++i) {
           if (std::memcmp(state.memory(i).data(), target.memory(i).data(),
                           state.memory(i).size()) != 0) {
             return InternalError("the restored bytes differ");
           }
         }
         return Status::Ok();
       }},
  };
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return DropCaches();
  };
  RETURN_IF_ERROR(RunRounds(options, "restore/" + options.variant, prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

#include <utility>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"

namespace cairn::bench {

Status RunMemory(const Options& options) {
  State state(Gpt2Shapes(options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "memory"));
  RETURN_IF_ERROR(ResetPeakMemory());
  const std::uint64_t before = ResidentMemory();
  ManagerOptions manager_options;
  manager_options.directory = directory;
  manager_options.retention.keep_last = 1;
  manager_options.low_memory = options.variant == "low_memory";
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  for (std::int64_t step = 1; step <= 4; ++step) {
    state.ChangeAll();
    SaveRequest request;
    request.step = step;
    request.tensors = state.Views();
    request.blocking = options.variant == "blocking";
    ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(request)));
    RETURN_IF_ERROR(handle.Wait().status());
  }
  RETURN_IF_ERROR(manager->Close());
  const std::string what = "memory/" + options.variant;
  PrintFact(what, "state", static_cast<double>(state.bytes()));
  PrintFact(what, "above", static_cast<double>(PeakMemory() - before));
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

#include <cstring>
#include <utility>
#include <vector>

#include <cairn/io.h>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"

namespace cairn::bench {
namespace {

std::vector<VariableView> Views(std::vector<MutableTensor> tensors) {
  std::vector<VariableView> views;
  for (MutableTensor& tensor : tensors) {
    views.push_back({std::move(tensor.name), Role::kParameter, tensor.dtype,
                     std::move(tensor.shape), tensor.data});
  }
  return views;
}

Status Compare(const State& a, const State& b) {
  for (std::size_t i = 0; i < a.count(); ++i) {
    if (std::memcmp(a.memory(i).data(), b.memory(i).data(), a.memory(i).size()) != 0) {
      return InternalError("the loaded bytes differ");
    }
  }
  return Status::Ok();
}

}  // namespace

Status RunLoadVars(const Options& options) {
  const std::vector<State::Shape> shapes = UniformShapes(options.bytes);
  State state(shapes);
  State target(shapes);
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "load_vars"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  state.ChangeAll();
  RETURN_IF_ERROR(SaveDurably(manager.get(), state, 1));
  const std::string saved = directory + "/save";
  RETURN_IF_ERROR(SaveVars(saved, Views(state.Targets()), {.filename = "all"}).status());

  const auto restore = [&](bool atomic) {
    return [&, atomic](Stopwatch* watch) -> Status {
      RestoreRequest request;
      request.into = target.Targets();
      request.atomic = atomic;
      watch->Start();
      const auto restored = manager->Restore(std::move(request));
      watch->Stop();
      RETURN_IF_ERROR(restored.status());
      return Compare(state, target);
    };
  };
  const std::vector<Contender> contenders = {
      {"restore", state.bytes(), restore(/*atomic=*/false)},
      {"restore atomic", state.bytes(), restore(/*atomic=*/true)},
      {"load_params", state.bytes(),
       [&](Stopwatch* watch) -> Status {
         const std::vector<VariableView> views = Views(target.Targets());
         watch->Start();
         const auto loaded = LoadVars(saved, views, {.stored = StoredVars::kParameters});
         watch->Stop();
         RETURN_IF_ERROR(loaded.status());
         return Compare(state, target);
       }},
  };
  const bool cold = options.variant == "cold";
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return cold ? DropCaches() : Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "load_vars/" + options.variant, prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench

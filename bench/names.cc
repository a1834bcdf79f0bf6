#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kBytesEach = 64;

std::string NameOf(std::uint64_t i) {
  return "model.layers." + std::to_string(i / 100) + ".expert." + std::to_string(i % 100) + ".bias";
}

Status Make(const Options& options, std::uint64_t count) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "names"));
  std::vector<float> values(kBytesEach / 4 * count);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  ManagerOptions manager_options;
  manager_options.directory = directory;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  SaveRequest request;
  request.step = 1;
  request.blocking = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    Tensor tensor;
    tensor.name = NameOf(i);
    tensor.shape = {kBytesEach / 4};
    tensor.data = values.data() + i * (kBytesEach / 4);
    request.tensors.push_back(std::move(tensor));
  }
  const double began = Now();
  RETURN_IF_ERROR(manager->Save(std::move(request)).status());
  PrintFact("names", "save_seconds", Now() - began);
  return manager->Close();
}

Status Open(const Options& options, std::uint64_t count) {
  const std::string directory = options.directory + "/names";
  RETURN_IF_ERROR(DropCaches());
  const double began = Now();
  ManagerOptions manager_options;
  manager_options.directory = directory;
  manager_options.read_only = true;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  ASSIGN_OR_RETURN(const auto list, manager->List());
  const double listed = Now();
  if (list.size() != 1) return InternalError("one checkpoint expected");
  const std::uint64_t wanted = count * 7 / 10;
  std::vector<float> value(kBytesEach / 4, -1);
  MutableTensor target;
  target.name = NameOf(wanted);
  target.shape = {kBytesEach / 4};
  target.data = value.data();
  RestoreRequest request;
  request.into = {target};
  request.strict = false;
  RETURN_IF_ERROR(manager->Restore(std::move(request)).status());
  const double ended = Now();
  if (value[0] != static_cast<float>(wanted * (kBytesEach / 4))) {
    return InternalError("the restored tensor is not the one asked for");
  }
  PrintFact("names", "list_seconds", listed - began);
  PrintFact("names", "seconds", ended - began);
  PrintFact("names", "peak_memory", static_cast<double>(PeakMemory()));
  return manager->Close();
}

}  // namespace

Status RunNames(const Options& options) {
  const std::uint64_t count = options.bytes / kBytesEach;
  return options.variant == "make" ? Make(options, count) : Open(options, count);
}

}  // namespace cairn::bench

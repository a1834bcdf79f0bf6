#include "launch/slurm_batch.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "base/ids.h"
#include "launch/slurm_client.h"

namespace cairn {
namespace {

constexpr std::size_t kLongestWords = 500;

}  // namespace

std::vector<std::string> FlagsOfLaunch(const LaunchSpec& spec, std::chrono::seconds warning) {
  std::vector<std::string> flags = *SlurmFlags(spec.resources);
  const int nodes = *SlurmNodes(spec.resources);
  flags.push_back(fmt::format("--nodes={}", nodes));
  flags.push_back(fmt::format("--ntasks={}", spec.processes));
  if (nodes > 1) flags.push_back(fmt::format("--ntasks-per-node={}", spec.processes / nodes));
  flags.push_back(
      fmt::format("--signal=B:USR1@{}", SlurmWarning(spec.resources, warning)->count()));
  return flags;
}

SlurmBatch NewBatch(const std::vector<LaunchSpec>& specs, const std::vector<std::string>& flags,
                    const std::string& outputs) {
  SlurmBatch batch;
  batch.array = specs.size() > 1;
  batch.name = fmt::format("{}.{}", batch.array ? "cairn-array" : specs[0].id,
                           IdSource::System()->NewUuid().substr(0, 13));
  batch.flags = flags;
  batch.flags.push_back("--job-name=" + batch.name);
  const std::string output = outputs + "/" + batch.name;
  batch.flags.push_back(batch.array ? fmt::format("--output={}.%a", output) : "--output=" + output);
  return batch;
}

std::string JobOutput(const std::string& outputs, const std::string& job, int index) {
  return fmt::format("{}/{}{}", outputs, job, index < 0 ? "" : fmt::format(".{}", index));
}

std::string LastWords(const std::string& path) {
  std::ifstream output(path);
  std::string said((std::istreambuf_iterator<char>(output)), {});
  if (said.size() > kLongestWords) said.erase(0, said.size() - kLongestWords);
  return said;
}

}  // namespace cairn

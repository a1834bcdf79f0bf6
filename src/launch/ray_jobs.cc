#include "launch/ray_jobs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/status_macros.h"
#include "launch/process_identity.h"

namespace cairn {
namespace {

constexpr char kLaunches[] = "cairn_launches";
constexpr char kLaunch[] = "cairn_launch";
constexpr char kJob[] = "cairn_job";
constexpr char kAttempt[] = "cairn_attempt";
constexpr char kResources[] = "cairn_resources.";  // + the name of one

}  // namespace

std::map<std::string, std::string> RayMetadata(const RayJobOrigin& origin) {
  std::string custom;
  for (const auto& [name, amount] : origin.resources.custom) {
    custom += fmt::format("{}{}={}", custom.empty() ? "" : ",", name, amount);
  }
  const std::string resources(kResources);
  return {{"name", origin.launch},
          {kLaunches, origin.launches},
          {kLaunch, origin.launch},
          {kJob, origin.job},
          {kAttempt, std::to_string(origin.attempt)},
          {resources + "nodes", std::to_string(origin.resources.nodes)},
          {resources + "num_cpus", fmt::format("{}", origin.resources.num_cpus)},
          {resources + "num_gpus", fmt::format("{}", origin.resources.num_gpus)},
          {resources + "memory", std::to_string(origin.resources.memory)},
          {resources + "custom", custom}};
}

std::optional<RayJobOrigin> OriginOf(const RayJob& job) {
  const auto text = [&](const char* name) {
    const auto found = job.metadata.find(name);
    return found == job.metadata.end() ? std::string() : found->second;
  };
  RayJobOrigin origin;
  origin.launches = text(kLaunches);
  origin.launch = text(kLaunch);
  origin.job = text(kJob);
  const std::string attempt = text(kAttempt);
  const char* end = attempt.data() + attempt.size();
  const auto [stopped, error] = std::from_chars(attempt.data(), end, origin.attempt);
  if (origin.job.empty() || error != std::errc() || stopped != end || origin.attempt < 1) {
    return std::nullopt;
  }
  std::map<std::string, std::string> resources;
  for (const auto& [name, value] : job.metadata) {
    if (name.starts_with(kResources)) resources[name.substr(sizeof(kResources) - 1)] = value;
  }
  const auto nodes = resources.find("nodes");  // missing in those of earlier versions
  const int each = nodes == resources.end() ? 1 : std::max(1, std::atoi(nodes->second.c_str()));
  auto read = ReadRayResources(resources, each);
  if (!read.ok()) return std::nullopt;
  origin.resources = *std::move(read);
  return origin;
}

std::string RayJobId(const std::string& job, int attempt) {
  return attempt == 1 ? job : fmt::format("{}-{}", job, attempt);
}

Status ClaimLaunch(const LaunchDirectory& directory) {
  ASSIGN_OR_RETURN(const KeeperRecord self, IdentityOf(getpid()));
  return directory.Publish(self);
}

}  // namespace cairn

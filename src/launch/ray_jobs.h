#pragma once

#include <map>
#include <optional>
#include <string>

#include <cairn/status.h>

#include "launch/launch_directory.h"
#include "launch/ray_client.h"

namespace cairn {

/// What a launcher says about a job in its metadata, so that it, or the next one, knows it again.
struct RayJobOrigin {
  std::string launches;  // the launcher's directory
  std::string launch;    // the launch's id
  std::string job;       // the name that its record has
  int attempt = 1;       // of handing it over
  RayResources resources;
};

std::map<std::string, std::string> RayMetadata(const RayJobOrigin& origin);
/// nullopt: no launcher has submitted it.
std::optional<RayJobOrigin> OriginOf(const RayJob& job);

/// The id of the `attempt`-th job (from 1) of a launch.
std::string RayJobId(const std::string& job, int attempt);

/// Makes this process the keeper of a launch, so that no shim will start it. AlreadyExists: one
/// has.
Status ClaimLaunch(const LaunchDirectory& directory);

}  // namespace cairn

#pragma once

#include <string>
#include <vector>

#include "launch/ray_client.h"

namespace cairn {

/// ray_nodes.py, which stands between the shim that keeps a launch and those of its nodes.
extern const char kRayNodesProgram[];

/// LaunchRecord::starter of a launch over several nodes of Ray: the program above, run by the
/// interpreter, and with the Ray, of the process that runs the job.
std::vector<std::string> RayNodeStarter(const RayResources& resources);

}  // namespace cairn

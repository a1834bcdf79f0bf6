#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <cairn/status.h>

#include "launch/launcher.h"
#include "launch/process_identity.h"

namespace cairn {

/// The program that keeps launches: `asked`, or CAIRN_SHIM, or cairn-shim beside this program,
/// beside this library, or on the PATH. NotFound says where it was looked for.
Result<std::string> FindShim(const std::string& asked);

/// What the processes of a launch start with, "A=b" each: its own variables over those of this
/// process, and the key.
std::vector<std::string> LaunchEnvironment(const std::string& key, const LaunchSpec& spec);

/// A shim that was just started.
struct SpawnedShim {
  pid_t pid = 0;   // a child of this process: to be reaped
  OwnedFd socket;  // our end; see KeeperOptions::owner
};

/// Starts the shim on a launch's directory, in a session of its own, with the environment of the
/// launch. It has no other descriptor of this process.
Result<SpawnedShim> SpawnShim(const std::string& shim, const std::string& directory,
                              const std::string& key, const LaunchSpec& spec);

}  // namespace cairn

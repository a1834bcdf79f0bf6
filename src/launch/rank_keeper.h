#pragma once

#include <string>

#include "launch/keeper.h"
#include "launch/launch_records.h"
#include "launch/process_identity.h"

namespace cairn {

/// What a shim hears and says by.
struct KeeperChannels {
  OwnedFd signals;   // a signalfd
  OwnedFd control;   // commands; invalid: they come through a file
  OwnedFd log;       // what the ranks say; of a linked one, its output
  std::string srun;  // Slurm's program: of a launch over several nodes, on the first
};

/// Starts the ranks of this node, and those who start the shims of the others; follows them to
/// their ends, and leaves nothing of them. Steps 3 to 5 of keeper.cc, without the records but for
/// running.json. For a process with one thread that reaps orphans.
LaunchExit KeepRanks(const KeeperOptions& options, LaunchRecord launch, KeeperChannels channels);

}  // namespace cairn

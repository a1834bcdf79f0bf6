#pragma once

#include <map>
#include <set>
#include <string>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "tests/crash/job.h"
#include "tests/crash/machine.h"
#include "tests/crash/oracle.h"

namespace cairn::crash {

/// Objects of a user beside the engine's: names and bytes.
const std::map<std::string, std::string>& ForeignObjects();

struct RecoveryOptions {
  bool foreign = false;     // foreign objects were planted
  bool no_garbage = false;  // nothing of an unfinished save may be left
  bool save_again = true;   // a new save works, and survives a power loss
  int world_size = 1;       // of the job that saved: each rank's view is restored
};

/// Starts the job again on the machine and checks everything that was promised: "" or what is
/// broken. The new opening sees what the promise requires, bit-equal, nothing damaged and nothing
/// that was never saved; its latest is the newest acknowledged one or a newer one.
std::string CheckRecovery(Machine* machine, const Job& job, const Promise& promise,
                          const RecoveryOptions& options);

/// The serials of what counts in the repository.
Result<std::set<int>> ListSerials(CheckpointManager* manager);

}  // namespace cairn::crash

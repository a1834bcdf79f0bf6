#pragma once

#include <string>
#include <vector>

#include <cairn/status.h>

#include "cli/console.h"
#include "cli/master_client.h"

namespace cairn::cli {

// What can be done to checkpoints that a master knows, by their ids or within an experiment or
// trial.

struct RemoveCheckpointsOptions {
  MasterOptions master;
  std::string id;                  // the experiment or trial
  std::vector<std::string> globs;  // over ids and names of directories
  bool dry_run = false;
  bool yes = false;
};
/// What is pinned, latest or built upon stays, and is named.
Result<Output> RemoveMasterCheckpoints(const RemoveCheckpointsOptions& options, bool trial,
                                       Console* console);

struct MasterCheckpointsOptions {
  MasterOptions master;
  std::vector<std::string> ids;
};
Result<Output> PinMasterCheckpoints(const MasterCheckpointsOptions& options, bool pinned,
                                    Console* console);
/// Waits for the master to compare them with their checksums; exit code 1 when one is damaged.
Result<Output> VerifyMasterCheckpoints(const MasterCheckpointsOptions& options, Console* console);

}  // namespace cairn::cli

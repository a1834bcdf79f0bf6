#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/repository.h"
#include "storage/store.h"

namespace cairn {

/// A restore point whose files are all open: a checkpoint with what it builds on. For one thread.
class OpenRestorePoint {
 public:
  /// NotFound or Corruption, naming the file, as OpenCheckpoint::Open.
  static Result<OpenRestorePoint> Open(Store* store, const Chain& chain);

  OpenCheckpoint* tip() const { return open_.back().get(); }
  /// A full checkpoint, then the increments.
  std::vector<OpenCheckpoint*> chain() const;

 private:
  std::vector<std::unique_ptr<OpenCheckpoint>> open_;
};

/// Restores the last checkpoint of the chain, with the rows that those before it hold.
Result<Restored> RestorePoint(Store* store, const Chain& chain, const RestoreRequest& request,
                              const std::string& participant);

/// What a failed restore of a checkpoint that somebody asked for means: a file that is not there is
/// damage as long as the manifest that names it is; without it the checkpoint was removed, and
/// NotFound says so.
Status JudgeRestoreFailure(RepositoryReader* reader, const Checkpoint& checkpoint,
                           const Status& failure);

/// The checkpoints that lie beside a checkpoint's directory: of a repository as its readers see
/// them, otherwise all that have a manifest.
Result<std::vector<Checkpoint>> ReadSiblings(Store* store);

/// Restores the checkpoint in a directory of the store. `job`: whose checkpoints are not foreign.
Result<Restored> RestoreDirectory(Store* store, const std::string& directory,
                                  const RestoreRequest& request, const std::string& participant,
                                  const std::string& job);

}  // namespace cairn

#pragma once

#include <optional>
#include <string>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/chain.h"
#include "checkpoint/committer.h"
#include "checkpoint/environment.h"
#include "checkpoint/generation.h"
#include "checkpoint/repository.h"

namespace cairn {

/// What a manager restores: chooses the checkpoint, reads it, and goes back to an older one when it
/// is damaged and nobody asked for this one. For one thread, while no save is under way.
class Restorer {
 public:
  struct With {
    const Environment* env;
    RepositoryReader* reader;
    Generation* generation;  // null: a manager that only reads
    Committer* committer;    // likewise; learns from which checkpoint it goes on
    std::string participant;
    std::string job;
    bool together = false;  // with all participants: the same one
  };
  explicit Restorer(With with) : with_(std::move(with)) {}

  /// `saved`: something was committed since the repository was opened. Nullopt: there is nothing.
  Result<std::optional<Restored>> Restore(const RestoreRequest& request, bool saved);

 private:
  Result<std::optional<Restored>> RestoreByPath(const RestoreRequest& request);
  /// `removed`: a checkpoint of the view was removed while we read it; look again.
  Result<std::optional<Restored>> RestoreLatest(const RepositoryView& view,
                                                const RestoreRequest& request, bool* removed);
  /// Several participants restore the same: what the start record names or, once they saved
  /// together, the latest. Null: nothing was ever committed. Corruption: none is whole.
  Result<const Checkpoint*> ChosenTogether(const RepositoryView& view, bool saved);
  /// Tells the next opening that it should look closely, and the caller what to do.
  Status ReportDamage(const Checkpoint& checkpoint, const Status& damage);
  /// With what it builds on.
  Result<Restored> RestoreOne(const ChainIndex& index, const Checkpoint& checkpoint,
                              const RestoreRequest& request);

  const With with_;
};

}  // namespace cairn

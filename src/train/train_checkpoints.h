#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/table_checkpoint.h>
#include <cairn/trainer.h>

#include "checkpoint/environment.h"
#include "train/trainer_state.h"

namespace cairn {

/// FailedPrecondition when the newest checkpoint is one of several trainers' private parts: each
/// knows only its own, and cannot go on from it.
Status RefuseUnmergedParts(const Environment& env);

/// The checkpoints of a Trainer: opens the repository as TrainerOptions say, brings the variables
/// back, saves them in the background. For one thread. A failed save leaves the checkpoints before
/// it as they were.
class TrainCheckpoints {
 public:
  static Result<std::unique_ptr<TrainCheckpoints>> Open(const TrainerOptions& options,
                                                        const Environment& env);

  struct Resumed {
    TrainerState state;
    CheckpointInfo info;
    std::vector<std::pair<std::string, std::string>> skipped;  // (variable, reason)
  };
  /// Fills the variables and tables from the newest checkpoint; nullopt when there is none.
  Result<std::optional<Resumed>> Restore();

  /// Fills the tables and tracked arrays anew from a checkpoint that was restored or saved here.
  Status RestoreRows(const std::string& id);

  /// Returns when the variables are copied; `*stall_seconds` is how long that took. Reports the
  /// failure of the save before.
  Status Save(const TrainerState& state, const Value& metrics, double* stall_seconds);
  /// The failure of the save in flight, as soon as it is known. Does not wait.
  Status Check();
  /// Waits until the save in flight is durable.
  Status Wait();
  /// The newest checkpoint that this object saved, after Wait.
  const std::optional<CheckpointInfo>& saved() const { return saved_; }

  Status Close();
  std::uint64_t generation() const { return manager_->generation(); }

 private:
  TrainCheckpoints(const TrainerOptions& options, const Environment& env)
      : options_(options), env_(env) {}

  const TrainerOptions options_;
  const Environment env_;
  std::vector<Tensor> own_tensors_;  // what this trainer saves
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> tables_;  // after the manager, which it uses to its end
  std::optional<SaveHandle> in_flight_;
  std::optional<CheckpointInfo> saved_;
};

}  // namespace cairn

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/core.h>
#include <cairn/status.h>

namespace cairn::core {

/// The checkpoints of a trial: one repository, written by the chief alone or by all ranks together.
///
/// A checkpoint of the chief alone must not wait for ranks that do not know of it, and one of all
/// ranks must wait for every one of them. A repository has one writer, so the chief's manager is
/// opened anew, with one participant or with all, when the kind of save changes. One call at a
/// time.
class CoreRepository {
 public:
  /// `options`: all but rank, world_size and join_deadline. `ranks`: borrowed.
  CoreRepository(ManagerOptions options, DistributedContext* ranks)
      : options_(std::move(options)), ranks_(ranks) {}

  const std::string& directory() const { return options_.directory; }

  /// The chief's manager for saves of its own, and for retention.
  Result<CheckpointManager*> Alone();
  /// This rank's manager for a save of all ranks, which all of them are about to make.
  Result<CheckpointManager*> Together();
  /// The chief's manager, however it is open: for what it may do without the others.
  Result<CheckpointManager*> Owner();

  /// Waits until the save is durable. When the chief has opened the repository anew before this
  /// rank looked, this rank is told that it was overtaken: then it asks whether the checkpoint
  /// counts.
  Result<CheckpointInfo> Wait(const std::string& id, const SaveHandle& handle) const;

  /// All checkpoints, oldest first; none when nothing was ever written.
  Result<std::vector<CheckpointInfo>> List() const;
  /// The same of a repository that is not ours.
  static Result<std::vector<CheckpointInfo>> ListOf(const std::string& directory);

  Status Close();

 private:
  Status Open(bool together);

  const ManagerOptions options_;
  DistributedContext* const ranks_;
  std::unique_ptr<CheckpointManager> manager_;
  bool together_ = false;
};

/// The checkpoint with that id, or nullopt.
std::optional<CheckpointInfo> FindById(const std::vector<CheckpointInfo>& infos,
                                       const std::string& id);

}  // namespace cairn::core

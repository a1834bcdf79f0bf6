#include "checkpoint/damage.h"

#include <vector>

#include "base/status_macros.h"
#include "checkpoint/choose_restore.h"
#include "checkpoint/manager.h"
#include "checkpoint/removal.h"
#include "checkpoint/repository.h"

namespace cairn {

Status NoteDamaged(const std::string& repository, const std::string& id,
                   const std::string& reason) {
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(repository, {.create = false}));
  ASSIGN_OR_RETURN(const RepositoryView view, RepositoryReader(env.store.get()).Read());
  const Checkpoint* checkpoint = view.Find(id);
  if (checkpoint == nullptr) {
    return NotFoundError("\"" + repository + "\" has no checkpoint with id " + id);
  }
  if (checkpoint->reported_damaged) return Status::Ok();
  return AppendNote(env, checkpoint->directory, id,
                    {.kind = NoteKind::kDamaged, .values = Value::Object{{"reason", reason}}})
      .status();
}

Result<std::optional<CheckpointInfo>> NewestWhole(const std::string& repository) {
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(repository, {.create = false}));
  ASSIGN_OR_RETURN(RepositoryView view, RepositoryReader(env.store.get()).Read());
  RETURN_IF_ERROR(view.CheckAllRead());  // a run is to go on from it
  std::erase_if(view.checkpoints, [](const Checkpoint& one) { return !one.counts; });
  ASSIGN_OR_RETURN(const Checkpoint* whole, ChooseRestore(env.store.get(), view.checkpoints));
  if (whole != nullptr) return std::optional(MakeInfo(*env.store, *whole));
  if (view.checkpoints.empty() && view.damaged.empty()) return std::optional<CheckpointInfo>();
  return CorruptionError("\"" + repository +
                         "\" has checkpoints, but none is whole: `cairn checkpoint verify` tells "
                         "more");
}

}  // namespace cairn

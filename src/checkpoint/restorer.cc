#include "checkpoint/restorer.h"

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/removal.h"
#include "checkpoint/restore_point.h"

namespace cairn {
namespace {

// How often a restore starts over because what it read was removed under it. Each time a newer
// checkpoint was committed meanwhile.
constexpr int kMaxRestoreRounds = 16;

std::string StepsOf(const RepositoryView& view) {
  std::string steps;
  int shown = 0;
  for (auto it = view.checkpoints.rbegin(); it != view.checkpoints.rend() && shown < 10; ++it) {
    if (!it->counts) continue;
    steps += (steps.empty() ? "" : ", ") + std::to_string(it->manifest->step);
    ++shown;
  }
  return steps.empty() ? "none" : steps;
}

/// `job`: whose checkpoints are not foreign; "": all are.
Result<Restored> LoadAt(const RestoreRequest& request, const std::string& participant,
                        const std::string& job) {
  ASSIGN_OR_RETURN(const Place place, PlaceOfCheckpoint(request.path));
  const std::string where = place.where + (place.where.ends_with('/') ? "" : "/") + place.name;
  ASSIGN_OR_RETURN(const Environment other, EnvironmentAt(place.where, {.create = false}));
  const std::string& directory = place.name;
  const auto manifest = other.store->Stat(names::Path(directory, names::kManifest));
  if (manifest.status().Is(Code::kNotFound)) {
    return NotFoundError("\"" + where + "\" is not a checkpoint (it has no manifest.json)");
  }
  auto restored = RestoreDirectory(other.store.get(), directory, request, participant, job);
  if (!restored.ok()) return restored.status().WithContext("restore \"" + where + "\"");
  return restored;
}

}  // namespace

Result<Restored> Restorer::RestoreOne(const ChainIndex& index, const Checkpoint& checkpoint,
                                      const RestoreRequest& request) {
  auto chain = index.Resolve(checkpoint);
  if (!chain.ok()) return CorruptionError("it " + std::string(chain.status().message()));
  ASSIGN_OR_RETURN(Restored restored,
                   RestorePoint(with_.env->store.get(), *chain, request, with_.participant));
  if (with_.committer != nullptr) with_.committer->GoOnFrom(*checkpoint.manifest);
  return restored;
}

Result<std::optional<Restored>> Restorer::RestoreByPath(const RestoreRequest& request) {
  ASSIGN_OR_RETURN(Restored restored, LoadAt(request, with_.participant, with_.job));
  if (with_.committer != nullptr) with_.committer->LeaveBranch();
  return std::optional(std::move(restored));
}

Result<std::optional<Restored>> Restorer::RestoreLatest(const RepositoryView& view,
                                                        const RestoreRequest& request,
                                                        bool* removed) {
  const ChainIndex index(view.checkpoints);
  std::vector<std::string> fallbacks;
  std::vector<std::string> news;  // of these, what the opening has not warned of
  bool any = !view.damaged.empty();
  for (const DamagedCheckpoint& damaged : view.damaged) {
    fallbacks.push_back(damaged.directory + ": " + std::string(damaged.status.message()));
    const bool told =
        with_.generation != nullptr && with_.generation->damaged().contains(damaged.directory);
    if (!told) news.push_back(fallbacks.back());
  }
  for (auto it = view.checkpoints.rbegin(); it != view.checkpoints.rend(); ++it) {
    if (!it->counts) continue;
    any = true;
    auto restored = RestoreOne(index, *it, request);
    if (restored.ok()) {
      for (const std::string& one : news) LogWarning("passed over " + one);
      restored->fallbacks = std::move(fallbacks);
      return std::optional(*std::move(restored));
    }
    const Status& status = restored.status();
    if (!status.Is(Code::kCorruption) && !status.Is(Code::kNotFound)) {
      return status.WithContext("restore step " + std::to_string(it->manifest->step));
    }
    // A removal takes the manifest before the files: then there is a newer one, no damage.
    const auto still = with_.reader->ReadManifest(it->directory);
    *removed = *removed || still.status().Is(Code::kNotFound) ||
               (still.ok() && still->id != it->manifest->id);
    if (*removed) return status;
    if (with_.committer != nullptr) with_.committer->Distrust(it->manifest->id);
    fallbacks.push_back(it->directory + " (step " + std::to_string(it->manifest->step) +
                        "): " + std::string(status.message()));
    news.push_back(fallbacks.back());
  }
  if (!any) return std::optional<Restored>();
  std::string all;
  for (const std::string& fallback : fallbacks) all += "\n  " + fallback;
  return CorruptionError("\"" + with_.env->store->Describe() +
                         "\" has checkpoints, but none is whole:" + all);
}

Result<const Checkpoint*> Restorer::ChosenTogether(const RepositoryView& view, bool saved) {
  const std::string& id = with_.generation->restore_id();
  // Nobody commits the next save before all have taken part in it, so all see the same one.
  if (saved) return view.Latest();
  if (!id.empty()) {
    const Checkpoint* chosen = view.Find(id);
    if (chosen != nullptr && !chosen->removed) return chosen;
    return NotFoundError("\"" + with_.env->store->Describe() + "\" has no checkpoint with id " +
                         id + " any more, which all participants were to restore");
  }
  std::string passed_over;
  for (const DamagedCheckpoint& damaged : view.damaged) {
    passed_over += "\n  " + damaged.directory + ": " + std::string(damaged.status.message());
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts) continue;
    passed_over += "\n  " + checkpoint.directory + " (step " +
                   std::to_string(checkpoint.manifest->step) + "): missing or damaged files";
  }
  if (passed_over.empty()) return nullptr;
  return CorruptionError("\"" + with_.env->store->Describe() +
                         "\" has checkpoints, but none is whole (`cairn checkpoint verify` tells "
                         "more):" +
                         passed_over);
}

Status Restorer::ReportDamage(const Checkpoint& checkpoint, const Status& damage) {
  const Value::Object values = {{"participant", with_.participant},
                                {"reason", std::string(damage.message())}};
  const Status noted = AppendNote(*with_.env, checkpoint.directory, checkpoint.manifest->id,
                                  {.kind = NoteKind::kDamaged, .values = values})
                           .status();
  std::string message(damage.message());
  message += noted.ok() ? "; start all participants again: they will go back to an older one"
                        : "; this could not be noted (" + std::string(noted.message()) +
                              "): remove it with `cairn checkpoint rm`, then start again";
  return Status(damage.code(), std::move(message), damage.reason());
}

Result<std::optional<Restored>> Restorer::Restore(const RestoreRequest& request, bool saved) {
  if (!request.path.empty()) return RestoreByPath(request);
  ASSIGN_OR_RETURN(RepositoryView view, with_.reader->Read());
  // What an owner restores, it goes on from: not from an older one because of an error that passes.
  const bool latest = !request.step && request.id.empty();
  if (latest && with_.generation != nullptr) RETURN_IF_ERROR(view.CheckAllRead());
  if (with_.together && latest) {
    ASSIGN_OR_RETURN(const Checkpoint* chosen, ChosenTogether(view, saved));
    if (chosen == nullptr) return std::optional<Restored>();
    auto restored = RestoreOne(ChainIndex(view.checkpoints), *chosen, request);
    if (restored.ok()) return std::optional(*std::move(restored));
    const bool damaged =
        restored.status().Is(Code::kCorruption) || restored.status().Is(Code::kNotFound);
    return (damaged ? ReportDamage(*chosen, restored.status()) : restored.status())
        .WithContext("restore step " + std::to_string(chosen->manifest->step));
  }
  if (latest) {
    for (int round = 1;; ++round) {
      bool removed = false;
      auto restored = RestoreLatest(view, request, &removed);
      if (!removed || round == kMaxRestoreRounds) return restored;
      ASSIGN_OR_RETURN(view, with_.reader->Read());
      if (with_.generation != nullptr) RETURN_IF_ERROR(view.CheckAllRead());
    }
  }
  const Checkpoint* wanted = nullptr;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!request.id.empty()) {
      if (checkpoint.manifest->id == request.id && !checkpoint.removed) wanted = &checkpoint;
    } else if (checkpoint.counts && checkpoint.manifest->step == *request.step) {
      wanted = &checkpoint;  // the newest of that step
    }
  }
  if (wanted == nullptr) {
    RETURN_IF_ERROR(view.CheckAllRead());  // that may be the one
    const std::string what =
        request.id.empty() ? "of step " + std::to_string(*request.step) : "with id " + request.id;
    return NotFoundError("\"" + with_.env->store->Describe() + "\" has no checkpoint " + what +
                         " (steps there: " + StepsOf(view) + ")");
  }
  auto restored = RestoreOne(ChainIndex(view.checkpoints), *wanted, request);
  if (!restored.ok()) {
    return JudgeRestoreFailure(with_.reader, *wanted, restored.status())
        .WithContext("restore step " + std::to_string(wanted->manifest->step));
  }
  return std::optional(*std::move(restored));
}

Result<Restored> LoadCheckpoint(const RestoreRequest& request, const std::string& participant) {
  return LoadAt(request, participant, "");
}

}  // namespace cairn

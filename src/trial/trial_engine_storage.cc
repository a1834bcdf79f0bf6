// What the engine does with the repositories of its trials: which one a trial writes to, which
// checkpoints are there, and which go.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

bool HasCheckpoints(const TrialRecord& trial) {
  return std::ranges::any_of(trial.checkpoints, [](const CheckpointRecord& known) {
    return known.state == CheckpointState::kCompleted;
  });
}

}  // namespace

Result<std::string> TrialEngine::OwnerOf(const std::string& repository, const std::string& claim) {
  if (!claim.empty()) {
    auto claimed = options_.repositories->Claim(repository, claim);
    // A place that cannot be written is the run's to complain of: its user sees that.
    if (claimed.ok()) return claimed;
  }
  auto job = options_.repositories->Job(repository);
  if (job.status().Is(Code::kNotFound)) return std::string();
  return job;
}

Status TrialEngine::ChooseRepository(const std::string& trial) {
  if (!options_.shared_storage) return Status::Ok();
  TrialRecord at;  // with what is chosen
  bool claim = false;
  bool known = false;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    at = record->WithoutReports();
    known = HasCheckpoints(*record);
    // Only where runs write to what we see, and never on an empty mount point.
    claim = !known && !record->config.detached && record->config.launcher.empty();
  }
  const TrialRecord before = at;
  if (at.job.empty()) {
    // Recorded before trials had jobs: what is where it ran is its own.
    if (at.core.run > 0 || known) {
      ASSIGN_OR_RETURN(at.job, OwnerOf(Locate(RepositoryOf(at)), ""));
    }
    if (at.job.empty()) at.job = options_.ids->NewUuid();
  }
  const std::string numbers = fmt::format("{}/{}", at.config.experiment, at.id);
  const std::string first = at.directory;
  // The later ones follow from the job: killed before the choice is written down, it is the same
  // again.
  for (const std::string& directory :
       {first, fmt::format("{}-{}/{}", at.config.experiment, at.ShortJob(), at.id),
        fmt::format("{}-{}/{}", at.config.experiment, at.job, at.id)}) {
    at.directory = directory;
    const std::string repository = Locate(RepositoryOf(at));
    ASSIGN_OR_RETURN(const std::string owner, OwnerOf(repository, claim ? at.job : ""));
    if (owner.empty() || owner == at.job) {
      std::uint64_t run = 0;
      if (!owner.empty()) {
        ASSIGN_OR_RETURN(run, options_.repositories->NewestRun(repository));
      }
      MutexLock hold(&mu_);
      if (at.job == before.job && at.directory == before.directory && run <= before.core.run) {
        return Status::Ok();
      }
      if (at.directory != before.directory) {
        LogWarning(fmt::format("trial {}: {} is taken by another job; its checkpoints go to {}",
                               trial, first.empty() ? numbers : first, repository));
      }
      return Emit(trial, 0, EventKind::kRepositoryChosen,
                  Value::Object{{"job", at.job}, {"directory", at.directory}, {"run", run}});
    }
    if (known) {
      return FailedPreconditionError(fmt::format(
          "{} belongs to another job ({}), and the trial has checkpoints there of its own ({}): "
          "put its storage back where it was, or delete its checkpoints",
          repository, owner, at.job));
    }
  }
  return FailedPreconditionError(
      fmt::format("no free directory for the trial's checkpoints under {}: {} and others belong to "
                  "other jobs",
                  Locate(at.config.storage), numbers));
}

Status TrialEngine::LearnRuns(const std::string& trial) {
  if (!options_.shared_storage) return Status::Ok();
  TrialRecord at;
  {
    MutexLock hold(&mu_);
    at = Find(trial)->WithoutReports();
  }
  const std::string repository = Locate(RepositoryOf(at));
  ASSIGN_OR_RETURN(const std::uint64_t run, options_.repositories->NewestRun(repository));
  if (run <= at.core.run) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string owner, OwnerOf(repository, ""));
  if (!at.job.empty() && owner != at.job) return Status::Ok();  // whoever writes there is refused
  {
    MutexLock hold(&mu_);
    RETURN_IF_ERROR(Emit(trial, 0, EventKind::kRepositoryChosen,
                         Value::Object{{"job", owner}, {"directory", at.directory}, {"run", run}}));
  }
  // An engine that lost its log to another one learns that here, and touches nothing.
  return WaitDurable();
}

Status TrialEngine::RegisterFound(const std::string& trial) {
  std::string repository;
  std::string job;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    repository = Locate(RepositoryOf(*record));
    job = record->job;
  }
  if (!job.empty()) {
    ASSIGN_OR_RETURN(const std::string owner, OwnerOf(repository, ""));
    if (!owner.empty() && owner != job) {
      return FailedPreconditionError(fmt::format(
          "{} belongs to another job ({}), not to the trial's ({})", repository, owner, job));
    }
  }
  auto listed = options_.repositories->List(repository);
  const bool missing = listed.status().Is(Code::kNotFound);
  if (!missing) RETURN_IF_ERROR(listed.status());
  bool removed = false;
  if (missing && options_.storage_has_log) {
    ASSIGN_OR_RETURN(const std::uint64_t left, options_.repositories->NewestRun(repository));
    removed = left == 0;  // one that only lost its record has that
  }
  const std::vector<FoundCheckpoint> found =
      missing ? std::vector<FoundCheckpoint>() : *std::move(listed);
  MutexLock hold(&mu_);
  const TrialRecord* record = Find(trial);
  // A disk that is not mounted is no reason to begin afresh. Retention never takes the latest.
  if (missing && HasCheckpoints(*record) && removed) {
    LogWarning(
        fmt::format("trial {}: {} was removed, and its checkpoints with it", trial, repository));
  } else if (missing && HasCheckpoints(*record)) {
    return UnavailableError(repository +
                            " is gone, and the trial has checkpoints there: is it mounted? Put it "
                            "back, or delete the checkpoints");
  }
  std::set<std::string> there;
  for (const FoundCheckpoint& one : found) {
    there.insert(one.id);
    const CheckpointRecord* known = record->Find(one.id);
    if (!one.damage.empty()) {
      if (known == nullptr || known->state != CheckpointState::kCompleted) continue;
      LogWarning(fmt::format("trial {}: checkpoint {} is damaged and is passed over: {}", trial,
                             one.id, one.damage));
      RETURN_IF_ERROR(Emit(
          trial, record->core.run, EventKind::kCheckpointAbandoned,
          Value::Object{{"id", one.id}, {"reason", "damaged: " + one.damage}, {"damaged", true}}));
      continue;
    }
    if (known != nullptr && known->state == CheckpointState::kCompleted) continue;
    const Status registered =
        Emit(trial, record->core.run, EventKind::kCheckpointCompleted, CompletedBody(one));
    if (!registered.ok()) LogWarning(registered.ToString());
    if (one.pinned) {
      Emit(trial, 0, EventKind::kCheckpointPinned, Value::Object{{"id", one.id}, {"pinned", true}})
          .IgnoreError("it was registered just now, or the line before says why not");
    }
  }
  return RegisterGone(*record, there);
}

Status TrialEngine::RegisterGone(const TrialRecord& trial, const std::set<std::string>& there) {
  std::vector<std::string> gone;
  for (const CheckpointRecord& known : trial.checkpoints) {
    if (known.state == CheckpointState::kCompleted && !there.contains(known.id)) {
      gone.push_back(known.id);
    }
  }
  const std::string id = trial.id;
  for (const std::string& checkpoint : gone) {
    RETURN_IF_ERROR(
        Emit(id, trial.core.run, EventKind::kCheckpointDeleted,
             Value::Object{{"id", checkpoint}, {"reason", "not in the repository any more"}}));
  }
  return Status::Ok();
}

Status TrialEngine::Tidy(const std::string& trial) {
  RETURN_IF_ERROR(LearnRuns(trial));
  std::string repository;
  RepositoryAccess::Owner owner;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    repository = Locate(RepositoryOf(*record));
    owner = {.job = record->job, .run = record->core.run};
  }
  return options_.repositories->Tidy(repository, owner);
}

void TrialEngine::Retain(const std::string& trial) {
  std::string repository;
  std::vector<Removal> removals;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr || record->core.live) return;  // a living run does it
    repository = Locate(RepositoryOf(*record));
    removals = records_.Removals(trial, record->config.retention, options_.clock->WallNanos());
  }
  if (removals.empty()) return;
  const auto gone = Remove(trial, repository, removals);
  if (!gone.ok()) {
    LogWarning(fmt::format("retention of trial {}: {}", trial, gone.status().ToString()));
  }
}

Result<std::vector<std::string>> TrialEngine::Remove(const std::string& trial,
                                                     const std::string& repository,
                                                     const std::vector<Removal>& removals) {
  RETURN_IF_ERROR(LearnRuns(trial));
  RepositoryAccess::Owner owner;
  {
    MutexLock hold(&mu_);
    owner = {.job = Find(trial)->job, .run = Find(trial)->core.run};
  }
  std::vector<std::string> ids;
  for (const Removal& removal : removals) ids.push_back(removal.id);
  ASSIGN_OR_RETURN(std::vector<std::string> gone,
                   options_.repositories->Remove(repository, owner, ids));
  MutexLock hold(&mu_);
  for (const Removal& removal : removals) {
    if (std::ranges::find(gone, removal.id) == gone.end()) continue;
    Emit(trial, owner.run, EventKind::kCheckpointDeleted,
         Value::Object{{"id", removal.id}, {"reason", removal.reason}})
        .IgnoreError("the record may say so already");
  }
  return gone;
}

Result<TrialEngine::Removed> TrialEngine::RemoveNow(const std::string& trial,
                                                    const std::vector<std::string>& ids,
                                                    const std::string& reason) {
  std::string repository;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    for (const std::string& id : ids) {
      const std::vector<std::string> others = records_.BeginWith(id);
      if (!others.empty()) {
        return FailedPreconditionError(
            fmt::format("trial {} begins with checkpoint {}", others.front(), id));
      }
      const CheckpointRecord* known = record->Find(id);
      if (known != nullptr && known->pinned) {
        return FailedPreconditionError(fmt::format("checkpoint {} is pinned", id));
      }
    }
    // Written down before anything is gone: killed in between, the next life goes on.
    ASSIGN_OR_RETURN(Removed left, LeaveToRun(trial, ids, reason));
    if (record->core.live) return left;
    repository = Locate(RepositoryOf(*record));
  }
  std::vector<Removal> removals;
  for (const std::string& id : ids)
    removals.push_back({.trial = trial, .id = id, .reason = reason});
  const Status written = WaitDurable();
  Result<std::vector<std::string>> gone = std::vector<std::string>();
  if (written.ok()) gone = Remove(trial, repository, removals);
  KeepAfterAll(trial, ids, gone.ok() ? *gone : std::vector<std::string>());
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(gone.status());
  return Removed{.gone = *std::move(gone), .left_to_run = {}};
}

void TrialEngine::KeepAfterAll(const std::string& trial, const std::vector<std::string>& asked,
                               const std::vector<std::string>& gone) {
  MutexLock hold(&mu_);
  for (const std::string& id : asked) {
    if (std::ranges::find(gone, id) != gone.end()) continue;
    const CheckpointRecord* known = Find(trial)->Find(id);
    if (known == nullptr || known->state != CheckpointState::kCompleted) continue;
    if (known->unwanted.empty()) continue;  // whoever pinned it meanwhile keeps his pin
    Emit(trial, 0, EventKind::kCheckpointPinned,
         Value::Object{{"id", id}, {"pinned", known->pinned}})
        .IgnoreError("why they stay says more; a log that is lost decides elsewhere");
  }
}

Result<TrialEngine::Removed> TrialEngine::LeaveToRun(const std::string& trial,
                                                     const std::vector<std::string>& ids,
                                                     const std::string& reason) {
  Removed removed;
  for (const std::string& id : ids) {
    const CheckpointRecord* known = Find(trial)->Find(id);
    if (known == nullptr || known->state != CheckpointState::kCompleted) continue;
    RETURN_IF_ERROR(
        Emit(trial, 0, EventKind::kCheckpointPinned,
             Value::Object{{"id", known->id}, {"pinned", false}, {"unwanted", reason}}));
    removed.left_to_run.push_back(id);
  }
  return removed;
}

void TrialEngine::RetainAll() {
  std::vector<std::string> idle;  // with something to remove: there may be thousands without
  const std::int64_t now = options_.clock->WallNanos();
  {
    MutexLock hold(&mu_);
    retaining_ = false;
    for (const auto& [id, trial] : records_.trials()) {
      const RetentionPolicy& policy = trial.config.retention;
      if (!policy.max_age && !policy.looks_at_others()) continue;
      if (!trial.core.live) {
        if (!records_.Removals(id, policy, now).empty()) idle.push_back(id);
      } else if (RemovableOf(trial) != removable_[id]) {
        Changed(id);
      }
    }
  }
  for (const std::string& id : idle) {
    PostStorage(id, [this, id] { Retain(id); });
  }
}

void TrialEngine::EndRemovals() {
  std::vector<std::string> cut_off;
  const std::int64_t now = options_.clock->WallNanos();
  {
    MutexLock hold(&mu_);
    for (const auto& [id, trial] : records_.trials()) {
      // Others are looked at before their next run, which has the repository then.
      if (!IsEnded(trial.core.state) && trial.core.state != TrialState::kPaused) continue;
      const bool asked = std::ranges::any_of(trial.checkpoints, [](const CheckpointRecord& one) {
        return one.state == CheckpointState::kCompleted && !one.unwanted.empty();
      });
      if (asked || !records_.Removals(id, trial.config.retention, now).empty()) {
        cut_off.push_back(id);
      }
    }
  }
  for (const std::string& id : cut_off) {
    PostStorage(id, [this, id] {
      {
        MutexLock hold(&mu_);
        if (Find(id)->core.live) return;  // begun meanwhile: it does it, and saves beside a listing
      }
      // Also the newest is gone where its files are, which no rule takes and a user may.
      RegisterFound(id).IgnoreError("it is read again before its next run");
      Retain(id);
    });
  }
}

void TrialEngine::PostRetainAll() {
  {
    MutexLock hold(&mu_);
    if (!retains_by_others_ || std::exchange(retaining_, true)) return;
  }
  Post([this] { RetainAll(); });
}

void TrialEngine::ArmRetention() {
  At(options_.clock->Now() + options_.retention_interval, [this] {
    PostRetainAll();
    ArmRetention();
  });
}

}  // namespace cairn

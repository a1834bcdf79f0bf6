#include "trial/trial_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

constexpr std::string_view kScoreGroup = "validation";

/// Lays the members of `more` over `values`.
void Merge(const Value& more, Value* values) {
  if (!more.is_object() || !values->is_object()) return;
  for (const auto& [key, value] : *more.if_object()) (*values->if_object())[key] = value;
}

Status StepInput(TrialRecord* trial, TrialInput input) {
  const Result<TrialCore> next = Next(trial->core, input);
  if (!next.ok()) return next.status().WithContext(fmt::format("trial {}", trial->id));
  trial->core = *next;
  return Status::Ok();
}

Status OfLivingRun(const TrialRecord& trial, const Event& event) {
  if (trial.core.live && event.run == trial.core.run) return Status::Ok();
  return AbortedError(fmt::format("run {} of trial {} {}", event.run, trial.id,
                                  event.run == trial.core.run
                                      ? "is over"
                                      : fmt::format("was replaced by run {}", trial.core.run)));
}

/// What a run reports again. One that starts with another trial's checkpoint counts from 0.
void ArchivePast(TrialRecord* trial) {
  const bool own = GoesOn(trial->resume_mode, trial->start);
  for (MetricPoint& point : trial->reports) {
    if (!own || point.steps > trial->start->steps) point.archived = true;
  }
}

/// What earlier runs reported of the same step and group: of two runs the later one's word counts.
/// ArchivePast took all past the run's start, so that only steps up to it need a look.
void ArchiveRepeated(TrialRecord* trial, const MetricPoint& point) {
  if (!trial->start || point.steps > trial->start->steps) return;
  for (MetricPoint& before : trial->reports) {
    if (before.steps == point.steps && before.run < point.run && before.group == point.group) {
      before.archived = true;
    }
  }
}

/// A validation of the step that a checkpoint holds is the checkpoint's score: one of the run that
/// made it, or of the run that starts from it and looks at the same state again.
void Score(TrialRecord* trial, const MetricPoint& point) {
  if (point.group != kScoreGroup) return;
  const std::string start = trial->start ? trial->start->id : "";
  for (CheckpointRecord& checkpoint : trial->checkpoints) {
    if (checkpoint.steps != point.steps) continue;
    if (checkpoint.run == point.run || (!start.empty() && checkpoint.id == start)) {
      Merge(point.values, &checkpoint.metrics);
    }
  }
}

}  // namespace

std::string_view CheckpointStateName(CheckpointState state) {
  switch (state) {
    case CheckpointState::kActive:
      return "ACTIVE";
    case CheckpointState::kCompleted:
      return "COMPLETED";
    case CheckpointState::kDeleted:
      return "DELETED";
    case CheckpointState::kError:
      return "ERROR";
  }
  return "ERROR";
}

Value ToValue(const CheckpointRecord& record) {
  return Value::Object{{"id", record.id},
                       {"registration", record.registration},
                       {"state", CheckpointStateName(record.state)},
                       {"steps_completed", record.steps},
                       {"ranks", record.ranks},
                       {"metadata", record.metadata},
                       {"metrics", record.metrics},
                       {"bytes", record.bytes},
                       {"generation", record.generation},
                       {"sequence", record.sequence},
                       {"path", record.path},
                       {"pinned", record.pinned},
                       {"run_id", record.run},
                       {"time", record.time},
                       {"reason", record.reason}};
}

Value ToValue(const std::optional<StartPoint>& point) {
  if (!point) return {};
  return Value::Object{{"id", point->id},
                       {"steps_completed", point->steps},
                       {"metadata", point->metadata},
                       {"repository", point->repository}};
}

Result<std::optional<StartPoint>> StartPointFromValue(const Value& value) {
  if (value.is_null()) return std::optional<StartPoint>();
  if (!value.is_object()) return InvalidArgumentError("checkpoint: not an object");
  const MemberReader members(*value.if_object());
  StartPoint point;
  RETURN_IF_ERROR(members.Text("id", &point.id));
  RETURN_IF_ERROR(members.Int("steps_completed", &point.steps));
  RETURN_IF_ERROR(members.OptionalObject("metadata", &point.metadata));
  RETURN_IF_ERROR(members.OptionalText("repository", &point.repository));
  return std::optional(point);
}

const CheckpointRecord* TrialRecord::Find(std::string_view name) const {
  if (name.empty()) return nullptr;
  const auto found = std::ranges::find_if(checkpoints, [&](const CheckpointRecord& record) {
    return record.id == name || record.registration == name;
  });
  return found == checkpoints.end() ? nullptr : &*found;
}

CheckpointRecord* TrialRecord::Find(std::string_view name) {
  return const_cast<CheckpointRecord*>(std::as_const(*this).Find(name));
}

const CheckpointRecord* TrialRecord::Newest() const {
  const CheckpointRecord* newest = nullptr;
  for (const CheckpointRecord& record : checkpoints) {
    if (record.state != CheckpointState::kCompleted) continue;
    if (newest == nullptr || std::tuple(record.generation, record.sequence, record.order) >
                                 std::tuple(newest->generation, newest->sequence, newest->order)) {
      newest = &record;
    }
  }
  return newest;
}

TrialRecord TrialRecord::WithoutReports() const {
  // Member by member: a copy of the whole would copy what shall be left out.
  return {.id = id,
          .config = config,
          .core = core,
          .created = created,
          .parent_trial = parent_trial,
          .parent = parent,
          .job = job,
          .directory = directory,
          .reports = {},
          .progress = progress,
          .status = status,
          .checkpoints = checkpoints,
          .chosen = chosen,
          .chosen_after_run = chosen_after_run,
          .token_hash = token_hash,
          .start = start,
          .resume_mode = resume_mode,
          .next_sequence = next_sequence,
          .asked_time = asked_time,
          .deadline_ms = deadline_ms,
          .message = message,
          .said_exit = said_exit};
}

std::optional<StartPoint> TrialRecord::NextStart(const std::string& repository) const {
  const CheckpointRecord* own = Find(chosen);
  if (own == nullptr || own->state != CheckpointState::kCompleted) own = Newest();
  if (own == nullptr) return parent;
  return StartPoint{
      .id = own->id, .steps = own->steps, .metadata = own->metadata, .repository = repository};
}

Result<std::optional<StartPoint>> TrialRecord::StartFrom(const std::string& from,
                                                         const std::string& repository) const {
  std::optional<StartPoint> next = NextStart(repository);
  // What is next may be another's: of a trial that began with it and saved none.
  if (from.empty() || (next && next->id == from)) return next;
  const CheckpointRecord* named = Find(from);
  if (named == nullptr || named->state != CheckpointState::kCompleted) {
    return NotFoundError(fmt::format(
        "trial {} has no checkpoint {}{}", id, from,
        named == nullptr ? "" : fmt::format(": it is {}", CheckpointStateName(named->state))));
  }
  return std::optional(StartPoint{.id = named->id,
                                  .steps = named->steps,
                                  .metadata = named->metadata,
                                  .repository = repository});
}

std::string RepositoryOf(const TrialRecord& trial) {
  std::string storage = trial.config.storage;
  while (storage.size() > 1 && storage.ends_with('/')) storage.pop_back();
  if (!trial.directory.empty()) return fmt::format("{}/{}", storage, trial.directory);
  return fmt::format("{}/{}/{}", storage, trial.config.experiment, trial.id);
}

bool GoesOn(std::string_view resume_mode, const std::optional<StartPoint>& start) {
  return start.has_value() && resume_mode == "resume";
}

const TrialRecord* TrialRecords::Find(std::string_view trial) const {
  const auto found = trials_.find(trial);
  return found == trials_.end() ? nullptr : &found->second;
}

const TrialRecord* TrialRecords::FindExternal(std::string_view external_id) const {
  const auto found = by_external_id_.find(external_id);
  return found == by_external_id_.end() ? nullptr : Find(found->second);
}

Result<TrialRecords> TrialRecords::Of(std::uint64_t last_seq, std::vector<TrialRecord> trials) {
  TrialRecords records;
  records.last_seq_ = last_seq;
  for (TrialRecord& trial : trials) {
    std::string id = trial.id;
    const std::string& external = trial.config.external_id;
    const bool fresh = external.empty() || records.by_external_id_.emplace(external, id).second;
    records.Index(trial);
    if (!fresh || !IsTrialId(id) ||
        !records.trials_.emplace(std::move(id), std::move(trial)).second) {
      return CorruptionError("trial records: a trial is there twice, or has no name");
    }
  }
  return records;
}

void TrialRecords::KeepNewestReports() {
  newest_only_ = true;
  for (auto& [id, trial] : trials_) Trim(&trial);
}

void TrialRecords::Trim(TrialRecord* trial) const {
  if (!newest_only_) return;
  std::vector<MetricPoint>& reports = trial->reports;
  std::erase_if(reports, [](const MetricPoint& point) {
    return point.archived || point.group != kScoreGroup;
  });
  if (reports.size() > kNewestReports) {
    reports.erase(reports.begin(), reports.end() - kNewestReports);
  }
}

void TrialRecords::Index(const TrialRecord& trial) {
  if (trial.parent) by_start_.emplace(trial.parent->id, trial.id);
}

Status TrialRecords::Create(const Event& event) {
  if (!IsTrialId(event.trial)) {
    return InvalidArgumentError(fmt::format("trial id {}", QuoteForMessage(event.trial)));
  }
  if (trials_.contains(event.trial)) {
    return AlreadyExistsError(fmt::format("trial {} exists", event.trial));
  }
  const MemberReader members(*event.body.if_object());
  TrialRecord trial{.id = event.trial};
  Value config = Value::Object{};
  Value parent;
  RETURN_IF_ERROR(members.OptionalObject("config", &config));
  RETURN_IF_ERROR(members.OptionalText("parent_trial", &trial.parent_trial));
  RETURN_IF_ERROR(members.OptionalText("job", &trial.job));
  RETURN_IF_ERROR(members.OptionalText("directory", &trial.directory));
  ASSIGN_OR_RETURN(trial.config, TrialConfigFromValue(config));
  RETURN_IF_ERROR(trial.config.Validate());
  if (const Value* point = event.body.Find("parent"); point != nullptr) parent = *point;
  ASSIGN_OR_RETURN(trial.parent, StartPointFromValue(parent));
  trial.created = event.time;
  trial.core.max_restarts = trial.config.max_restarts;
  trial.core.detached = trial.config.detached;
  if (trial.config.detached) trial.core.state = TrialState::kPaused;
  if (!trial.config.external_id.empty()) {
    const auto [at, fresh] = by_external_id_.emplace(trial.config.external_id, trial.id);
    if (!fresh) {
      return AlreadyExistsError(
          fmt::format("trial {} has the external id {}", at->second, trial.config.external_id));
    }
  }
  Index(trial);
  trials_.emplace(event.trial, std::move(trial));
  return Status::Ok();
}

Status TrialRecords::Apply(const Event& event) {
  if (event.seq != last_seq_ + 1) {
    return InternalError(fmt::format("event {} where {} belongs", event.seq, last_seq_ + 1));
  }
  if (!event.body.is_object()) return InvalidArgumentError("event: the body is no object");
  if (event.kind == EventKind::kTrialCreated) {
    RETURN_IF_ERROR(Create(event));
  } else if (event.kind != EventKind::kNote) {  // those belong to whoever embeds the engine
    const auto found = trials_.find(event.trial);
    if (found == trials_.end()) return NotFoundError(fmt::format("no trial {}", event.trial));
    RETURN_IF_ERROR(ApplyTo(&found->second, event));
  }
  last_seq_ = event.seq;
  return Status::Ok();
}

Status TrialRecords::ApplyTo(TrialRecord* trial, const Event& event) {
  const MemberReader members(*event.body.if_object());
  switch (event.kind) {
    case EventKind::kActivated: {
      std::string from;
      RETURN_IF_ERROR(members.OptionalText("from", &from));
      const CheckpointRecord* chosen = trial->Find(from);
      if (!from.empty() && (chosen == nullptr || chosen->state != CheckpointState::kCompleted)) {
        return NotFoundError(fmt::format("trial {} has no checkpoint {}", trial->id, from));
      }
      if (!from.empty() && trial->core.live) {
        return FailedPreconditionError(
            fmt::format("trial {} is {}: pause it before it goes on from another checkpoint",
                        trial->id, TrialStateName(trial->core.state)));
      }
      const bool ended = IsEnded(trial->core.state) || trial->core.state == TrialState::kPaused;
      RETURN_IF_ERROR(StepInput(trial, TrialInput::kActivate));
      if (ended || !from.empty()) {
        trial->chosen = from.empty() ? trial->chosen : chosen->id;
        trial->chosen_after_run = trial->core.run;
      }
      return Status::Ok();
    }
    case EventKind::kPauseRequested:
    case EventKind::kCancelRequested:
    case EventKind::kKillRequested: {
      std::int64_t deadline = 0;
      RETURN_IF_ERROR(members.OptionalInt("deadline_ms", &deadline));
      const bool asked = trial->core.live && (trial->core.state == TrialState::kPausing ||
                                              trial->core.state == TrialState::kStopping);
      RETURN_IF_ERROR(StepInput(trial, event.kind == EventKind::kPauseRequested ? TrialInput::kPause
                                       : event.kind == EventKind::kCancelRequested
                                           ? TrialInput::kCancel
                                           : TrialInput::kKill));
      // Asked again a run has no more time than it had; a kill does not wait for it.
      if (asked && event.kind != EventKind::kKillRequested) return Status::Ok();
      trial->asked_time = event.time;
      trial->deadline_ms = deadline;
      return Status::Ok();
    }
    case EventKind::kRunStarted: {
      std::string hash;
      std::string mode;
      RETURN_IF_ERROR(members.OptionalText("token_hash", &hash));
      RETURN_IF_ERROR(members.OptionalText("resume_mode", &mode));
      const Value* from = event.body.Find("from");
      ASSIGN_OR_RETURN(auto start, StartPointFromValue(from == nullptr ? Value() : *from));
      RETURN_IF_ERROR(StepInput(trial, TrialInput::kRunStarted));
      trial->token_hash = std::move(hash);
      trial->resume_mode = std::move(mode);
      trial->start = std::move(start);
      trial->next_sequence = 1;
      trial->deadline_ms = 0;
      trial->message.clear();
      trial->said_exit = false;
      ArchivePast(trial);
      Trim(trial);
      return Status::Ok();
    }
    case EventKind::kRunReady: {
      std::int64_t rank = 0;
      RETURN_IF_ERROR(members.OptionalInt("rank", &rank));
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      return rank == 0 ? StepInput(trial, TrialInput::kReady) : Status::Ok();
    }
    case EventKind::kReport: {
      MetricPoint point{.run = event.run, .time = event.time};
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      RETURN_IF_ERROR(members.Uint("sequence", &point.sequence));
      RETURN_IF_ERROR(members.Text("group", &point.group));
      RETURN_IF_ERROR(members.Int("steps_completed", &point.steps));
      RETURN_IF_ERROR(members.OptionalObject("metrics", &point.values));
      if (point.sequence != trial->next_sequence) {
        return FailedPreconditionError(
            fmt::format("report {} where {} belongs", point.sequence, trial->next_sequence));
      }
      RestoreNonFinite(&point.values);
      ++trial->next_sequence;
      ArchiveRepeated(trial, point);
      Score(trial, point);
      trial->reports.push_back(std::move(point));
      Trim(trial);
      return Status::Ok();
    }
    case EventKind::kProgress: {
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      if (const Value* progress = event.body.Find("progress"); progress != nullptr) {
        trial->progress = progress->AsDouble();
      }
      return Status::Ok();
    }
    case EventKind::kStatus:
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      return members.OptionalText("status", &trial->status);
    case EventKind::kPreemptAcknowledged:
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      return StepInput(trial, TrialInput::kAcknowledge);
    case EventKind::kSignalled:
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      return StepInput(trial, TrialInput::kSignalled);
    case EventKind::kRunExited: {
      std::int64_t code = 0;
      std::int64_t signal = 0;
      bool lost = false;
      bool stopped = false;
      bool said = false;
      std::string message;
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      RETURN_IF_ERROR(members.OptionalInt("code", &code));
      RETURN_IF_ERROR(members.OptionalInt("signal", &signal));
      RETURN_IF_ERROR(members.OptionalBool("lost", &lost));
      RETURN_IF_ERROR(members.OptionalBool("stopped", &stopped));
      RETURN_IF_ERROR(members.OptionalBool("said", &said));
      RETURN_IF_ERROR(members.OptionalText("message", &message));
      const bool success = code == 0 && signal == 0 && !lost;
      RETURN_IF_ERROR(StepInput(trial, stopped   ? TrialInput::kStopped
                                       : success ? TrialInput::kExitSuccess
                                                 : TrialInput::kExitFailure));
      trial->message = std::move(message);
      trial->said_exit = said;
      for (CheckpointRecord& checkpoint : trial->checkpoints) {
        checkpoint.awaits_score = false;
        if (checkpoint.state != CheckpointState::kActive) continue;
        checkpoint.state = CheckpointState::kError;
        checkpoint.reason = "the run ended before it was completed";
      }
      return Status::Ok();
    }
    case EventKind::kRetentionChanged: {
      Value retention = Value::Object{};
      RETURN_IF_ERROR(members.OptionalObject("retention", &retention));
      ASSIGN_OR_RETURN(const RetentionPolicy policy, RetentionPolicyFromValue(retention));
      RETURN_IF_ERROR(policy.Validate());
      trial->config.retention = policy;
      return Status::Ok();
    }
    case EventKind::kRepositoryChosen: {
      std::string directory;
      std::string job;
      std::uint64_t run = 0;
      if (trial->core.live) {
        return FailedPreconditionError(fmt::format("trial {} has a living run", trial->id));
      }
      RETURN_IF_ERROR(members.OptionalText("job", &job));
      RETURN_IF_ERROR(members.OptionalText("directory", &directory));
      RETURN_IF_ERROR(members.OptionalUint("run", &run));
      trial->job = std::move(job);
      trial->directory = std::move(directory);
      // Runs of a lost record: the next one is newer than they.
      trial->core.run = std::max(trial->core.run, run);
      return Status::Ok();
    }
    default:
      return ApplyCheckpoint(trial, event);
  }
}

Status TrialRecords::ApplyCheckpoint(TrialRecord* trial, const Event& event) {
  const MemberReader members(*event.body.if_object());
  CheckpointRecord record{.run = event.run, .time = event.time};
  RETURN_IF_ERROR(members.OptionalText("registration", &record.registration));
  RETURN_IF_ERROR(members.OptionalText("id", &record.id));
  RETURN_IF_ERROR(members.OptionalText("reason", &record.reason));
  switch (event.kind) {
    case EventKind::kCheckpointStarted: {
      RETURN_IF_ERROR(OfLivingRun(*trial, event));
      RETURN_IF_ERROR(members.Int("steps_completed", &record.steps));
      RETURN_IF_ERROR(members.OptionalUint("ranks", &record.ranks));
      RETURN_IF_ERROR(members.OptionalObject("metadata", &record.metadata));
      if (trial->Find(record.registration) != nullptr) {
        return AlreadyExistsError(fmt::format("registration {} exists", record.registration));
      }
      trial->checkpoints.push_back(std::move(record));
      return Status::Ok();
    }
    case EventKind::kCheckpointCompleted: {
      RETURN_IF_ERROR(members.Int("steps_completed", &record.steps));
      RETURN_IF_ERROR(members.OptionalObject("metadata", &record.metadata));
      RETURN_IF_ERROR(members.OptionalObject("metrics", &record.metrics));
      RETURN_IF_ERROR(members.OptionalUint("bytes", &record.bytes));
      RETURN_IF_ERROR(members.OptionalUint("generation", &record.generation));
      RETURN_IF_ERROR(members.OptionalUint("sequence", &record.sequence));
      RETURN_IF_ERROR(members.OptionalText("path", &record.path));
      RETURN_IF_ERROR(members.OptionalText("base", &record.base));
      RETURN_IF_ERROR(members.OptionalBool("awaits_score", &record.awaits_score));
      if (record.id.empty()) return InvalidArgumentError("checkpoint: the id is empty");
      // One that was found is as old as its manifest, and not as what is known of it.
      if (record.registration.empty()) RETURN_IF_ERROR(members.OptionalInt("time", &record.time));
      if (!record.registration.empty()) RETURN_IF_ERROR(OfLivingRun(*trial, event));
      RestoreNonFinite(&record.metrics);
      record.state = CheckpointState::kCompleted;
      record.order = event.seq;
      CheckpointRecord* known =
          trial->Find(record.registration.empty() ? record.id : record.registration);
      if (!record.registration.empty() &&
          (known == nullptr || (!known->id.empty() && known->id != record.id))) {
        return known == nullptr
                   ? NotFoundError(fmt::format("no registration {}", record.registration))
                   : AlreadyExistsError(fmt::format("registration {} was completed as {}",
                                                    record.registration, known->id));
      }
      if (known != nullptr) {
        record.ranks = known->ranks;
        record.pinned = known->pinned;
        record.unwanted = known->unwanted;
        record.registration = known->registration;
        // Validations since it was begun; some of them may not be among the reports any more.
        if (known->state == CheckpointState::kActive) Merge(known->metrics, &record.metrics);
        *known = std::move(record);
      } else {
        trial->checkpoints.push_back(std::move(record));
        known = &trial->checkpoints.back();
      }
      for (const MetricPoint& point : trial->reports) {
        if (!point.archived && point.group == kScoreGroup && point.steps == known->steps) {
          Merge(point.values, &known->metrics);
        }
      }
      if (event.run > trial->chosen_after_run) trial->chosen.clear();
      return Status::Ok();
    }
    case EventKind::kCheckpointAbandoned:
    case EventKind::kCheckpointDeleted:
    case EventKind::kCheckpointPinned: {
      CheckpointRecord* known = trial->Find(record.id.empty() ? record.registration : record.id);
      if (known == nullptr) {
        return NotFoundError(fmt::format("trial {} has no checkpoint {}{}", trial->id, record.id,
                                         record.registration));
      }
      if (event.kind == EventKind::kCheckpointPinned) {
        known->unwanted.clear();  // whoever pins it thought better of it
        RETURN_IF_ERROR(members.OptionalText("unwanted", &known->unwanted));
        return members.OptionalBool("pinned", &known->pinned);
      }
      const bool deleted = event.kind == EventKind::kCheckpointDeleted;
      bool damaged = false;  // what was completed is given up only for that
      RETURN_IF_ERROR(members.OptionalBool("damaged", &damaged));
      if (!deleted && !damaged && known->state == CheckpointState::kCompleted) {
        return FailedPreconditionError(
            fmt::format("checkpoint {} was completed", known->registration));
      }
      known->state = deleted ? CheckpointState::kDeleted : CheckpointState::kError;
      known->reason = record.reason;
      return Status::Ok();
    }
    default:
      return InternalError("an event that no rule applies");
  }
}

std::vector<std::string> TrialRecords::BeginWith(std::string_view checkpoint) const {
  std::vector<std::string> trials;
  const auto [first, last] = by_start_.equal_range(checkpoint);
  for (auto at = first; at != last; ++at) {
    const TrialRecord& trial = *Find(at->second);
    if (!IsEnded(trial.core.state) && trial.Newest() == nullptr) trials.push_back(trial.id);
  }
  return trials;
}

std::uint64_t TrialRecords::BytesOf(std::string_view experiment) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, trial] : trials_) {
    if (trial.config.experiment != experiment) continue;
    for (const CheckpointRecord& record : trial.checkpoints) {
      if (record.state == CheckpointState::kCompleted) bytes += record.bytes;
    }
  }
  return bytes;
}

std::vector<Removal> TrialRecords::Removals(std::string_view id, const RetentionPolicy& policy,
                                            std::int64_t now) const {
  const TrialRecord* trial = Find(id);
  if (trial == nullptr) return {};
  const auto retained = [&](const TrialRecord& of) {
    std::vector<RetainedCheckpoint> items;
    const CheckpointRecord* newest = of.Newest();
    const std::string start = of.start ? of.start->id : "";
    for (const CheckpointRecord& record : of.checkpoints) {
      if (record.state != CheckpointState::kCompleted) continue;
      items.push_back({.trial = of.id,
                       .id = record.id,
                       .steps = record.steps,
                       .time = record.time,
                       .bytes = record.bytes,
                       .metrics = record.metrics,
                       .pinned = record.pinned,
                       .awaits_score = record.awaits_score,
                       .unwanted = record.unwanted,
                       .latest = &record == newest,
                       // A trial that continues from it needs it until it has one of its own.
                       .needed = record.id == of.chosen ||
                                 (of.core.live && record.id == start && &record == newest) ||
                                 !BeginWith(record.id).empty()});
    }
    std::ranges::stable_sort(items, {}, [&](const RetainedCheckpoint& item) {
      const CheckpointRecord* record = of.Find(item.id);
      return std::tuple(record->generation, record->sequence, record->order);
    });
    return items;
  };
  const std::vector<RetainedCheckpoint> own = retained(*trial);
  if (own.empty()) return {};
  // Most trials of a large experiment have nothing but their latest: the others are not gathered
  // for each of them.
  if (std::ranges::all_of(own, [&](const auto& item) { return Stays(policy, item); })) return {};
  std::vector<RetainedCheckpoint> all;
  const bool over_budget =
      policy.experiment_bytes && BytesOf(trial->config.experiment) > *policy.experiment_bytes;
  if (policy.experiment_best || over_budget) {
    for (const auto& [other_id, other] : trials_) {
      if (other.config.experiment != trial->config.experiment) continue;
      const auto items = retained(other);
      all.insert(all.end(), items.begin(), items.end());
    }
  }
  std::vector<Removal> removals = ChooseRemovals(policy, own, all, now);
  // What an increment builds on stays with it.
  std::set<std::string_view> bases;
  for (const CheckpointRecord& record : trial->checkpoints) {
    const bool stays = record.state == CheckpointState::kCompleted &&
                       std::ranges::find(removals, record.id, &Removal::id) == removals.end();
    if (stays && !record.base.empty()) bases.insert(record.base);
  }
  std::erase_if(removals, [&](const Removal& one) { return bases.contains(one.id); });
  return removals;
}

}  // namespace cairn

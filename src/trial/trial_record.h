#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "trial/event.h"
#include "trial/retention_policy.h"
#include "trial/trial_config.h"
#include "trial/trial_state.h"

namespace cairn {

enum class CheckpointState : std::uint8_t { kActive, kCompleted, kDeleted, kError };
std::string_view CheckpointStateName(CheckpointState state);

/// A reported checkpoint (docs/format/trial_protocol.md, "Checkpoints").
struct CheckpointRecord {
  std::string id;            // the manifest's; empty before COMPLETED
  std::string registration;  // empty: found in the repository
  CheckpointState state = CheckpointState::kActive;
  std::int64_t steps = 0;
  std::uint64_t ranks = 1;
  Value metadata = Value::Object{};
  Value metrics = Value::Object{};  // with those of a validation of the same step
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::string path;
  std::string base;  // of an increment: the full one that it builds on
  bool pinned = false;
  bool awaits_score = false;
  /// Why it goes whatever the rules say: a user wants it gone, while a run lives that has to do it.
  std::string unwanted;
  std::uint64_t run = 0;
  std::int64_t time = 0;
  std::uint64_t order = 0;  // seq of the event that completed it
  std::string reason;       // of ERROR and DELETED
};
Value ToValue(const CheckpointRecord& record);

/// One report.
struct MetricPoint {
  std::string group;
  std::int64_t steps = 0;
  std::uint64_t run = 0;
  std::uint64_t sequence = 0;
  std::int64_t time = 0;
  Value values;
  bool archived = false;  // a later run went back before it, or reported its step again
};

/// What a run starts from.
struct StartPoint {
  std::string id;
  std::int64_t steps = 0;
  Value metadata = Value::Object{};
  std::string repository;
  friend bool operator==(const StartPoint&, const StartPoint&) = default;
};
Value ToValue(const std::optional<StartPoint>& point);
Result<std::optional<StartPoint>> StartPointFromValue(const Value& value);

/// All that is known of a trial.
struct TrialRecord {
  std::string id;
  TrialConfig config;
  TrialCore core;
  std::int64_t created = 0;
  std::string parent_trial;  // "": none
  std::optional<StartPoint> parent;
  /// Whose its repository is: the job that the repository records. "": not known; a record from
  /// before, or one of an engine whose storage is its own.
  std::string job;
  /// So much of it tells it from the others of a storage, for people.
  std::string_view ShortJob() const { return std::string_view(job).substr(0, 8); }
  /// Where its repository is, under its storage. "": <experiment>/<trial>.
  std::string directory;

  std::vector<MetricPoint> reports;  // all, or the newest (TrialRecords::KeepNewestReports)
  double progress = 0;
  std::string status;
  std::vector<CheckpointRecord> checkpoints;  // in the order of their first event
  /// A checkpoint that a user chose to go on from; counts until a later run has saved one.
  std::string chosen;
  std::uint64_t chosen_after_run = 0;

  // Of the newest run.
  std::string token_hash;
  std::optional<StartPoint> start;
  std::string resume_mode;
  std::uint64_t next_sequence = 1;
  std::int64_t asked_time = 0;   // when it was asked to exit, and …
  std::int64_t deadline_ms = 0;  // … how long it has
  std::string message;           // how the last run ended, for people
  bool said_exit = false;        // it said so itself (detached)

  const CheckpointRecord* Find(std::string_view id_or_registration) const;
  CheckpointRecord* Find(std::string_view id_or_registration);
  /// The COMPLETED checkpoint with the greatest (generation, sequence), or null.
  const CheckpointRecord* Newest() const;
  /// What the next run starts from: the chosen one, else the newest, else the parent's.
  std::optional<StartPoint> NextStart(const std::string& repository) const;
  /// The same, or the checkpoint `from` unless that is "". NotFound: it has no such one (any more).
  Result<std::optional<StartPoint>> StartFrom(const std::string& from,
                                              const std::string& repository) const;
  /// A copy with `reports` empty.
  TrialRecord WithoutReports() const;
};

/// <storage>/<experiment>/<trial>, or <storage>/<directory>; as it is recorded (Located).
std::string RepositoryOf(const TrialRecord& trial);

/// Whether a run that began so goes on with its own trial's checkpoint: what it reports goes on,
/// too. One that begins with another trial's counts from 0.
bool GoesOn(std::string_view resume_mode, const std::optional<StartPoint>& start);

/// The engine's state: a fold of its events. Copyable; not synchronised.
class TrialRecords {
 public:
  TrialRecords() = default;
  /// What was folded before, up to `last_seq`. Corruption when two trials have the same name.
  static Result<TrialRecords> Of(std::uint64_t last_seq, std::vector<TrialRecord> trials);

  /// From now on trials keep only those reports that may still be asked for: validations that
  /// count, of which a checkpoint of the same step may come, and of them the newest kNewestReports.
  /// For logs that have the reports themselves: what is known does not grow with them.
  void KeepNewestReports();
  static constexpr std::size_t kNewestReports = 64;

  /// Applies the event, whose seq must be the next one, or refuses it (FailedPrecondition,
  /// NotFound, AlreadyExists, InvalidArgument) and changes nothing.
  Status Apply(const Event& event);

  std::uint64_t last_seq() const { return last_seq_; }
  const std::map<std::string, TrialRecord, std::less<>>& trials() const { return trials_; }
  const TrialRecord* Find(std::string_view trial) const;
  const TrialRecord* FindExternal(std::string_view external_id) const;
  /// The trials that are to begin with this checkpoint of another: they have none of their own yet,
  /// and have not ended. It is theirs as much as its trial's.
  std::vector<std::string> BeginWith(std::string_view checkpoint) const;
  /// What each trial's own rules let go now.
  std::vector<Removal> Removals(std::string_view trial, const RetentionPolicy& policy,
                                std::int64_t now) const;

 private:
  Status Create(const Event& event);
  void Index(const TrialRecord& trial);
  Status ApplyTo(TrialRecord* trial, const Event& event);
  Status ApplyCheckpoint(TrialRecord* trial, const Event& event);
  /// Of the experiment's checkpoints together.
  std::uint64_t BytesOf(std::string_view experiment) const;

  /// Lets go of reports that are not kept.
  void Trim(TrialRecord* trial) const;

  std::uint64_t last_seq_ = 0;
  bool newest_only_ = false;
  std::map<std::string, TrialRecord, std::less<>> trials_;
  std::map<std::string, std::string, std::less<>> by_external_id_;
  std::multimap<std::string, std::string, std::less<>> by_start_;  // trials by what they began with
};

}  // namespace cairn

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/page.h"
#include "trial/trial_record.h"
#include "trial/trial_state.h"

namespace cairn {

class CatalogDatabase;

/// A trial as its events left it, without what is long (metrics, checkpoints, runs).
struct TrialRow {
  std::string id;
  std::string experiment;  // TrialConfig::experiment
  Value config = Value::Object{};
  Value hparams = Value::Object{};
  TrialCore core;
  std::string parent_trial;
  std::string parent_checkpoint;
  std::int64_t created = 0;        // nanoseconds since 1970, as all times here; 0: not yet
  std::int64_t started = 0;        // when processes of it first ran
  std::int64_t ended = 0;          // of the last run, when the trial rests
  std::int64_t ran = 0;            // nanoseconds that its ended runs had processes
  std::int64_t running_since = 0;  // of the run that has some now
  double progress = 0;
  std::string status;
  std::string message;                     // how the last run ended, for people
  std::int64_t steps = 0;                  // newest that counts
  Value latest_metrics = Value::Object{};  // {group: {name: number}}: of the newest report each
  std::optional<double> best_metric;       // the experiment's, of what counts; never NaN
  std::int64_t best_steps = 0;
  std::uint64_t reports = 0;      // all, also archived ones
  std::uint64_t checkpoints = 0;  // COMPLETED ones
  std::uint64_t checkpoint_bytes = 0;
};

struct TrialQuery {
  std::string experiment;           // "": of all
  std::vector<std::string> states;  // any of them; empty: all
  bool of_deleted = true;           // also those of experiments that were deleted
  /// "id" (numbers by value), "state", "started", "ended", "steps", "progress", "checkpoint_bytes",
  /// "duration", "best_metric" (by value), "best" (the best of each experiment's metric first,
  /// whatever `descending` says)
  std::string sort = "id";
  bool descending = false;
  std::int64_t now = 0;  // nanoseconds since 1970; for the duration of those that run
  std::uint64_t offset = 0;
  std::uint64_t limit = 50;
};

/// What a master notes of a trial when a run's processes were started: {"what": kRunBegan, "run",
/// "time"}. The event of the run's start is durable before anybody knows when that will be.
inline constexpr std::string_view kRunBegan = "run_began";

/// One start of a trial's processes.
struct RunRow {
  std::string trial;
  std::uint64_t run = 0;
  std::int64_t started = 0;  // when it was asked for; it may have to wait for slots
  std::int64_t began = 0;    // when its processes were started; 0: not yet, as all times
  std::int64_t ready = 0;
  std::int64_t ended = 0;
  std::string resume_mode;
  std::optional<StartPoint> from;
  std::int64_t code = 0;
  std::int64_t signal = 0;
  bool lost = false;
  bool stopped = false;
  /// What its end was to the trial: completed, paused, canceled, failed, stopped, lost. "": it
  /// lives, or an older version recorded its end.
  std::string outcome;
  std::string message;
};

struct CheckpointRow {
  std::string trial;
  std::string experiment;
  CheckpointRecord record;
  std::string kind;  // "full", "increment", or "" where the event did not say
  std::string base;  // id of what an increment builds on
};

struct CheckpointQuery {
  std::string trial;                // "": of all
  std::string experiment;           // "": of all
  std::vector<std::string> states;  // CheckpointStateName; empty: all
  std::optional<bool> pinned;
  std::string sort = "time";  // "time", "steps", "bytes", "state"
  bool descending = true;
  std::uint64_t offset = 0;
  std::uint64_t limit = 50;
};

/// Trials, runs and checkpoints as tables: written with the events alone. May be called from any
/// thread.
class CatalogTrials {
 public:
  explicit CatalogTrials(CatalogDatabase* db) : db_(db) {}

  Result<TrialRow> Get(const std::string& trial);  // NotFound
  Result<Page<TrialRow>> List(const TrialQuery& query);
  /// In order.
  Result<std::vector<RunRow>> Runs(const std::string& trial);
  Result<Page<CheckpointRow>> Checkpoints(const CheckpointQuery& query);
  /// By the manifest's id or by registration. NotFound. A checkpoint that several trials know (one
  /// was copied) is the first one's.
  Result<CheckpointRow> GetCheckpoint(const std::string& id);
  /// The same as people write it: also by the first four or more characters of its id, where no
  /// other one begins with them. NotFound; InvalidArgument for the beginning of several.
  Result<CheckpointRow> FindCheckpoint(const std::string& text);

  /// Bytes of COMPLETED checkpoints by experiment, greatest first.
  struct Usage {
    std::string experiment;
    std::uint64_t checkpoints = 0;
    std::uint64_t bytes = 0;
  };
  Result<std::vector<Usage>> StorageUsage();

 private:
  CatalogDatabase* const db_;
};

}  // namespace cairn

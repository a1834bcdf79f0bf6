#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "catalog/connection.h"
#include "trial/event.h"
#include "trial/trial_config.h"
#include "trial/trial_record.h"

namespace cairn {

/// The tables that follow from events: trials, runs, checkpoints, names of metrics, and what
/// experiments know of their trials. They agree with the fold of the events (TrialRecords) at every
/// commit. An event that fits no trial changes no table: the engine has judged it before.
///
/// Remembers the trials it has seen, so that an event costs few statements. For one thread, within
/// a transaction: Apply for each event, then Flush. When the transaction fails, Forget.
class EventTables {
 public:
  /// Reports that came before in this transaction must be in their table.
  Status Apply(Connection* connection, const Event& event);
  Status Flush(Connection* connection);
  void Forget();

  /// Whether Apply looks reports up for this event.
  static bool LooksAtReports(const Event& event);

 private:
  struct Trial {
    std::string id;
    bool known = false;  // false: no such trial
    bool fresh = false;  // its row is still to be inserted
    bool dirty = false;  // more than reports came: all of its row is written
    TrialConfig config;
    Value config_value;
    TrialCore core;
    std::string parent_trial;
    std::string parent_checkpoint;
    std::int64_t created = 0;
    std::int64_t started = 0;
    std::int64_t ended = 0;
    std::int64_t ran = 0;
    std::int64_t running_since = 0;
    double progress = 0;
    std::string status;
    std::string message;
    std::int64_t steps = 0;
    Value latest = Value::Object{};
    std::optional<double> best;
    std::int64_t best_steps = 0;
    std::uint64_t reports = 0;
    // Of the newest run: up to which step earlier runs' reports count, and what it started from.
    std::int64_t resumed_at = std::numeric_limits<std::int64_t>::min();
    std::string started_from;
    std::uint64_t checkpoints = 0;
    std::uint64_t checkpoint_bytes = 0;
    std::optional<std::int64_t> experiment_id;
    std::string metric;  // the experiment's
    std::string metric_group;
    bool smaller_is_better = true;
    std::set<std::pair<std::string, std::string>> names;  // of metrics, that are in their table
    bool names_known = false;
    bool checkpoints_changed = false;
    bool sums_changed = false;  // what the experiment's row sums up
    bool best_improved = false;
    bool recount = false;  // what `best` says may have been reported again
  };

  /// How long at least one trial of an experiment had processes.
  struct Running {
    std::int64_t trials = 0;  // that have some now
    std::int64_t since = 0;
    std::int64_t ran = 0;
  };

  Result<Trial*> Find(Connection* connection, const std::string& id);
  Status Create(Connection* connection, const Event& event, Trial* trial);
  Status LoadExperiment(Connection* connection, Trial* trial);
  Status LoadRun(Connection* connection, Trial* trial);
  Status ApplyRunStarted(Connection* connection, const Event& event, Trial* trial);
  Status ApplyRunBegan(Connection* connection, const Event& event);
  /// The newest run has processes since then. Told twice, the earlier time counts.
  Status Began(Connection* connection, std::int64_t time, Trial* trial);
  /// It has none any more.
  Status Ceased(Connection* connection, std::int64_t time, Trial* trial);
  /// Of the trial's experiment; null when it is of none.
  Result<Running*> RunningOf(Connection* connection, const Trial& trial);
  Status ApplyRunExited(Connection* connection, const Event& event, Trial* trial);
  Status ApplyReport(Connection* connection, const Event& event, Trial* trial);
  /// Archives what earlier runs reported of the step.
  Status Repeat(Connection* connection, const Event& event, const std::string& group,
                std::int64_t steps, Trial* trial);
  Status ApplyCheckpoint(Connection* connection, const Event& event, Trial* trial);
  Status ApplyCompleted(Connection* connection, const Event& event, Trial* trial);
  /// Newest and best of what counts, after a run went back or reported a step again.
  Status Recount(Connection* connection, Trial* trial);
  void Consider(const Value& metrics, const std::string& group, std::int64_t steps, Trial* trial);
  Status AddNames(Connection* connection, const std::string& group, const Value& metrics,
                  Trial* trial);
  Status Write(Connection* connection, Trial* trial);
  Status WriteExperiments(Connection* connection);
  Status WriteRunning(Connection* connection);

  std::map<std::string, Trial, std::less<>> trials_;
  std::map<std::int64_t, Running> running_;  // by experiment
  std::set<std::int64_t> running_changed_;
  std::set<std::string> dirty_;
};

}  // namespace cairn

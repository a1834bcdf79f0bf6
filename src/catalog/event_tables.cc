#include "catalog/event_tables.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "catalog/event_body.h"
#include "catalog/report_reader.h"
#include "catalog/trial_rows.h"
#include "format/json.h"

namespace cairn {
namespace {

/// Trials that are remembered at most; beyond that all are read anew.
constexpr std::size_t kMaxTrials = 20'000;
/// Names of metrics of a trial that are listed at most.
constexpr std::size_t kMaxNames = 4096;

/// Whose metrics are the scores of checkpoints.
constexpr std::string_view kScoreGroup = "validation";

/// The state machine's word; what it refuses has not happened.
void Step(TrialCore* core, TrialInput input) {
  if (const auto next = Next(*core, input); next.ok()) *core = *next;
}

/// When the run ended: its launcher knows it, where the master was away meanwhile.
std::int64_t EndOf(const Event& event) {
  const std::int64_t ended = IntOf(event, "ended");
  return ended > 0 ? std::min(ended, event.time) : event.time;
}

bool Rests(TrialState state) { return IsEnded(state) || state == TrialState::kPaused; }

}  // namespace

void EventTables::Forget() {
  trials_.clear();
  running_.clear();
  running_changed_.clear();
  dirty_.clear();
}

bool EventTables::LooksAtReports(const Event& event) {
  return event.kind == EventKind::kRunStarted || event.kind == EventKind::kCheckpointCompleted;
}

Result<EventTables::Trial*> EventTables::Find(Connection* connection, const std::string& id) {
  if (const auto found = trials_.find(id); found != trials_.end()) return &found->second;
  if (trials_.size() >= kMaxTrials && dirty_.empty()) {
    trials_.clear();
    running_.clear();
  }
  Trial trial{.id = id};
  RETURN_IF_ERROR(connection->Query(std::string(kTrialSelect) + " WHERE t.id = ?", {id},
                                    kTrialColumns, [&](const SqlRow& row) -> Status {
                                      ASSIGN_OR_RETURN(TrialRow stored, TrialFromRow(row));
                                      trial.known = true;
                                      trial.config_value = std::move(stored.config);
                                      ASSIGN_OR_RETURN(trial.config,
                                                       TrialConfigFromValue(trial.config_value));
                                      trial.core = stored.core;
                                      trial.parent_trial = stored.parent_trial;
                                      trial.parent_checkpoint = stored.parent_checkpoint;
                                      trial.created = stored.created;
                                      trial.started = stored.started;
                                      trial.ended = stored.ended;
                                      trial.ran = stored.ran;
                                      trial.running_since = stored.running_since;
                                      trial.progress = stored.progress;
                                      trial.status = stored.status;
                                      trial.message = stored.message;
                                      trial.steps = stored.steps;
                                      trial.latest = std::move(stored.latest_metrics);
                                      trial.best = stored.best_metric;
                                      trial.best_steps = stored.best_steps;
                                      trial.reports = stored.reports;
                                      trial.checkpoints = stored.checkpoints;
                                      trial.checkpoint_bytes = stored.checkpoint_bytes;
                                      return Status::Ok();
                                    }));
  if (trial.known) {
    RETURN_IF_ERROR(LoadExperiment(connection, &trial));
    RETURN_IF_ERROR(LoadRun(connection, &trial));
  }
  return &trials_.emplace(id, std::move(trial)).first->second;
}

Status EventTables::LoadExperiment(Connection* connection, Trial* trial) {
  trial->experiment_id = ExperimentNumber(trial->config.experiment);
  if (!trial->experiment_id) return Status::Ok();
  return connection->Query(
      "SELECT metric, smaller_is_better, metric_group FROM experiments WHERE id = ?",
      {*trial->experiment_id}, "tit", [&](const SqlRow& row) {
        trial->metric = row.Text(0);
        trial->smaller_is_better = row.Bool(1);
        trial->metric_group = row.Text(2);
        return Status::Ok();
      });
}

Status EventTables::LoadRun(Connection* connection, Trial* trial) {
  return connection->Query(
      "SELECT archives_past, start_point FROM runs WHERE trial = ? AND run = ?",
      {trial->id, Number(trial->core.run)}, "it", [&](const SqlRow& row) -> Status {
        trial->resumed_at = row.Int(0);
        ASSIGN_OR_RETURN(const Value point, DecodeJson(row.Text(1)));
        const auto start = StartPointFromValue(point);
        if (start.ok() && *start) trial->started_from = (*start)->id;
        return Status::Ok();
      });
}

Status EventTables::Apply(Connection* connection, const Event& event) {
  if (event.kind == EventKind::kNote) return ApplyRunBegan(connection, event);
  ASSIGN_OR_RETURN(Trial * trial, Find(connection, event.trial));
  if (event.kind == EventKind::kTrialCreated) {
    return trial->known ? Status::Ok() : Create(connection, event, trial);
  }
  if (!trial->known) return Status::Ok();
  if (event.kind != EventKind::kReport) trial->dirty = true;
  dirty_.insert(trial->id);
  const TrialState before = trial->core.state;
  std::int64_t when = event.time;
  switch (event.kind) {
    case EventKind::kActivated:
      Step(&trial->core, TrialInput::kActivate);
      break;
    case EventKind::kPauseRequested:
      Step(&trial->core, TrialInput::kPause);
      break;
    case EventKind::kCancelRequested:
      Step(&trial->core, TrialInput::kCancel);
      break;
    case EventKind::kKillRequested:
      Step(&trial->core, TrialInput::kKill);
      break;
    case EventKind::kRunStarted:
      RETURN_IF_ERROR(ApplyRunStarted(connection, event, trial));
      break;
    case EventKind::kRunReady:
      if (IntOf(event, "rank") == 0) {
        Step(&trial->core, TrialInput::kReady);
        RETURN_IF_ERROR(connection->Run("UPDATE runs SET ready = ? WHERE trial = ? AND run = ?",
                                        {event.time, event.trial, Number(event.run)}));
        // It may be heard of before its launcher has looked.
        if (event.run == trial->core.run && trial->core.live && trial->running_since == 0) {
          RETURN_IF_ERROR(Began(connection, event.time, trial));
        }
      }
      break;
    case EventKind::kReport:
      RETURN_IF_ERROR(ApplyReport(connection, event, trial));
      break;
    case EventKind::kProgress:
      if (const Value* progress = event.body.Find("progress"); progress != nullptr) {
        trial->progress = progress->AsDouble();
      }
      break;
    case EventKind::kStatus:
      trial->status = TextOf(event, "status");
      break;
    case EventKind::kPreemptAcknowledged:
      Step(&trial->core, TrialInput::kAcknowledge);
      break;
    case EventKind::kSignalled:
      Step(&trial->core, TrialInput::kSignalled);
      break;
    case EventKind::kRunExited:
      when = EndOf(event);
      RETURN_IF_ERROR(ApplyRunExited(connection, event, trial));
      break;
    case EventKind::kRepositoryChosen:
      trial->core.run = std::max(trial->core.run, static_cast<std::uint64_t>(IntOf(event, "run")));
      break;
    case EventKind::kRetentionChanged: {
      const Value retention = ObjectOf(event, "retention");
      const auto policy = RetentionPolicyFromValue(retention);
      if (policy.ok()) trial->config.retention = *policy;
      trial->config_value = ToValue(trial->config);
      RETURN_IF_ERROR(connection->Run("UPDATE trials SET config = ? WHERE id = ?",
                                      {EncodeJson(trial->config_value), trial->id}));
      break;
    }
    default:
      RETURN_IF_ERROR(ApplyCheckpoint(connection, event, trial));
  }
  if (trial->core.state != before) {
    trial->sums_changed = true;
    if (Rests(trial->core.state) && !Rests(before)) trial->ended = when;
    if (!Rests(trial->core.state)) trial->ended = 0;
  }
  return Status::Ok();
}

Status EventTables::Create(Connection* connection, const Event& event, Trial* trial) {
  const Value config = ObjectOf(event, "config");
  const auto parsed = TrialConfigFromValue(config);
  if (!parsed.ok()) return Status::Ok();
  trial->known = true;
  trial->fresh = true;
  trial->dirty = true;
  trial->sums_changed = true;
  trial->names_known = true;
  trial->config = *parsed;
  trial->config_value = config;
  trial->parent_trial = TextOf(event, "parent_trial");
  if (const Value* parent = event.body.Find("parent/id"); parent != nullptr) {
    if (const std::string* id = parent->if_string()) trial->parent_checkpoint = *id;
  }
  trial->created = event.time;
  trial->core.max_restarts = parsed->max_restarts;
  trial->core.detached = parsed->detached;
  if (parsed->detached) trial->core.state = TrialState::kPaused;
  dirty_.insert(trial->id);
  return LoadExperiment(connection, trial);
}

Status EventTables::ApplyRunStarted(Connection* connection, const Event& event, Trial* trial) {
  const Value* from = event.body.Find("from");
  const Value point = from == nullptr ? Value() : *from;
  const auto start = StartPointFromValue(point);
  const bool own = start.ok() && GoesOn(TextOf(event, "resume_mode"), *start);
  const std::int64_t past = own ? (*start)->steps : kArchivesAll;
  Step(&trial->core, TrialInput::kRunStarted);
  trial->message.clear();
  // A process that was started by hand replaces another one, of which nothing was heard.
  RETURN_IF_ERROR(Ceased(connection, event.time, trial));
  RETURN_IF_ERROR(connection->Run(
      "INSERT INTO runs (trial, run, started, resume_mode, start_point, archives_past) VALUES "
      "(?, ?, ?, ?, ?, ?) ON CONFLICT (trial, run) DO NOTHING",
      {event.trial, Number(event.run), event.time, TextOf(event, "resume_mode"), EncodeJson(point),
       past}));
  trial->steps = own ? past : 0;
  trial->resumed_at = past;
  trial->started_from = start.ok() && *start ? (*start)->id : std::string();
  // Who joins runs already.
  if (trial->core.detached) RETURN_IF_ERROR(Began(connection, event.time, trial));
  return trial->reports == 0 ? Status::Ok() : Recount(connection, trial);
}

Status EventTables::ApplyRunBegan(Connection* connection, const Event& event) {
  if (TextOf(event, "what") != kRunBegan) return Status::Ok();  // another's: says nothing of trials
  ASSIGN_OR_RETURN(Trial * trial, Find(connection, event.trial));
  if (!trial->known || !trial->core.live ||
      trial->core.run != static_cast<std::uint64_t>(IntOf(event, "run"))) {
    return Status::Ok();
  }
  const std::int64_t time = IntOf(event, "time");
  return Began(connection, time > 0 ? std::min(time, event.time) : event.time, trial);
}

Result<EventTables::Running*> EventTables::RunningOf(Connection* connection, const Trial& trial) {
  if (!trial.experiment_id) return nullptr;
  const auto [at, fresh] = running_.try_emplace(*trial.experiment_id);
  if (fresh) {
    RETURN_IF_ERROR(connection->Query(
        "SELECT running, running_since, ran FROM experiments WHERE id = ?", {*trial.experiment_id},
        "iii", [&](const SqlRow& row) {
          at->second = {.trials = row.Int(0), .since = row.Int(1), .ran = row.Int(2)};
          return Status::Ok();
        }));
  }
  return &at->second;
}

Status EventTables::Began(Connection* connection, std::int64_t time, Trial* trial) {
  const bool running = trial->running_since != 0;
  if (running && trial->running_since <= time) return Status::Ok();
  ASSIGN_OR_RETURN(Running * experiment, RunningOf(connection, *trial));
  if (experiment != nullptr) {
    if (!running) ++experiment->trials;
    const bool first = experiment->trials == 1 && !running;
    experiment->since = first ? time : std::min(experiment->since, time);
    running_changed_.insert(*trial->experiment_id);
  }
  if (trial->started == 0 || trial->started == trial->running_since) trial->started = time;
  trial->running_since = time;
  trial->sums_changed = true;
  trial->dirty = true;
  dirty_.insert(trial->id);
  return connection->Run("UPDATE runs SET began = ? WHERE trial = ? AND run = ?",
                         {time, trial->id, Number(trial->core.run)});
}

Status EventTables::Ceased(Connection* connection, std::int64_t time, Trial* trial) {
  if (trial->running_since == 0) return Status::Ok();
  const std::int64_t began = std::exchange(trial->running_since, 0);
  trial->ran += std::max<std::int64_t>(0, time - began);
  trial->dirty = true;
  ASSIGN_OR_RETURN(Running * experiment, RunningOf(connection, *trial));
  if (experiment == nullptr) return Status::Ok();
  running_changed_.insert(*trial->experiment_id);
  if (--experiment->trials > 0) return Status::Ok();
  experiment->trials = 0;
  experiment->ran += std::max<std::int64_t>(0, time - std::exchange(experiment->since, 0));
  return Status::Ok();
}

Status EventTables::Recount(Connection* connection, Trial* trial) {
  const std::int64_t start = trial->steps;
  trial->latest = Value::Object{};
  trial->best.reset();
  trial->best_steps = 0;
  ASSIGN_OR_RETURN(const ArchiveRules rules, ArchiveRules::Load(connection, trial->id));
  // Blocks come group by group, each in order: the newest of a group is the last that counts.
  const BlockFilter filter{.trial = trial->id};
  const auto take = [&](const std::string& group, std::uint64_t run, const Value& body) {
    if (rules.Archives(group, run, StepsOf(body))) return;
    const Value* metrics = body.Find("metrics");
    if (metrics != nullptr) Consider(*metrics, group, StepsOf(body), trial);
  };
  RETURN_IF_ERROR(VisitReportBlocks(
      connection, filter, [&](const std::string& group, ReportBlock* block) -> Status {
        for (std::size_t i = 0; i < block->size(); ++i) {
          ASSIGN_OR_RETURN(const Value body, block->Body(i));
          take(group, static_cast<std::uint64_t>(block->run()[i]), body);
        }
        return Status::Ok();
      }));
  RETURN_IF_ERROR(
      VisitLooseReports(connection, filter, [&](const std::string& group, StoredReport report) {
        take(group, report.run, report.body);
        return Status::Ok();
      }));
  trial->steps = start;
  trial->sums_changed = true;
  trial->dirty = true;
  trial->recount = false;
  return Status::Ok();
}

void EventTables::Consider(const Value& metrics, const std::string& group, std::int64_t steps,
                           Trial* trial) {
  if (!metrics.is_object()) return;
  (*trial->latest.if_object())[group] = metrics;
  if (group != trial->metric_group || trial->metric.empty()) return;
  const auto score = MetricOf(metrics, trial->metric);
  if (!score || std::isnan(*score)) return;
  const bool better =
      !trial->best || (trial->smaller_is_better ? *score < *trial->best : *score > *trial->best);
  if (!better) return;
  trial->best = score;
  trial->best_steps = steps;
  trial->best_improved = true;
  trial->dirty = true;
}

Status EventTables::Repeat(Connection* connection, const Event& event, const std::string& group,
                           std::int64_t steps, Trial* trial) {
  // Whether the best was one of those that do not count any more is found out when all reports of
  // this transaction are in their table.
  if (group == trial->metric_group && trial->best && trial->best_steps == steps)
    trial->recount = true;
  return connection->Run(
      "INSERT INTO repeated_steps (trial, grp, steps, run) VALUES (?, ?, ?, ?) ON CONFLICT (trial, "
      "grp, steps) DO UPDATE SET run = excluded.run",
      {event.trial, group, steps, Number(event.run)});
}

Status EventTables::ApplyReport(Connection* connection, const Event& event, Trial* trial) {
  ++trial->reports;
  const std::string group = TextOf(event, "group");
  const std::int64_t steps = IntOf(event, "steps_completed");
  static const Value kNone = Value::Object{};
  const Value* const given = event.body.Find("metrics");
  const Value& metrics = given != nullptr && given->is_object() ? *given : kNone;
  trial->steps = std::max(trial->steps, steps);
  if (steps <= trial->resumed_at) {
    RETURN_IF_ERROR(Repeat(connection, event, group, steps, trial));
  }
  Consider(metrics, group, steps, trial);
  RETURN_IF_ERROR(AddNames(connection, group, metrics, trial));
  if (group != kScoreGroup) return Status::Ok();
  // A validation of the step that a checkpoint holds is the checkpoint's score: one of the run that
  // made it, or of the run that starts from it.
  std::vector<std::pair<std::int64_t, std::string>> scored;
  RETURN_IF_ERROR(connection->Query(
      "SELECT ordinal, metrics FROM checkpoints WHERE trial = ? AND steps = ? AND (run = ? OR (id "
      "= "
      "? AND id <> ''))",
      {event.trial, steps, Number(event.run), trial->started_from}, "it", [&](const SqlRow& row) {
        scored.emplace_back(row.Int(0), row.Text(1));
        return Status::Ok();
      }));
  for (const auto& [ordinal, text] : scored) {
    ASSIGN_OR_RETURN(Value values, DecodeJson(text));
    MergeMembers(metrics, &values);
    RETURN_IF_ERROR(connection->Run("UPDATE checkpoints SET metrics = ? WHERE ordinal = ?",
                                    {EncodeJson(values), ordinal}));
  }
  return Status::Ok();
}

Status EventTables::AddNames(Connection* connection, const std::string& group, const Value& metrics,
                             Trial* trial) {
  if (!trial->names_known) {
    RETURN_IF_ERROR(connection->Query("SELECT grp, name FROM metric_names WHERE trial = ?",
                                      {trial->id}, "tt", [&](const SqlRow& row) {
                                        trial->names.emplace(row.Text(0), row.Text(1));
                                        return Status::Ok();
                                      }));
    trial->names_known = true;
  }
  std::vector<std::string> names;
  AppendMetricNames(metrics, kMaxNames, &names);
  for (std::string& name : names) {
    if (trial->names.size() >= kMaxNames) break;
    const auto [at, fresh] = trial->names.emplace(group, std::move(name));
    if (!fresh) continue;
    RETURN_IF_ERROR(connection->Run(
        "INSERT INTO metric_names (trial, grp, name) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        {trial->id, at->first, at->second}));
  }
  return Status::Ok();
}

namespace {

/// What the end of a run was to its trial, whose state came of it.
std::string OutcomeOf(TrialState after, bool success, bool lost, bool stopped) {
  if (lost) return "lost";
  if (after == TrialState::kCanceled) return "canceled";
  // Activated again while it saved, it waits at once.
  if (after == TrialState::kPaused || (success && after == TrialState::kQueued)) return "paused";
  if (stopped) return "stopped";
  return success ? "completed" : "failed";
}

}  // namespace

Status EventTables::ApplyRunExited(Connection* connection, const Event& event, Trial* trial) {
  const bool stopped = BoolOf(event, "stopped");
  const bool lost = BoolOf(event, "lost");
  const bool success = IntOf(event, "code") == 0 && IntOf(event, "signal") == 0 && !lost;
  Step(&trial->core, stopped   ? TrialInput::kStopped
                     : success ? TrialInput::kExitSuccess
                               : TrialInput::kExitFailure);
  trial->message = TextOf(event, "message");
  RETURN_IF_ERROR(Ceased(connection, EndOf(event), trial));
  RETURN_IF_ERROR(connection->Run(
      "UPDATE runs SET ended = ?, code = ?, signal = ?, lost = ?, stopped = ?, outcome = ?, "
      "message = ? WHERE trial = ? AND run = ?",
      {EndOf(event), IntOf(event, "code"), IntOf(event, "signal"), Flag(lost), Flag(stopped),
       OutcomeOf(trial->core.state, success, lost, stopped), trial->message, event.trial,
       Number(event.run)}));
  RETURN_IF_ERROR(connection->Run(
      "UPDATE checkpoints SET state = 'ERROR', reason = ? WHERE trial = ? AND state = 'ACTIVE'",
      {std::string("the run ended before it was completed"), event.trial}));
  return connection->Run(
      "UPDATE checkpoints SET awaits_score = 0 WHERE trial = ? AND awaits_score = 1",
      {event.trial});
}

Status EventTables::Flush(Connection* connection) {
  for (const std::string& id : dirty_) {
    Trial& trial = trials_.find(id)->second;
    if (trial.checkpoints_changed) {
      RETURN_IF_ERROR(connection->Query(
          "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM checkpoints WHERE trial = "
          "? AND state = 'COMPLETED'",
          {id}, "ii", [&](const SqlRow& row) {
            trial.checkpoints = row.Uint(0);
            trial.checkpoint_bytes = row.Uint(1);
            return Status::Ok();
          }));
      trial.sums_changed = true;
    }
    if (trial.recount) RETURN_IF_ERROR(Recount(connection, &trial));
    RETURN_IF_ERROR(Write(connection, &trial));
  }
  RETURN_IF_ERROR(WriteExperiments(connection));
  RETURN_IF_ERROR(WriteRunning(connection));
  for (const std::string& id : dirty_) {
    Trial& trial = trials_.find(id)->second;
    trial.fresh = trial.dirty = trial.checkpoints_changed = false;
    trial.sums_changed = trial.best_improved = false;
  }
  dirty_.clear();
  return Status::Ok();
}

Status EventTables::Write(Connection* connection, Trial* trial) {
  if (!trial->dirty) {
    // What most commits are full of: no index has these columns.
    return connection->Run(
        "UPDATE trials SET steps = ?, latest_metrics = ?, reports = ? WHERE id = ?",
        {trial->steps, EncodeJson(trial->latest), Number(trial->reports), trial->id});
  }
  const Cell best = trial->best ? Cell(*trial->best) : Cell();
  if (trial->fresh) {
    const auto number = ExperimentNumber(trial->id);
    RETURN_IF_ERROR(connection->Run(
        "INSERT INTO trials (id, number, experiment, experiment_id, state, core, config, "
        "parent_trial, parent_checkpoint, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        {trial->id, number ? Cell(*number) : Cell(), trial->config.experiment,
         trial->experiment_id ? Cell(*trial->experiment_id) : Cell(),
         std::string(TrialStateName(trial->core.state)), EncodeJson(CoreToValue(trial->core)),
         EncodeJson(trial->config_value), trial->parent_trial, trial->parent_checkpoint,
         trial->created}));
  }
  return connection->Run(
      "UPDATE trials SET state = ?, core = ?, started = ?, ended = ?, progress = ?, status = ?, "
      "message = ?, steps = ?, latest_metrics = ?, best_metric = ?, best_steps = ?, reports = ?, "
      "checkpoints = ?, checkpoint_bytes = ?, ran = ?, running_since = ? WHERE id = ?",
      {std::string(TrialStateName(trial->core.state)), EncodeJson(CoreToValue(trial->core)),
       trial->started, trial->ended, trial->progress, trial->status, trial->message, trial->steps,
       EncodeJson(trial->latest), best, trial->best_steps, Number(trial->reports),
       Number(trial->checkpoints), Number(trial->checkpoint_bytes), trial->ran,
       trial->running_since, trial->id});
}

Status EventTables::WriteRunning(Connection* connection) {
  for (const std::int64_t id : running_changed_) {
    const Running& running = running_[id];
    RETURN_IF_ERROR(connection->Run(
        "UPDATE experiments SET running = ?, running_since = ?, ran = ? WHERE id = ?",
        {running.trials, running.since, running.ran, id}));
  }
  running_changed_.clear();
  return Status::Ok();
}

Status EventTables::WriteExperiments(Connection* connection) {
  std::set<std::int64_t> summed;
  for (const std::string& id : dirty_) {
    const Trial& trial = trials_.find(id)->second;
    if (trial.experiment_id && trial.sums_changed) summed.insert(*trial.experiment_id);
  }
  for (const std::int64_t id : summed) {
    RETURN_IF_ERROR(connection->Run(
        "UPDATE experiments SET "
        "trials = (SELECT COUNT(*) FROM trials t WHERE t.experiment_id = experiments.id), "
        "started = (SELECT COALESCE(MIN(t.started), 0) FROM trials t WHERE t.experiment_id = "
        "experiments.id AND t.started > 0), "
        "checkpoints = (SELECT CAST(COALESCE(SUM(t.checkpoints), 0) AS BIGINT) FROM trials t "
        "WHERE t.experiment_id = experiments.id), "
        "checkpoint_bytes = (SELECT CAST(COALESCE(SUM(t.checkpoint_bytes), 0) AS BIGINT) FROM "
        "trials t WHERE t.experiment_id = experiments.id), "
        "best_metric = (SELECT CASE WHEN experiments.smaller_is_better = 1 THEN "
        "MIN(t.best_metric) ELSE MAX(t.best_metric) END FROM trials t WHERE t.experiment_id = "
        "experiments.id) WHERE id = ?",
        {id}));
    RETURN_IF_ERROR(connection->Run(
        "UPDATE experiments SET best_trial = COALESCE((SELECT t.id FROM trials t WHERE "
        "t.experiment_id = experiments.id AND t.best_metric = experiments.best_metric ORDER BY "
        "t.number, t.id LIMIT 1), '') WHERE id = ?",
        {id}));
  }
  for (const std::string& id : dirty_) {
    const Trial& trial = trials_.find(id)->second;
    if (!trial.best_improved || !trial.best || !trial.experiment_id ||
        summed.contains(*trial.experiment_id)) {
      continue;
    }
    RETURN_IF_ERROR(connection->Run(
        trial.smaller_is_better
            ? "UPDATE experiments SET best_metric = ?, best_trial = ? WHERE id = ? AND "
              "(best_metric IS NULL OR best_metric > ?)"
            : "UPDATE experiments SET best_metric = ?, best_trial = ? WHERE id = ? AND "
              "(best_metric IS NULL OR best_metric < ?)",
        {*trial.best, id, *trial.experiment_id, *trial.best}));
  }
  return Status::Ok();
}

}  // namespace cairn

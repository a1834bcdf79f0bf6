#include "master/api_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/experiment_states.h"

namespace cairn::master {
namespace {

Value Number(double number) { return number; }

/// How long something ran: a trial, or an experiment with at least one trial that did.
template <typename Row>
void PutDuration(const Row& row, std::int64_t now, Value::Object* out) {
  const std::int64_t live =
      row.running_since == 0 ? 0 : std::max<std::int64_t>(0, now - row.running_since);
  (*out)["started"] = Seconds(row.started);
  (*out)["ended"] = Seconds(row.ended);
  (*out)["ran"] = static_cast<double>(row.ran) / 1e9;
  (*out)["running_since"] = Seconds(row.running_since);
  (*out)["duration"] =
      row.started == 0 ? Value() : Value(static_cast<double>(row.ran + live) / 1e9);
}

Value TextOrNull(const std::string& text) { return text.empty() ? Value() : Value(text); }

Value States(const std::map<std::string, std::uint64_t>& states) {
  Value::Object out;
  for (const auto& [state, count] : states) {
    if (count > 0) out[state] = count;
  }
  return out;
}

Value ParentOf(const ApiParts& parts, const std::string& trial, const std::string& checkpoint,
               bool experiment) {
  if (trial.empty()) return {};
  Value::Object out{{"trial", trial}, {"checkpoint", checkpoint}};
  if (experiment) out["experiment"] = parts.experiments->ExperimentOfTrial(trial);
  if (const auto row = parts.catalog->trials().GetCheckpoint(checkpoint); row.ok()) {
    out["steps_completed"] = row->record.steps;
  }
  return out;
}

std::string MetadataSetting(const std::string& checkpoint) {
  return "checkpoint-metadata/" + checkpoint;
}

/// What the config says that is shown beside it.
void PutConfig(const Experiment& experiment, bool whole, Value::Object* out) {
  const auto config = ExperimentFromValue(experiment.config);
  if (!config.ok()) return;
  (*out)["searcher"] = Value::Object{{"name", SearcherName(config->searcher.kind)},
                                     {"metric", config->searcher.metric},
                                     {"smaller_is_better", config->searcher.smaller_is_better},
                                     {"max_trials", config->searcher.max_trials}};
  (*out)["slots_per_trial"] = config->slots;
  (*out)["priority"] = config->priority;
  (*out)["policy"] = ToJson(config->retention);
  if (whole) (*out)["config"] = WithDefaults(*config);
}

}  // namespace

Value Seconds(std::int64_t nanos) {
  return nanos == 0 ? Value() : Value(static_cast<double>(nanos) / 1e9);
}

Value ToJson(const User& user) {
  return Value::Object{{"username", user.name},
                       {"role", user.role},
                       {"active", user.active},
                       {"has_password", !user.password_hash.empty()},
                       {"created", static_cast<double>(user.created) / 1e9}};
}

Value ToJson(const Token& token, const std::string& user) {
  return Value::Object{{"id", std::to_string(token.id)},
                       {"name", token.label},
                       {"user", user},
                       {"created", static_cast<double>(token.created) / 1e9},
                       {"expires", Seconds(token.expires)},
                       {"last_used", Seconds(token.last_used)}};
}

Value ToJson(const RetentionPolicy& policy) {
  const auto number = [](const std::optional<std::uint64_t>& n) { return n ? Value(*n) : Value(); };
  return Value::Object{
      {"keep_last", number(policy.keep_last)},
      {"keep_best", number(policy.keep_best)},
      {"experiment_best", number(policy.experiment_best)},
      {"keep_every", number(policy.keep_every)},
      {"max_bytes", number(policy.max_bytes)},
      {"experiment_bytes", number(policy.experiment_bytes)},
      {"max_age_seconds",
       policy.max_age ? Value(static_cast<double>(policy.max_age->count()) / 1e3) : Value()},
      {"score", policy.score},
      {"order", policy.maximize ? "max" : "min"}};
}

Result<RetentionPolicy> PolicyFromBody(const ApiCall& call, const SearcherConfig& searcher) {
  Value body = call.body;
  auto& members = *body.if_object();
  // Called by its unit here, and with a unit in files.
  if (const auto found = members.find("max_age_seconds"); found != members.end()) {
    if (!found->second.is_null() && !found->second.is_number()) {
      return InvalidArgumentError("max_age_seconds must be a number");
    }
    Value age = found->second;
    members.erase(found);
    if (members.contains("max_age")) return InvalidArgumentError("\"max_age\" is not known");
    members["max_age"] = std::move(age);
  } else if (members.contains("max_age")) {
    return InvalidArgumentError("\"max_age\" is not known; did you mean \"max_age_seconds\"?");
  }
  return ParseRetention(ConfigNode::FromValue(body), searcher);
}

Value ToJson(const ApiParts& parts, const Experiment& experiment, bool whole) {
  Value::Object out{
      {"id", experiment.id == 0 ? "" : std::to_string(experiment.id)},
      {"name", experiment.name},
      {"description", experiment.description},
      {"state", experiment.state},
      {"message", experiment.message},
      {"owner", experiment.owner},
      {"labels", Value::List(experiment.labels.begin(), experiment.labels.end())},
      {"archived", experiment.archived},
      {"progress", experiment.progress},
      {"created", static_cast<double>(experiment.created) / 1e9},
      {"trials", experiment.trials},
      {"trial_states", States(experiment.trials_by_state)},
      {"trial", Value()},
      {"best", Value()},
      {"checkpoints", experiment.checkpoints},
      {"checkpoint_bytes", experiment.checkpoint_bytes},
      {"storage", Located(experiment.storage, parts.data_directory)},
      {"parent", ParentOf(parts, experiment.parent_trial, experiment.parent_checkpoint, true)},
      {"code", experiment.code_digest.empty()
                   ? Value()
                   : Value(Value::Object{{"code", experiment.code_digest},
                                         {"bytes", experiment.code_bytes}})}};
  PutDuration(experiment, parts.clock->WallNanos(), &out);
  if (experiment.trials == 1) {
    const auto page =
        parts.catalog->trials().List({.experiment = std::to_string(experiment.id), .limit = 1});
    if (page.ok() && !page->items.empty()) out["trial"] = page->items.front().id;
  }
  if (experiment.best_metric && !experiment.best_trial.empty()) {
    out["best"] = Value::Object{{"trial", experiment.best_trial},
                                {"metric", experiment.metric},
                                {"value", Number(*experiment.best_metric)}};
  }
  if (whole) {
    out["notes"] = experiment.notes;
    PutConfig(experiment, whole, &out);
  }
  return out;
}

Value ToJson(const ApiParts& parts, const TrialRow& trial) {
  std::string_view state = TrialStateName(trial.core.state);
  Value::Object out{
      {"id", trial.id},
      {"experiment", trial.experiment},
      {"message", trial.message},
      {"status", trial.status},
      {"hparams", trial.hparams},
      // One that ended by itself is done, whatever it said last.
      {"progress", trial.core.state == TrialState::kCompleted ? 1.0 : trial.progress},
      {"steps_completed", trial.steps},
      {"run_id", trial.core.run},
      {"restarts", trial.core.restarts},
      {"max_restarts", trial.core.max_restarts},
      {"created", static_cast<double>(trial.created) / 1e9},
      {"latest_metrics", trial.latest_metrics},
      {"checkpoints", trial.checkpoints},
      {"checkpoint_bytes", trial.checkpoint_bytes},
      {"detached", trial.core.detached},
      {"latest_checkpoint", Value()},
      {"best", Value()},
      {"resumes_from_step", Value()},
      {"preemption_deadline", Value()},
      {"resume_mode", ""},
      {"parent", ParentOf(parts, trial.parent_trial, trial.parent_checkpoint, false)}};
  PutDuration(trial, parts.clock->WallNanos(), &out);
  if (const auto view = parts.engine->Summary(trial.id); view.ok()) {
    const TrialRecord& record = view->record;
    state = TrialStateName(view->state);
    out["resume_mode"] = record.resume_mode;
    out["repository"] = view->repository;
    if (!view->waits_for.empty()) out["message"] = WaitMessage(view->waits_for);
    out["world_size"] = record.config.world_size;
    out["slots"] = record.config.slots;
    out["priority"] = record.config.priority;
    out["external_id"] = record.config.external_id;
    if (const CheckpointRecord* newest = record.Newest(); newest != nullptr) {
      out["latest_checkpoint"] =
          Value::Object{{"id", newest->id}, {"steps_completed", newest->steps}};
    }
    const TrialState now_state = record.core.state;
    const bool asked = now_state == TrialState::kPausing || now_state == TrialState::kStopping;
    if ((asked || now_state == TrialState::kPaused) && view->resumes_from_step >= 0) {
      out["resumes_from_step"] = view->resumes_from_step;
    }
    if (asked && record.asked_time != 0) {
      out["preemption_deadline"] = static_cast<double>(record.asked_time) / 1e9 +
                                   static_cast<double>(record.deadline_ms) / 1e3;
    }
  }
  out["state"] = state;
  if (trial.best_metric) {
    std::string metric;
    if (const auto id = ExperimentId(trial.experiment); id.ok()) {
      if (const auto experiment = parts.catalog->experiments().Get(*id); experiment.ok()) {
        metric = experiment->metric;
      }
    }
    out["best"] = Value::Object{{"trial", trial.id},
                                {"metric", metric},
                                {"value", Number(*trial.best_metric)},
                                {"steps_completed", trial.best_steps}};
  }
  return out;
}

Value ToJson(const RunRow& run) {
  const bool live = run.ended == 0;
  Value from;
  if (run.from) {
    from = Value::Object{{"id", run.from->id}, {"steps_completed", run.from->steps}};
  }
  std::string outcome = run.outcome;
  if (!live && outcome.empty()) {  // recorded by an older version
    outcome = run.lost                           ? "lost"
              : run.stopped                      ? "stopped"
              : run.code == 0 && run.signal == 0 ? "completed"
                                                 : "failed";
  }
  return Value::Object{
      {"run_id", run.run},
      {"resume_mode", run.resume_mode},
      {"from", from},
      {"submitted", static_cast<double>(run.started) / 1e9},
      {"started", Seconds(run.began)},
      {"ready", Seconds(run.ready)},
      {"ended", Seconds(run.ended)},
      {"live", live},
      {"exit_code", live || run.signal != 0 || run.lost ? Value() : Value(run.code)},
      {"exit_signal", run.signal == 0 ? Value() : Value(run.signal)},
      {"outcome", outcome},
      {"message", run.message}};
}

Result<Value> MetadataOf(const ApiParts& parts, const CheckpointRecord& record) {
  if (record.id.empty()) return record.metadata;
  ASSIGN_OR_RETURN(const auto text, parts.catalog->GetSetting(MetadataSetting(record.id)));
  if (!text) return record.metadata;
  return DecodeJson(*text);
}

Status SetMetadata(const ApiParts& parts, const CheckpointRecord& record, const Value& metadata) {
  return parts.catalog->SetSetting(MetadataSetting(record.id), EncodeJson(metadata));
}

Value ToJson(const ApiParts& parts, const CheckpointRow& row) {
  const CheckpointRecord& record = row.record;
  Value::Object out{{"id", record.id},
                    {"registration", record.registration},
                    {"trial", row.trial},
                    {"experiment", row.experiment},
                    {"state", CheckpointStateName(record.state)},
                    {"reason", record.reason},
                    {"steps_completed", record.steps},
                    {"ranks", record.ranks},
                    {"kind", row.kind.empty() ? "full" : row.kind},
                    {"base", TextOrNull(row.base)},
                    {"metrics", record.metrics},
                    {"score", Value()},
                    {"metadata", record.metadata},
                    {"bytes", record.bytes},
                    {"new_bytes", Value()},
                    {"pinned", record.pinned},
                    {"latest", false},
                    {"run_id", record.run},
                    {"time", static_cast<double>(record.time) / 1e9},
                    {"generation", record.generation},
                    {"sequence", record.sequence},
                    {"path", record.path}};
  if (auto metadata = MetadataOf(parts, record); metadata.ok()) {
    out["metadata"] = *std::move(metadata);
  }
  if (const auto view = parts.engine->Summary(row.trial); view.ok()) {
    const auto start = view->record.NextStart(view->repository);
    out["latest"] = start && !record.id.empty() && start->id == record.id;
    out["repository"] = view->repository;
    // What a run said of it is its name: the place is the repository, which may have moved.
    if (!record.path.empty()) {
      out["path"] =
          fmt::format("{}/{}", view->repository, record.path.substr(record.path.rfind('/') + 1));
    }
    if (record.state == CheckpointState::kCompleted) {
      if (const auto fresh = parts.new_bytes->Of(record.id)) out["new_bytes"] = *fresh;
    }
    const std::string& score = view->record.config.retention.score;
    if (const Value* found = score.empty() ? nullptr : record.metrics.Find(score)) {
      out["score"] = *found;
    }
  }
  return out;
}

void LookUpNewBytes(const ApiParts& parts, std::span<const CheckpointRow> rows) {
  std::vector<NewBytes::Wanted> wanted;
  for (const CheckpointRow& row : rows) {
    if (row.record.state != CheckpointState::kCompleted) continue;
    const auto view = parts.engine->Summary(row.trial);
    if (view.ok()) wanted.push_back({row.trial, view->repository, row.record.id});
  }
  parts.new_bytes->Want(wanted);
}

Result<ApiAnswer> ExperimentAnswer(const ApiParts& parts, std::int64_t id, int status) {
  ASSIGN_OR_RETURN(const Experiment experiment, parts.catalog->experiments().Get(id));
  return ApiAnswer{.status = status, .body = ToJson(parts, experiment, true)};
}

Result<ApiAnswer> TrialAnswer(const ApiParts& parts, const std::string& trial) {
  ASSIGN_OR_RETURN(const TrialRow row, parts.catalog->trials().Get(trial));
  return ApiAnswer{.body = ToJson(parts, row)};
}

namespace {

/// Sorted here: which metric is the score, and which way it counts, is the trial's own. Those
/// without one come last.
Result<Page<CheckpointRow>> CheckpointsByScore(const ApiParts& parts, CheckpointQuery query) {
  struct Scored {
    std::optional<double> score;  // the greater the better
    CheckpointRow row;
  };
  const std::uint64_t offset = std::exchange(query.offset, 0);
  const std::uint64_t limit = std::exchange(query.limit, kMaxPage);
  const bool best_first = std::exchange(query.descending, true);
  std::map<std::string, RetentionPolicy> policies;
  std::vector<Scored> all;
  for (;; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(Page<CheckpointRow> page, parts.catalog->trials().Checkpoints(query));
    const std::size_t count = page.items.size();
    for (CheckpointRow& row : page.items) {
      const auto [policy, fresh] = policies.try_emplace(row.trial);
      if (fresh) {
        if (const auto view = parts.engine->Summary(row.trial); view.ok()) {
          policy->second = view->record.config.retention;
        }
      }
      Scored one;
      const std::string& name = policy->second.score;
      const Value* value = name.empty() ? nullptr : row.record.metrics.Find(name);
      if (value != nullptr && value->is_number() && !std::isnan(value->AsDouble())) {
        one.score = policy->second.maximize ? value->AsDouble() : -value->AsDouble();
      }
      one.row = std::move(row);
      all.push_back(std::move(one));
    }
    if (count < kMaxPage) break;
  }
  std::ranges::stable_sort(all, [&](const Scored& a, const Scored& b) {
    if (!a.score || !b.score) return a.score.has_value() && !b.score.has_value();
    return best_first ? *a.score > *b.score : *a.score < *b.score;
  });
  Page<CheckpointRow> out{.items = {}, .total = all.size()};
  for (std::uint64_t i = offset; i < std::min<std::uint64_t>(offset + limit, all.size()); ++i) {
    out.items.push_back(std::move(all[i].row));
  }
  return out;
}

}  // namespace

Result<ApiAnswer> CheckpointPage(const ApiParts& parts, const ApiCall& call,
                                 CheckpointQuery query) {
  QueryReader reader(call);
  std::vector<std::string_view> states;
  for (const CheckpointState state : {CheckpointState::kActive, CheckpointState::kCompleted,
                                      CheckpointState::kDeleted, CheckpointState::kError}) {
    states.push_back(CheckpointStateName(state));
  }
  query.states = reader.Words("state", states);
  if (query.states.empty()) query.states = {"COMPLETED"};
  const std::string sort =
      reader.Word("sort", {"time", "steps_completed", "bytes", "score"}, "time");
  query.sort = sort == "steps_completed" ? "steps" : sort == "score" ? "time" : sort;
  query.descending = reader.Word("order", {"asc", "desc"}, "desc") == "desc";
  reader.Page(&query.offset, &query.limit);
  RETURN_IF_ERROR(reader.status());
  Page<CheckpointRow> page;
  if (sort == "score") {
    ASSIGN_OR_RETURN(page, CheckpointsByScore(parts, query));
  } else {
    ASSIGN_OR_RETURN(page, parts.catalog->trials().Checkpoints(query));
  }
  LookUpNewBytes(parts, page.items);
  Value::List items;
  for (const CheckpointRow& row : page.items) items.push_back(ToJson(parts, row));
  return ApiAnswer{.body = Value::Object{{"checkpoints", std::move(items)},
                                         {"total", page.total},
                                         {"limit", query.limit},
                                         {"offset", query.offset}}};
}

Result<ApiAnswer> TrialPage(const ApiParts& parts, const ApiCall& call, std::string experiment,
                            bool descending) {
  QueryReader reader(call);
  TrialQuery query{.experiment = std::move(experiment), .of_deleted = false};
  query.states = reader.TrialStates();
  const std::string sort = reader.Word(
      "sort", {"id", "state", "progress", "best", "steps_completed", "created", "duration"}, "id");
  // Without an order the best comes first, whether that is the smallest or the largest.
  const bool ordered = call.query.contains("order");
  query.sort = sort == "best"              ? (ordered ? "best_metric" : "best")
               : sort == "steps_completed" ? "steps"
               : sort == "created"         ? "id"
                                           : sort;
  query.descending = reader.Word("order", {"asc", "desc"}, descending ? "desc" : "asc") == "desc";
  query.now = parts.clock->WallNanos();
  const std::string sparkline = reader.Text("sparkline", 256);
  reader.Page(&query.offset, &query.limit);
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const Page<TrialRow> page, parts.catalog->trials().List(query));
  Value::List items;
  for (const TrialRow& row : page.items) {
    Value item = ToJson(parts, row);
    if (!sparkline.empty()) {
      Value::List points;
      const auto series =
          parts.catalog->metrics().Series({.trial = row.id, .names = {sparkline}}, 50);
      if (series.ok() && !series->empty()) {
        for (const SeriesPoint& point : series->front().points) {
          points.emplace_back(Value::List{point.steps, Number(point.value)});
        }
      }
      (*item.if_object())["sparkline"] = std::move(points);
    }
    items.push_back(std::move(item));
  }
  return ApiAnswer{.body = Value::Object{{"trials", std::move(items)},
                                         {"total", page.total},
                                         {"limit", query.limit},
                                         {"offset", query.offset}}};
}

}  // namespace cairn::master

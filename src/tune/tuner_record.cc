#include "tune/tuner_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

std::vector<std::string> TextsOf(const Value& object, std::string_view key) {
  std::vector<std::string> texts;
  const Value* value = object.Find(key);
  if (value == nullptr || !value->is_list()) return texts;
  for (const Value& item : *value->if_list()) {
    if (const std::string* text = item.if_string()) texts.push_back(*text);
  }
  return texts;
}

Value MetricsOf(const Event& event) {
  const Value* metrics = event.body.Find("metrics");
  Value result = metrics == nullptr ? Value(Value::Object{}) : *metrics;
  RestoreNonFinite(&result);
  return result;
}

}  // namespace

Decision TuneTrial::DecidedAt(std::int64_t at) const {
  const auto found = decided.find(at);
  return found == decided.end() ? Decision{} : found->second;
}

Value ToValue(const Decision& decision) {
  const char* action = decision.action == TrialAction::kStop    ? "stop"
                       : decision.action == TrialAction::kPause ? "pause"
                                                                : "continue";
  return Value::Object{{"action", action}, {"checkpoint", decision.checkpoint}};
}

Decision DecisionFromValue(const Value* value) {
  if (value == nullptr || !value->is_object()) return {};
  const std::string action = TextOf(*value, "action");
  return {.action = action == "stop"    ? TrialAction::kStop
                    : action == "pause" ? TrialAction::kPause
                                        : TrialAction::kContinue,
          .checkpoint = BoolOf(*value, "checkpoint")};
}

Value ToValue(const Choice& choice) {
  const char* kind = choice.kind == Choice::Kind::kRun    ? "run"
                     : choice.kind == Choice::Kind::kStop ? "stop"
                                                          : "none";
  Value::Object value{{"kind", kind}, {"trial", choice.trial}};
  if (!choice.donor.empty()) {
    value["donor"] = choice.donor;
    value["config"] = choice.config;
  }
  return value;
}

Choice ChoiceFromValue(const Value& value) {
  const std::string kind = TextOf(value, "kind");
  Choice choice{.kind = kind == "run"    ? Choice::Kind::kRun
                        : kind == "stop" ? Choice::Kind::kStop
                                         : Choice::Kind::kNone,
                .trial = TextOf(value, "trial"),
                .donor = TextOf(value, "donor")};
  if (const Value* config = value.Find("config")) choice.config = *config;
  return choice;
}

TuneTrial* TunerRecord::Find(std::string_view id) {
  const auto found = trials_.find(id);
  return found == trials_.end() ? nullptr : &found->second;
}

void TunerRecord::SetPhase(TuneTrial* trial, TunePhase phase) {
  std::erase(paused_, trial->id);
  std::erase(pending_, trial->id);
  if (phase == TunePhase::kPaused) paused_.push_back(trial->id);
  trial->phase = phase;
}

void TunerRecord::CountTime(const Event& event) {
  // Between two lives nothing was at work.
  if (event.kind == EventKind::kNote && TextOf(event.body, "what") == "opened") last_time_ = 0;
  // Clocks may be set back; what passed then is not known, and counts as nothing.
  if (event.time > 0) {
    if (last_time_ > 0 && event.time > last_time_) worked_ns_ += event.time - last_time_;
    last_time_ = event.time;
  }
}

Status TunerRecord::Apply(Event&& event) {
  if (event.kind != EventKind::kReport) return Apply(std::as_const(event));
  CountTime(event);
  Value metrics = TakeMember(&event.body, "metrics");
  if (metrics.is_null()) metrics = Value::Object{};
  RestoreNonFinite(&metrics);
  return ApplyReport(event, std::move(metrics));
}

Status TunerRecord::ApplyReport(const Event& event, Value metrics) {
  TuneTrial* trial = Find(event.trial);
  if (trial == nullptr) return CorruptionError("a report of no trial of the tuner");
  const std::int64_t at = IntOf(event.body, "steps_completed");
  trial->last_result = std::move(metrics);
  if (at <= trial->iteration) return Status::Ok();
  trial->iteration = at;
  const Decision decision = DecisionFromValue(event.body.Find("decision"));
  if (decision != Decision{}) trial->decided[at] = decision;
  return Status::Ok();
}

Status TunerRecord::Apply(const Event& event) {
  CountTime(event);
  if (event.kind == EventKind::kNote) return ApplyNote(event);
  TuneTrial* trial = Find(event.trial);
  switch (event.kind) {
    case EventKind::kTrialCreated:
      if (trial != nullptr) trial->created = true;
      return Status::Ok();
    case EventKind::kReport:
      return ApplyReport(event, MetricsOf(event));
    case EventKind::kRunStarted:
      if (trial != nullptr) trial->run = std::max(trial->run, event.run);
      return Status::Ok();
    case EventKind::kCheckpointCompleted:
      if (trial == nullptr || IntOf(event.body, "generation") == 0) return Status::Ok();
      if (event.run <= trial->donor_after_run) return Status::Ok();
      trial->donor.clear();
      trial->donor_checkpoint.clear();
      return Status::Ok();
    default:
      return Status::Ok();
  }
}

Status TunerRecord::ApplyNote(const Event& event) {
  const std::string what = TextOf(event.body, "what");
  if (what == "experiment") {
    const Value* description = event.body.Find("description");
    description_ = description == nullptr ? Value() : *description;
    stopped_ = false;
    if (BoolOf(event.body, "extends")) {
      const std::vector<std::string> done = TextsOf(event.body, "except");
      for (auto& [id, trial] : trials_) {
        if (trial.phase != TunePhase::kEnded || trial.failed) continue;
        trial.extending = std::ranges::find(done, id) == done.end();
      }
    }
    return Status::Ok();
  }
  if (what == "stopped") {
    stopped_ = true;
    return Status::Ok();
  }
  if (what == "opened") return Status::Ok();  // Apply has seen it
  if (what == "suggest") {
    TuneTrial trial{.id = event.trial, .number = order_.size()};
    if (const Value* config = event.body.Find("config")) trial.config = *config;
    RestoreNonFinite(&trial.config);
    if (!trials_.emplace(event.trial, std::move(trial)).second) {
      return CorruptionError(fmt::format("trial {} was suggested twice", event.trial));
    }
    order_.push_back(event.trial);
    pending_.push_back(event.trial);
    return Status::Ok();
  }
  TuneTrial* trial = Find(event.trial);
  if (trial == nullptr) {
    return CorruptionError(fmt::format("a note \"{}\" of no trial ({})", what, event.trial));
  }
  if (what == "choose") {
    const Value* value = event.body.Find("choice");
    const Choice choice = value == nullptr ? Choice{} : ChoiceFromValue(*value);
    if (choice.kind == Choice::Kind::kStop) {
      SetPhase(trial, TunePhase::kEnded);
    } else {
      SetPhase(trial, TunePhase::kRunning);
    }
    const std::string checkpoint = TextOf(event.body, "checkpoint");
    if (!choice.donor.empty() && !checkpoint.empty()) {
      trial->former.emplace_back(trial->run, std::exchange(trial->config, choice.config));
      trial->donor = choice.donor;
      trial->donor_checkpoint = checkpoint;
      trial->donor_after_run = trial->run;
      // From here on it is a continuation of the other one: what it reports beyond is new.
      trial->iteration = IntOf(event.body, "iteration");
      trial->decided.erase(trial->decided.upper_bound(trial->iteration), trial->decided.end());
      trial->decided.erase(trial->iteration);
    } else {
      trial->decided.erase(trial->iteration);  // the pause is over
    }
  } else if (what == "paused") {
    SetPhase(trial, TunePhase::kPaused);
  } else if (what == "failure") {
    trial->error = TextOf(event.body, "error");
  } else if (what == "end") {
    SetPhase(trial, TunePhase::kEnded);
    trial->failed = BoolOf(event.body, "error");
    if (!trial->failed) trial->error.clear();
  } else if (what == "resume") {
    SetPhase(trial, TunePhase::kRunning);
    trial->failed = false;
    trial->extending = false;
    trial->error.clear();
    trial->restarting = BoolOf(event.body, "restart");
    if (trial->restarting) {
      trial->iteration = 0;
      trial->decided.clear();
      trial->last_result = Value();
      trial->donor.clear();
    } else {
      trial->decided.erase(trial->iteration);
    }
  } else if (what == "restarted") {
    trial->restarting = false;
  } else {
    return UnimplementedError(
        fmt::format("a note \"{}\": the experiment was written by a newer program", what));
  }
  return Status::Ok();
}

Status ReplayToPolicy(const Event& event, TunerRecord* record, TunePolicy* policy) {
  TuneTrial* trial = record->Find(event.trial);
  if (event.kind == EventKind::kReport && trial != nullptr) {
    if (IntOf(event.body, "steps_completed") <= trial->iteration) return Status::Ok();
    // What it answers does not matter: what was decided then counts. (They differ for a stopper by
    // time, after an extension, and for a user's policy with randomness of its own.)
    return policy->OnResult(event.trial, MetricsOf(event)).status();
  }
  if (event.kind != EventKind::kNote) return Status::Ok();
  const std::string what = TextOf(event.body, "what");
  if (what == "suggest") {
    const Value* config = event.body.Find("config");
    Value given = config == nullptr ? Value(Value::Object{}) : *config;
    RestoreNonFinite(&given);
    return policy->OnTrialAdd(event.trial, given);
  }
  if (what == "choose") {
    const std::vector<std::string> pending = TextsOf(event.body, "pending");
    const std::vector<std::string> paused = TextsOf(event.body, "paused");
    const auto again = policy->Choose(
        {.pending = pending, .paused = paused, .more_to_come = BoolOf(event.body, "more")});
    RETURN_IF_ERROR(again.status());
    const Value* was = event.body.Find("choice");
    if (was != nullptr && !TextOf(*was, "donor").empty() &&
        TextOf(event.body, "checkpoint").empty() && trial != nullptr) {
      return policy->SetConfig(event.trial, trial->config);  // the donor had nothing to give
    }
    return Status::Ok();
  }
  if (what == "resume" && BoolOf(event.body, "restart")) return policy->OnRestart(event.trial);
  if (what == "end" && trial != nullptr) {
    return policy->OnEnd(event.trial, trial->last_result, BoolOf(event.body, "error"));
  }
  return Status::Ok();
}

}  // namespace cairn::tune

// What the workers of an experiment send, and what becomes of it. All on the tuner's one thread,
// which takes the messages in the order in which they came (tuner.cc).
#include <fmt/format.h>

#include <algorithm>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/tuner.h"
#include "tune/value_members.h"

namespace cairn::tune {

Status Tuner::OnBegin(const Message& message) {
  TuneTrial* trial = record_.Find(message.key.trial);
  if (trial == nullptr) {
    message.done(NotFoundError("no trial " + message.key.trial));
    return Status::Ok();
  }
  runs_[trial->id] = Run{.number = message.key.run};
  RETURN_IF_ERROR(
      Apply(trial->id, EventKind::kRunStarted, Value(Value::Object{}), message.key.run));
  engine_->Ready(message.key, Value::Object{{"rank", 0}, {"pid", IntOf(message.body, "pid")}},
                 [](const Result<Value>&) {});
  Value::Object answer{{"trial_id", trial->id},
                       {"number", trial->number},
                       {"config", trial->config},
                       {"reported", trial->iteration},
                       {"last_result", trial->last_result}};
  // What was decided at the checkpoint that it starts from, and did not come to pass.
  ASSIGN_OR_RETURN(const TrialEngine::Standing standing, engine_->StandingOf(trial->id));
  const std::int64_t start = standing.newest ? standing.newest->steps : 0;
  const bool own = trial->donor.empty() && start > 0;
  const TrialAction action = own ? trial->DecidedAt(start).action : TrialAction::kContinue;
  answer["stop"] = stop_all_ || action == TrialAction::kStop;
  answer["pause"] = interrupted_ || action == TrialAction::kPause;
  if (action == TrialAction::kPause && !interrupted_) {
    runs_[trial->id].pausing = true;
    RETURN_IF_ERROR(engine_->Pause(trial->id));
  }
  if (!trial->donor.empty()) {
    answer["checkpoint"] = Value::Object{{"id", trial->donor_checkpoint},
                                         {"steps_completed", trial->iteration},
                                         {"trial", trial->donor}};
  }
  engine_->Describe(message.key, [answer = std::move(answer), id = trial->id,
                                  done = message.done](const Result<Value>& described) mutable {
    if (!described.ok()) return done(described.status());
    const Value* latest = described->Find("latest_checkpoint");
    if (!answer.contains("checkpoint") && latest != nullptr && latest->is_object()) {
      answer["checkpoint"] = Value::Object{{"id", TextOf(*latest, "id")},
                                           {"steps_completed", IntOf(*latest, "steps_completed")},
                                           {"trial", id}};
    }
    done(Value(std::move(answer)));
  });
  return Status::Ok();
}

Result<Decision> Tuner::Decide(TuneTrial* trial, const Value& result) {
  const std::int64_t at = IntOf(result, "training_iteration");
  Decision decision = trial->DecidedAt(at);
  if (at > trial->iteration) {
    ASSIGN_OR_RETURN(decision, options_.policy->OnResult(trial->id, result));
  }
  if (stop_all_) decision.action = TrialAction::kStop;
  return decision;
}

Status Tuner::OnResult(Message message) {
  TuneTrial* trial = record_.Find(message.key.trial);
  const auto run = runs_.find(message.key.trial);
  if (trial == nullptr || run == runs_.end() || run->second.number != message.key.run) {
    message.done(AbortedError(
        fmt::format("run {} of trial {} was replaced", message.key.run, message.key.trial)));
    return Status::Ok();
  }
  const auto sequence = static_cast<std::uint64_t>(IntOf(message.body, "sequence"));
  Value result = TakeMember(&message.body, "result");
  RestoreNonFinite(&result);
  const std::int64_t at = IntOf(result, "training_iteration");
  if (!result.is_object() || at < 1) {
    message.done(InvalidArgumentError("\"result\" must have a training_iteration from 1 up"));
    return Status::Ok();
  }
  const auto report_of = [&](Value metrics) {
    Value::Object report;
    report.emplace("group", "training");
    report.emplace("metrics", std::move(metrics));
    report.emplace("sequence", sequence);
    report.emplace("steps_completed", at);
    return report;
  };
  if (sequence == run->second.sequence) {  // its answer got lost
    engine_->Report(message.key, report_of(std::move(result)),
                    [answer = run->second.answer, done = message.done](Result<Value> taken) {
                      taken.ok() ? done(answer) : done(std::move(taken));
                    });
    return Status::Ok();
  }
  const Result<Decision> decided = Decide(trial, result);
  if (decided.status().Is(Code::kInvalidArgument)) {
    message.done(decided.status());
    return Status::Ok();
  }
  RETURN_IF_ERROR(decided.status());
  const bool pauses = decided->action == TrialAction::kPause ||
                      (interrupted_ && decided->action == TrialAction::kContinue);
  const char* say = decided->action == TrialAction::kStop ? "stop" : pauses ? "pause" : "continue";
  Value::Object answer{{"decision", say}, {"checkpoint", decided->checkpoint}};

  struct Pending {
    Value::Object answer;
    Status status;
  };
  // Shared by the two answers of the engine, of which the report's is the last.
  const auto pending = std::make_shared<Pending>();
  pending->answer = answer;
  const TrialEngine::Together together(engine_.get());
  ForgetRemoved(message.key, message.body);
  if (const Value* checkpoint = message.body.Find("checkpoint");
      checkpoint != nullptr && checkpoint->is_object()) {
    Register(message.key, *checkpoint, [pending](Result<Value> taken) {
      if (!taken.ok()) {
        pending->status = taken.status();
      } else if (const Value* remove = taken->Find("remove")) {
        pending->answer["remove"] = *remove;
      }
    });
  }
  run->second.sequence = sequence;
  run->second.answer = answer;
  Value::Object report = report_of(std::move(result));
  if (*decided != Decision{}) report["decision"] = ToValue(*decided);
  engine_->Report(message.key, report, [pending, done = message.done](const Result<Value>& taken) {
    if (!taken.ok()) return done(taken.status());
    if (!pending->status.ok()) return done(pending->status);
    done(Value(std::move(pending->answer)));
  });
  RETURN_IF_ERROR(Apply(trial->id, EventKind::kReport, std::move(report)));
  if (pauses && !run->second.pausing) {
    run->second.pausing = true;
    if (!interrupted_) return engine_->Pause(trial->id);
  }
  return Status::Ok();
}

void Tuner::Register(const RunKey& key, const Value& checkpoint, Done then) {
  const std::string id = TextOf(checkpoint, "id");
  TuneTrial* trial = record_.Find(key.trial);
  const std::string donor = trial->donor;
  const std::string pinned = trial->donor_checkpoint;
  engine_->StartCheckpoint(key,
                           Value::Object{{"registration", id},
                                         {"steps_completed", IntOf(checkpoint, "steps_completed")}},
                           [](const Result<Value>&) {});
  engine_->CompleteCheckpoint(key, id, checkpoint, std::move(then));
  Apply(key.trial, EventKind::kCheckpointCompleted, checkpoint, key.run)
      .IgnoreError("the trial is there");
  if (!donor.empty() && trial->donor.empty()) Unpin(donor, pinned);
}

void Tuner::Unpin(const std::string& donor, const std::string& checkpoint) {
  const bool needed = std::ranges::any_of(record_.trials(), [&](const auto& item) {
    return item.second.donor == donor && item.second.donor_checkpoint == checkpoint &&
           item.second.phase != TunePhase::kEnded;
  });
  if (!needed) engine_->Pin(donor, checkpoint, false).IgnoreError("it may have been deleted");
}

void Tuner::ForgetRemoved(const RunKey& key, const Value& body) {
  const Value* removed = body.Find("removed");
  if (removed == nullptr || !removed->is_list()) return;
  for (const Value& id : *removed->if_list()) {
    if (id.is_string()) {
      engine_->CheckpointDeleted(key, *id.if_string(), [](const Result<Value>&) {});
    }
  }
}

Status Tuner::OnSaved(Message message) {
  const auto run = runs_.find(message.key.trial);
  const Value* checkpoint = message.body.Find("checkpoint");
  if (run == runs_.end() || run->second.number != message.key.run) {
    message.done(AbortedError("the run was replaced"));
    return Status::Ok();
  }
  ForgetRemoved(message.key, message.body);
  if (checkpoint == nullptr || !checkpoint->is_object()) {
    message.done(InvalidArgumentError("\"checkpoint\" is missing"));
    return Status::Ok();
  }
  const TrialEngine::Together together(engine_.get());
  Register(message.key, *checkpoint, std::move(message.done));
  return Status::Ok();
}

Status Tuner::OnFailed(const Message& message) {
  const auto run = runs_.find(message.key.trial);
  if (run == runs_.end() || run->second.number != message.key.run) {
    message.done(AbortedError("the run was replaced"));
    return Status::Ok();
  }
  run->second.told = true;
  RETURN_IF_ERROR(Note(
      message.key.trial,
      {{"what", "failure"}, {"run", message.key.run}, {"error", TextOf(message.body, "error")}}));
  message.done(Value(Value::Object{}));
  return Status::Ok();
}

/// A checkpoint that a run committed and did not live to report. The run that comes next goes on
/// from it, and not from a donor's.
Status Tuner::OnFound(const Message& message) {
  TuneTrial* trial = record_.Find(message.key.trial);
  if (trial == nullptr) return Status::Ok();
  const std::string donor = trial->donor;
  const std::string pinned = trial->donor_checkpoint;
  RETURN_IF_ERROR(Apply(trial->id, EventKind::kCheckpointCompleted, message.body, message.key.run));
  if (!donor.empty() && trial->donor.empty()) Unpin(donor, pinned);
  return Status::Ok();
}

Status Tuner::OnRunEnded(const Message& message) {
  const std::string& id = message.key.trial;
  TuneTrial* trial = record_.Find(id);
  if (trial == nullptr || !active_.contains(id)) return Status::Ok();
  ASSIGN_OR_RETURN(const TrialEngine::Standing standing, engine_->StandingOf(id));
  // A later run is told about by a later message.
  if (standing.core.run != message.key.run || standing.core.live) return Status::Ok();
  const auto run = runs_.find(id);
  const bool told = run != runs_.end() && run->second.number == message.key.run && run->second.told;
  if (run != runs_.end()) runs_.erase(run);
  const bool killed = IntOf(message.body, "signal") != 0 || IntOf(message.body, "code") != 0;
  if (!told && killed && !standing.message.empty()) {
    RETURN_IF_ERROR(
        Note(id, {{"what", "failure"}, {"run", message.key.run}, {"error", standing.message}}));
  }
  switch (standing.core.state) {
    case TrialState::kCompleted:
    case TrialState::kCanceled:
      return EndTrial(trial, false);
    case TrialState::kError:
      return EndTrial(trial, true);
    case TrialState::kPaused:
      active_.erase(id);
      // One that was killed before it acknowledged may not have saved: it goes back to its
      // checkpoint and comes here once more. Others may be about to start from what it saves.
      if (standing.core.acknowledged &&
          trial->DecidedAt(trial->iteration).action == TrialAction::kPause) {
        return Note(id, {{"what", "paused"}});
      }
      if (interrupted_) return Status::Ok();
      // Asked to pause by an earlier life, which ended before it did.
      active_.insert(id);
      return engine_->Activate(id);
    default:  // will be started again
      if (interrupted_) {
        active_.erase(id);
        return engine_->Pause(id);
      }
      return Status::Ok();
  }
}

}  // namespace cairn::tune

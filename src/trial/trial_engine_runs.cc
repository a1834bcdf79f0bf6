// What runs say to the engine: the trial protocol without HTTP (docs/format/trial_protocol.md).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "net/token.h"
#include "trial/report_limits.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

constexpr std::int64_t kMaxWorldSize = 4096;

/// What a process sent that is of the wrong type is its mistake, not damage.
Status AsArgument(const Status& status) {
  if (!status.Is(Code::kCorruption)) return status;
  return InvalidArgumentError(std::string(status.message()));
}

const Value::Object& Members(const Value& body) {
  static const Value::Object kNone;
  return body.is_object() ? *body.if_object() : kNone;
}

/// Steps are counted from 0.
Status CheckSteps(const Value& body) {
  std::int64_t steps = 0;
  RETURN_IF_ERROR(MemberReader(Members(body)).Int("steps_completed", &steps));
  if (steps >= 0) return Status::Ok();
  return InvalidArgumentError("\"steps_completed\" must not be negative");
}

Status CheckReport(const Value& body, std::uint64_t* sequence) {
  const MemberReader members(Members(body));
  std::string group;
  Value metrics = Value::Object{};
  RETURN_IF_ERROR(members.Uint("sequence", sequence));
  RETURN_IF_ERROR(members.Text("group", &group));
  RETURN_IF_ERROR(CheckSteps(body));
  RETURN_IF_ERROR(members.OptionalObject("metrics", &metrics));
  if (*sequence == 0) return InvalidArgumentError("\"sequence\" counts from 1");
  if (group.size() > kMaxGroupBytes) {
    return InvalidArgumentError(
        fmt::format("\"group\" has {} bytes; at most {} are taken", group.size(), kMaxGroupBytes));
  }
  return Status::Ok();
}

}  // namespace

Value ToValue(const PreemptionInfo& info) {
  return Value::Object{{"preempt", info.preempt},
                       {"reason", info.reason},
                       {"deadline_seconds", info.deadline_seconds},
                       {"version", info.version},
                       {"remove", Value::List(info.remove.begin(), info.remove.end())}};
}

Result<const TrialRecord*> TrialEngine::FindLiving(const RunKey& key) {
  const TrialRecord* trial = Find(key.trial);
  if (trial == nullptr) return NotFoundError(fmt::format("no trial {}", key.trial));
  if (trial->core.run != key.run) {
    return AbortedError(fmt::format("run {} of trial {} was replaced by run {}", key.run, key.trial,
                                    trial->core.run));
  }
  if (!trial->core.live) {
    return AbortedError(fmt::format("run {} of trial {} is over", key.run, key.trial));
  }
  if (trial->config.detached) heard_[key.trial] = options_.clock->Now();
  return trial;
}

Status TrialEngine::Authenticate(const RunKey& key, std::string_view token) {
  MutexLock hold(&mu_);
  if (writer_->lost()) return UnavailableError("another engine has taken over; ask it");
  const TrialRecord* trial = Find(key.trial);
  if (trial == nullptr) return NotFoundError(fmt::format("no trial {}", key.trial));
  // Only the newest run's hash is kept. An older run is told that it was replaced: it has nothing
  // to find out by that, and its owner must know to stop.
  if (key.run == 0 || key.run > trial->core.run) {
    return NotFoundError(fmt::format("trial {} has no run {}", key.trial, key.run));
  }
  if (key.run < trial->core.run) return FindLiving(key).status();
  if (!TokenMatches(token, trial->token_hash)) {
    return PermissionDeniedError("the token is not this run's");
  }
  return Status::Ok();
}

void TrialEngine::Answer(Value value, Done<Value> done) {
  std::uint64_t seq = 0;
  {
    MutexLock hold(&mu_);
    seq = records_.last_seq();
  }
  writer_->AfterDurable(seq, options_.answer_timeout,
                        [value = std::move(value), done = std::move(done)](Status status) {
                          status.ok() ? done(value) : done(std::move(status));
                        });
}

void TrialEngine::Refuse(const Status& status, const Done<Value>& done) {
  if (!status.Is(Code::kAborted)) return done(AsArgument(status));
  std::uint64_t seq = 0;
  {
    MutexLock hold(&mu_);
    seq = records_.last_seq();
  }
  writer_->AfterDurable(seq, options_.answer_timeout, [status, done](const Status& durable) {
    done(durable.ok() ? status : durable);
  });
}

void TrialEngine::EmitForRun(const RunKey& key, EventKind kind, Value body, Done<Value> done) {
  Status status;
  {
    MutexLock hold(&mu_);
    status = FindLiving(key).status();
    if (status.ok()) status = Emit(key.trial, key.run, kind, std::move(body));
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(Value::Object{}, std::move(done));
}

PreemptionInfo TrialEngine::PreemptionOf(const TrialRecord& trial) {
  PreemptionInfo info;
  const TrialState state = trial.core.state;
  info.preempt =
      trial.core.live && (state == TrialState::kPausing || state == TrialState::kStopping);
  if (info.preempt) {
    info.reason = trial.core.killed ? "kill" : state == TrialState::kPausing ? "pause" : "cancel";
    const auto found = deadlines_.find(trial.id);
    const Clock::Duration left = found == deadlines_.end()
                                     ? std::chrono::milliseconds(trial.deadline_ms)
                                     : found->second - options_.clock->Now();
    info.deadline_seconds = std::max(0.0, std::chrono::duration<double>(left).count());
  }
  info.version = versions_[trial.id];
  if (trial.core.live) info.remove = removable_[trial.id];
  return info;
}

std::vector<std::string> TrialEngine::RemovableOf(const TrialRecord& trial) {
  std::vector<std::string> ids;
  if (!trial.core.live) return ids;
  for (Removal& removal :
       records_.Removals(trial.id, trial.config.retention, options_.clock->WallNanos())) {
    ids.push_back(std::move(removal.id));
  }
  return ids;
}

Value TrialEngine::Describe(const TrialRecord& trial) {
  return Value::Object{
      {"protocol", 1},
      {"experiment_id", trial.config.experiment},
      {"trial_id", trial.id},
      {"run_id", trial.core.run},
      {"state", TrialStateName(trial.core.state)},
      {"resume_mode", trial.resume_mode},
      {"hparams", trial.config.hparams},
      {"storage", Locate(trial.config.storage)},
      {"repository", Locate(RepositoryOf(trial))},
      {"job", trial.job},
      {"world_size", trial.config.world_size},
      {"restarts", trial.core.restarts},
      {"max_restarts", trial.core.max_restarts},
      {"detached", trial.config.detached},
      {"heartbeat_seconds", std::chrono::duration<double>(options_.heartbeat).count()},
      {"next_sequence", trial.next_sequence},
      {"progress", trial.progress},
      {"latest_checkpoint", LocatedValue(trial.start)},
      {"preemption", ToValue(PreemptionOf(trial))}};
}

void TrialEngine::Describe(const RunKey& key, Done<Value> done) {
  Result<Value> answer = Value();
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    answer = trial.ok() ? Result<Value>(Describe(**trial)) : Result<Value>(trial.status());
  }
  if (!answer.ok()) return Refuse(answer.status(), done);
  Answer(*std::move(answer), std::move(done));
}

void TrialEngine::Ready(const RunKey& key, const Value& body, Done<Value> done) {
  EmitForRun(key, EventKind::kRunReady, body, std::move(done));
}

void TrialEngine::Report(const RunKey& key, Value body, Done<Value> done) {
  std::uint64_t sequence = 0;
  if (const Status wrong = AsArgument(CheckReport(body, &sequence)); !wrong.ok()) {
    return done(wrong);
  }
  const bool scores = *body.Find("group")->if_string() == "validation";
  bool duplicate = false;
  Status status;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    if (status.ok() && sequence < (*trial)->next_sequence) {
      duplicate = true;
    } else if (status.ok() && sequence > (*trial)->next_sequence) {
      status = FailedPreconditionError(fmt::format("out_of_order: report {} came where {} belongs",
                                                   sequence, (*trial)->next_sequence));
    } else if (status.ok()) {
      status = Emit(key.trial, key.run, EventKind::kReport, std::move(body));
      if (status.ok() && scores && RemovableOf(*Find(key.trial)) != removable_[key.trial]) {
        Changed(key.trial);
      }
    }
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(Value::Object{{"sequence", sequence}, {"duplicate", duplicate}}, std::move(done));
}

void TrialEngine::Progress(const RunKey& key, const Value& body, Done<Value> done) {
  const Value* progress = body.Find("progress");
  const double number = progress == nullptr ? -1 : progress->AsDouble(-1);
  if (!(number >= 0 && number <= 1)) {
    return done(InvalidArgumentError("\"progress\" must be a number from 0 to 1"));
  }
  EmitForRun(key, EventKind::kProgress, Value::Object{{"progress", number}}, std::move(done));
}

void TrialEngine::SetStatus(const RunKey& key, const Value& body, Done<Value> done) {
  const Value* text = body.Find("status");
  if (text == nullptr || !text->is_string() || text->if_string()->size() > kMaxStatusBytes) {
    return done(InvalidArgumentError(
        fmt::format("\"status\" must be a text of at most {} bytes", kMaxStatusBytes)));
  }
  EmitForRun(key, EventKind::kStatus, Value::Object{{"status", *text}}, std::move(done));
}

void TrialEngine::StartCheckpoint(const RunKey& key, const Value& body, Done<Value> done) {
  const Value* registration = body.Find("registration");
  if (registration == nullptr || !registration->is_string() ||
      !IsTrialId(*registration->if_string())) {
    return done(InvalidArgumentError("\"registration\" must be a UUID"));
  }
  if (const Status wrong = AsArgument(CheckSteps(body)); !wrong.ok()) return done(wrong);
  Status status;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    const CheckpointRecord* known =
        status.ok() ? (*trial)->Find(*registration->if_string()) : nullptr;
    if (status.ok() && (known == nullptr || known->run != key.run)) {
      status = Emit(key.trial, key.run, EventKind::kCheckpointStarted, body);
    }
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(Value::Object{{"registration", *registration}, {"state", "ACTIVE"}}, std::move(done));
}

void TrialEngine::CompleteCheckpoint(const RunKey& key, const std::string& registration,
                                     const Value& body, Done<Value> done) {
  const Value* id = body.Find("id");
  if (id == nullptr || !id->is_string() || id->if_string()->empty()) {
    return done(InvalidArgumentError("\"id\" must be the checkpoint's id"));
  }
  if (const Status wrong = AsArgument(CheckSteps(body)); !wrong.ok()) return done(wrong);
  Status status;
  Value answer;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    if (status.ok()) {
      const CheckpointRecord* known = (*trial)->Find(registration);
      const bool repeated = known != nullptr && known->id == *id->if_string() &&
                            known->state != CheckpointState::kActive;
      if (!repeated) {
        Value::Object event = Members(body);
        event["registration"] = registration;
        status = Emit(key.trial, key.run, EventKind::kCheckpointCompleted, std::move(event));
      }
      if (status.ok()) {
        removable_[key.trial] = RemovableOf(*Find(key.trial));
        const auto& remove = removable_[key.trial];
        answer = Value::Object{{"id", *id},
                               {"state", "COMPLETED"},
                               {"remove", Value::List(remove.begin(), remove.end())}};
      }
    }
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(std::move(answer), std::move(done));
}

void TrialEngine::AbandonCheckpoint(const RunKey& key, const std::string& registration,
                                    const Value& body, Done<Value> done) {
  const Value* reason = body.Find("reason");
  Value::Object event{{"registration", registration}};
  if (reason != nullptr && reason->is_string()) event["reason"] = *reason;
  EmitForRun(key, EventKind::kCheckpointAbandoned, std::move(event),
             [done = std::move(done)](Result<Value> answer) {
               answer.ok() ? done(Value(Value::Object{{"state", "ERROR"}}))
                           : done(std::move(answer));
             });
}

void TrialEngine::CheckpointDeleted(const RunKey& key, const std::string& id, Done<Value> done) {
  Status status;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    const CheckpointRecord* known = status.ok() ? (*trial)->Find(id) : nullptr;
    if (status.ok() && known == nullptr) {
      status = NotFoundError(fmt::format("trial {} has no checkpoint {}", key.trial, id));
    } else if (status.ok() && known->state != CheckpointState::kDeleted) {
      status = Emit(key.trial, key.run, EventKind::kCheckpointDeleted,
                    Value::Object{{"id", known->id},
                                  {"reason", known->unwanted.empty() ? "removed by its run"
                                                                     : known->unwanted}});
    }
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(Value::Object{{"state", "DELETED"}}, std::move(done));
}

void TrialEngine::ListCheckpoints(const RunKey& key, Done<Value> done) {
  Value::List list;
  Status status;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    if (status.ok()) {
      for (const CheckpointRecord& record : (*trial)->checkpoints) list.push_back(ToValue(record));
    }
  }
  if (!status.ok()) return Refuse(status, done);
  Answer(Value::Object{{"checkpoints", std::move(list)}}, std::move(done));
}

void TrialEngine::GetCheckpoint(const RunKey& key, const std::string& id, Done<Value> done) {
  Result<Value> answer = Value();
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    const CheckpointRecord* record = trial.ok() ? (*trial)->Find(id) : nullptr;
    if (!trial.ok()) {
      answer = trial.status();
    } else if (record == nullptr) {
      answer = NotFoundError(fmt::format("trial {} has no checkpoint {}", key.trial, id));
    } else {
      answer = ToValue(*record);
    }
  }
  if (!answer.ok()) return Refuse(answer.status(), done);
  Answer(*std::move(answer), std::move(done));
}

void TrialEngine::WaitPreemption(const RunKey& key, std::uint64_t seen,
                                 std::chrono::nanoseconds timeout, Done<Value> done) {
  Result<Value> answer = Value();
  std::uint64_t poll = 0;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    if (!trial.ok()) {
      answer = trial.status();
    } else {
      const PreemptionInfo info = PreemptionOf(**trial);
      const bool news = seen == 0 ? info.preempt : info.version != seen;
      if (!news && timeout > std::chrono::nanoseconds(0) && !stopping_) {
        poll = next_poll_++;
        polls_.push_back({poll, key, seen, std::move(done)});
      } else {
        answer = ToValue(info);
      }
    }
  }
  if (poll == 0) {
    return answer.ok() ? Answer(*std::move(answer), std::move(done))
                       : Refuse(answer.status(), done);
  }
  At(options_.clock->Now() + timeout, [this, poll] {
    std::optional<Poll> over;
    Result<Value> late = Value();
    {
      MutexLock hold(&mu_);
      const auto found = std::ranges::find(polls_, poll, &Poll::id);
      if (found == polls_.end()) return;
      over = std::move(*found);
      polls_.erase(found);
      const auto trial = FindLiving(over->key);
      late = trial.ok() ? Result<Value>(ToValue(PreemptionOf(**trial)))
                        : Result<Value>(trial.status());
    }
    over->done(std::move(late));
  });
}

void TrialEngine::AcknowledgePreemption(const RunKey& key, Done<Value> done) {
  EmitForRun(key, EventKind::kPreemptAcknowledged, Value::Object{}, std::move(done));
}

void TrialEngine::Heartbeat(const RunKey& key, Done<Value> done) {
  Result<Value> answer = Value();
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    answer =
        trial.ok() ? Result<Value>(ToValue(PreemptionOf(**trial))) : Result<Value>(trial.status());
  }
  if (!answer.ok()) return Refuse(answer.status(), done);
  done(std::move(answer));
}

void TrialEngine::Logs(const RunKey& key, const Value& body, Done<Value> done) {
  const Value* lines = body.Find("lines");
  if (lines == nullptr || !lines->is_list()) {
    return done(InvalidArgumentError("\"lines\" must be a list"));
  }
  Status status;
  {
    MutexLock hold(&mu_);
    status = FindLiving(key).status();
  }
  if (!status.ok()) return Refuse(status, done);
  if (options_.on_log) options_.on_log(key.trial, key.run, *lines->if_list());
  done(Value(Value::Object{}));
}

void TrialEngine::Exit(const RunKey& key, const Value& body, Done<Value> done) {
  std::int64_t code = 0;
  std::string message;
  const MemberReader members(Members(body));
  Status status = members.Int("code", &code);
  if (status.ok()) status = members.OptionalText("message", &message);
  if (!status.ok()) return done(AsArgument(status));
  Value again;
  {
    MutexLock hold(&mu_);
    const auto trial = FindLiving(key);
    status = trial.status();
    if (status.ok() && !(*trial)->config.detached) {
      status = FailedPreconditionError("the launcher sees how this run ends");
    }
    // It said so before, and the answer was lost. One that was given up as lost is told that.
    const TrialRecord* record = Find(key.trial);
    if (record != nullptr && record->config.detached && record->core.run == key.run &&
        !record->core.live && record->said_exit) {
      again = Value::Object{{"state", TrialStateName(record->core.state)}};
    }
  }
  if (again.is_object()) return Answer(std::move(again), std::move(done));
  if (!status.ok()) return Refuse(status, done);
  PostStorage(key.trial, [this, key, code, message, done = std::move(done)] {
    Ended(key.trial, key.run, Value::Object{{"code", code}, {"message", message}, {"said", true}});
    std::string state;
    {
      MutexLock hold(&mu_);
      state = TrialStateName(Find(key.trial)->core.state);
    }
    Answer(Value::Object{{"state", state}}, done);
  });
}

Status TrialEngine::AuthenticateJoin(std::string_view token) const {
  if (options_.join_token.empty() || !TokenMatches(token, HashToken(options_.join_token))) {
    return PermissionDeniedError("the token does not admit new processes");
  }
  return Status::Ok();
}

void TrialEngine::Join(std::string_view token, const Value& body, Done<Value> done) {
  if (const Status admitted = AuthenticateJoin(token); !admitted.ok()) return done(admitted);
  TrialConfig config;
  config.detached = true;
  config.storage = options_.join_storage;
  std::int64_t world_size = 1;
  const MemberReader members(Members(body));
  Status status = members.Text("external_id", &config.external_id);
  if (status.ok()) status = members.OptionalText("experiment", &config.experiment);
  if (status.ok()) status = members.OptionalText("storage", &config.storage);
  if (status.ok()) status = members.OptionalObject("hparams", &config.hparams);
  if (status.ok()) status = members.OptionalInt("world_size", &world_size);
  if (status.ok() && (world_size < 1 || world_size > kMaxWorldSize)) {
    status = InvalidArgumentError("\"world_size\" is out of range");
  }
  if (!status.ok()) return done(AsArgument(status));
  config.world_size = static_cast<int>(world_size);
  std::string trial;
  {
    MutexLock hold(&mu_);
    const TrialRecord* known = records_.FindExternal(config.external_id);
    if (known == nullptr) {
      trial = NextId();
      status = Emit(trial, 0, EventKind::kTrialCreated,
                    WithJob({{"config", ToValue(config)}, {"parent", Value()}}));
    } else {
      trial = known->id;
    }
  }
  if (!status.ok()) return done(AsArgument(status));
  // The repository is read first, as before every run.
  PostStorage(trial, [this, trial, done = std::move(done)] {
    // Storage that cannot be seen from here is the process's own matter; what is seen and is
    // another's is not.
    if (const Status own = ChooseRepository(trial); own.Is(Code::kFailedPrecondition)) {
      return done(own);
    }
    RegisterFound(trial).IgnoreError("it is read again at the run's end");
    const Result<std::string> fresh = NewToken();
    if (!fresh.ok()) return done(fresh.status());
    Status started;
    Value answer;
    std::uint64_t run = 0;
    {
      MutexLock hold(&mu_);
      const TrialRecord* record = Find(trial);
      run = record->core.run + 1;
      started = Emit(trial, run, EventKind::kRunStarted, RunBody(*record, *fresh));
      if (started.ok()) {
        deadlines_.erase(trial);
        heard_[trial] = options_.clock->Now();
        answer = Describe(*Find(trial));
        (*answer.if_object())["token"] = *fresh;
      }
    }
    if (!started.ok()) return done(started);
    ArmHeartbeat(trial, run);
    Answer(std::move(answer), done);
  });
}

}  // namespace cairn

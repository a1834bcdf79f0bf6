// The loop of an experiment. One thread asks the policy and writes down what it answered, so that
// the log has every call in the order in which it was made:
//
//   1. What a worker sends is put in a queue by the service's threads.
//   2. The loop takes it out, asks the policy, and gives the engine the event with the decision in
//      it (a report), or a note (a suggestion, a choice, an end).
//   3. The worker is answered when the event is durable. A new worker is forked before that, and
//      does nothing until it was answered what to begin with. So nothing is done outside of this
//      process before what it follows from is in the log; what was not, never happened.
//
// Killed anywhere, the log is a prefix of what happened: Start makes the same calls again, and the
// engine starts again what ran. A run that comes back with a result that is already there is told
// what was decided then.
#include "tune/tuner.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>

#include "base/log.h"
#include "base/status_macros.h"
#include "trial/event.h"
#include "trial/trial_service.h"
#include "tune/tuner_news.h"
#include "tune/tuner_summary.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

// Recorded with every trial, and never the directory's own name: an experiment may be moved.
constexpr char kHere[] = ".";
constexpr char kExperiment[] = "experiment";
constexpr std::uint64_t kEndless = std::uint64_t{1} << 60;
constexpr auto kPauseTimeout = std::chrono::minutes(10);
/// No trial begins while the log cannot be written; after so long the experiment ends.
constexpr auto kLogPatience = std::chrono::seconds(60);
constexpr std::uint64_t kMaxBodyBytes = 16u << 20;
/// So long the end of an experiment waits for removals that its rules ask for.
constexpr auto kRemovalPatience = std::chrono::seconds(10);
/// So long news wait for others, which are told together: each time the caller is woken, and what
/// he does then he does instead of the next messages.
constexpr auto kNewsTogether = std::chrono::milliseconds(10);
constexpr auto kFirstLook = std::chrono::milliseconds(1);
constexpr auto kLastLook = std::chrono::milliseconds(200);
constexpr int kPinAttempts = 8;
constexpr auto kFirstPinWait = std::chrono::milliseconds(20);

}  // namespace

Status TunerOptions::Validate() const {
  if (policy == nullptr || !open_launcher) {
    return InvalidArgumentError("tuner: policy and open_launcher must be given");
  }
  if (max_concurrent == 0) return InvalidArgumentError("tuner: max_concurrent must be positive");
  if (!IsTrialId(trial_prefix) || trial_prefix.size() > 56) {
    return InvalidArgumentError(
        fmt::format("tuner: {} cannot begin the names of trials", trial_prefix));
  }
  return retention.Validate();
}

Tuner::~Tuner() { Stop(); }

void Tuner::Stop() {
  {
    MutexLock hold(&mu_);
    closing_ = true;
  }
  if (engine_ != nullptr) engine_->Drain();
  if (launcher_ != nullptr) {
    launcher_->Close(Launcher::CloseMode::kStopAll).IgnoreError("the workers end with us anyway");
  }
  if (server_ != nullptr) server_->Stop();
  engine_.reset();  // its launcher's listener is quiet now
  server_.reset();
  launcher_.reset();
  socket_directory_.Remove();
}

void Tuner::Enqueue(Message message) {
  bool closing = false;
  {
    MutexLock hold(&mu_);
    closing = closing_;
    if (!closing) messages_.push_back(std::move(message));
  }
  // Not under the lock, at which the loop would have to wait at once.
  if (!closing) return changed_.NotifyAll();
  if (message.done) message.done(CancelledError("the tuner ends"));
}

void Tuner::Tell(Value news) {
  {
    MutexLock hold(&mu_);
    news_.push_back(std::move(news));
    if (news_.size() > 1) return;  // whoever waits knows since when there are some
    news_since_ = open_.clock->Now();
  }
  changed_.NotifyAll();
}

void Tuner::Interrupt() {
  MutexLock hold(&mu_);
  interrupt_ = true;
  changed_.NotifyAll();
}

std::vector<HttpRoute> Tuner::Routes() {
  std::vector<HttpRoute> routes = TrialRoutes(engine_.get());
  const auto add = [&](std::string_view path, Message::Kind kind) {
    routes.push_back(RunRoute(
        engine_.get(), path,
        [this, kind](const RunKey& key, Value body, Done done) {
          Enqueue({kind, key, std::move(body), std::move(done)});
        },
        kMaxBodyBytes));
  };
  add("/tune/begin", Message::Kind::kBegin);
  add("/tune/result", Message::Kind::kResult);
  add("/tune/saved", Message::Kind::kSaved);
  add("/tune/failed", Message::Kind::kFailed);
  add("/tune/asked", Message::Kind::kAsked);
  return routes;
}

bool Tuner::HasWork(const TunerOptions& options) const {
  if (record_.order().empty()) return true;
  return std::ranges::any_of(record_.trials(), [&](const auto& item) {
    const TuneTrial& trial = item.second;
    if (trial.phase != TunePhase::kEnded) return options.resume_unfinished;
    if (trial.failed) return options.resume_errored || options.restart_errored;
    return (trial.extending && options.resume_unfinished) ||
           (options.extend_ended && !options.extend_except.contains(trial.id));
  });
}

Status Tuner::Start(TunerOptions options) {
  RETURN_IF_ERROR(options.Validate());
  if (started_) return FailedPreconditionError("tuner: it was started already");
  started_ = true;
  options_ = std::move(options);
  engine_.reset();

  RETURN_IF_ERROR(BringUpPolicy());
  ASSIGN_OR_RETURN(launcher_, options_.open_launcher(
                                  [this](const LaunchInfo& info) { engine_->OnLaunch(info); }));
  ASSIGN_OR_RETURN(
      engine_,
      TrialEngine::Open({.log = log_.get(),
                         .launcher = launcher_.get(),
                         .repositories = repositories_.get(),
                         .clock = open_.clock,
                         .ids = open_.ids,
                         .max_live_runs = options_.max_concurrent,
                         .users_wait = false,
                         .submit_early = true,
                         .storage_has_log = true,
                         .on_event = [this](Event event) { OnEvent(std::move(event)); },
                         .on_recorded = [this](const Event& event) { OnRecorded(event); }}));
  history_.clear();
  history_.shrink_to_fit();
  before_history_ = TunerRecord();
  policy_ = policy_state_ = Value();
  Summarize();
  // A record that begins with what the experiment is always says it.
  const bool first = record_.description().is_null();
  if (first) RETURN_IF_ERROR(NoteExperiment());
  RETURN_IF_ERROR(Note("", {{"what", "opened"}}));

  RETURN_IF_ERROR(StartService());
  const bool other = record_.description() != options_.description || record_.stopped();
  if (!first && (other || options_.extend_ended)) RETURN_IF_ERROR(NoteExperiment());
  RETURN_IF_ERROR(Revive());
  return engine_->Start();
}

Status Tuner::NoteExperiment() {
  Value::Object note{{"what", "experiment"}, {"description", options_.description}};
  if (options_.extend_ended) {
    note["extends"] = true;
    note["except"] = Value::List(options_.extend_except.begin(), options_.extend_except.end());
  }
  return Note("", std::move(note));
}

/// Brings the policy to where it was: by its state and the calls since then, or by all calls.
Status Tuner::BringUpPolicy() {
  const auto again = [&](const Event& event, TunerRecord* replayed) -> Status {
    RETURN_IF_ERROR(ReplayToPolicy(event, replayed, options_.policy)
                        .WithContext(fmt::format("replay of event {}", event.seq)));
    return replayed->Apply(event);
  };
  if (summarized_ > 0 && (policy_.is_null() || policy_ != options_.policy_origin)) {
    TunerRecord replayed;
    RETURN_IF_ERROR(
        journal_->Replay(1, [&](const Event& event) { return again(event, &replayed); }));
    // Of another policy, or of none whose state is a value: this one's is worth keeping.
    if (!options_.policy->Save().is_null()) summarized_ = 0;
  } else {
    if (summarized_ > 0) RETURN_IF_ERROR(options_.policy->Load(policy_state_));
    for (const Event& event : history_) RETURN_IF_ERROR(again(event, &before_history_));
  }
  return options_.policy->OnElapsed(record_.worked());
}

void Tuner::Summarize() {
  const EventPosition position = journal_->position();
  if (position.seq < summarized_ + options_.summarize_after) return;
  // It does not hold with what each report was made; and PBT comes by replay of all events anyway.
  const auto changed = [](const auto& trial) { return !trial.second.former.empty(); };
  if (std::ranges::any_of(record_.trials(), changed)) return;
  TunerSummary summary{
      .tuner = record_, .policy = options_.policy_origin, .policy_state = options_.policy->Save()};
  engine_->Look([&](const TrialRecords& records) {
    if (records.last_seq() == position.seq) summary.trials = records;
  });
  if (summary.trials.last_seq() == 0) return;  // something happens: the next opening does it
  summary.position = position;
  if (summary.policy_state.is_null()) summary.policy = Value();
  const Status kept = store_->Put(kSummaryName, EncodeSummary(summary));
  if (!kept.ok()) {
    // The events are there: the next opening takes longer.
    LogWarning(fmt::format("tuner: no summary was written: {}", kept.ToString()));
    return;
  }
  summarized_ = position.seq;
}

void Tuner::OnRecorded(const Event& event) {
  if (event.kind == EventKind::kRunExited) {
    Enqueue({Message::Kind::kRunEnded, {event.trial, event.run}, event.body, nullptr});
  } else if (event.kind == EventKind::kCheckpointCompleted &&
             event.body.Find("registration") == nullptr) {
    Enqueue({Message::Kind::kFound, {event.trial, event.run}, event.body, nullptr});
  }
}

void Tuner::OnEvent(Event event) {
  if (auto news = NewsOf(std::move(event))) Tell(*std::move(news));
}

/// What becomes of the trials of an earlier life, before anything is started.
Status Tuner::Revive() {
  for (const std::string& id : std::vector<std::string>(record_.order())) {
    TuneTrial* trial = record_.Find(id);
    bool revived = trial->restarting;
    if (trial->phase == TunePhase::kEnded) {
      const bool again = trial->failed ? options_.resume_errored || options_.restart_errored
                                       : trial->extending && options_.resume_unfinished;
      if (!again) continue;
      const bool restart = trial->failed && options_.restart_errored;
      if (restart) RETURN_IF_ERROR(options_.policy->OnRestart(id));
      RETURN_IF_ERROR(Note(id, {{"what", "resume"}, {"restart", restart}}));
      revived = true;
    }
    if (trial->created) RETURN_IF_ERROR(Retain(id));
    if (trial->phase != TunePhase::kRunning) continue;
    if (!trial->created) {
      RETURN_IF_ERROR(Launch(trial));
      continue;
    }
    ASSIGN_OR_RETURN(TrialEngine::Standing standing, engine_->StandingOf(id));
    if (!options_.resume_unfinished && !IsEnded(standing.core.state)) {
      // It stays as it is; whoever counts living trials must not wait for it.
      if (standing.core.state != TrialState::kPaused) RETURN_IF_ERROR(engine_->Pause(id));
      RETURN_IF_ERROR(options_.policy->OnEnd(id, trial->last_result, true));
      left_.insert(id);
      continue;
    }
    if (trial->restarting) {
      const std::string repository = fmt::format("{}/{}/{}", kHere, kExperiment, id);
      const auto found = repositories_->List(repository);
      std::vector<std::string> ids;
      if (found.ok()) {
        for (const FoundCheckpoint& one : *found) ids.push_back(one.id);
      } else if (!found.status().Is(Code::kNotFound)) {
        return found.status();
      }
      if (!ids.empty()) {
        RETURN_IF_ERROR(
            repositories_->Remove(repository, {.run = standing.core.run}, ids).status());
      }
      RETURN_IF_ERROR(Note(id, {{"what", "restarted"}}));
    }
    active_.insert(id);
    // A worker that outlived the last tuner goes on where it was.
    if (standing.core.live) runs_[id] = Run{.number = standing.core.run};
    const TrialState state = standing.core.state;
    const bool scheduled = state == TrialState::kPaused &&
                           trial->DecidedAt(trial->iteration).action == TrialAction::kPause;
    if (scheduled || (IsEnded(state) && !revived)) {
      // It came to rest, and we were killed before that was noted.
      Enqueue({Message::Kind::kRunEnded, {id, standing.core.run}, Value(), nullptr});
    } else if (IsEnded(state) || state == TrialState::kPaused) {
      RETURN_IF_ERROR(engine_->Activate(id));
    }
  }
  return Status::Ok();
}

/// The rules of a trial that goes on are those of this life.
Status Tuner::Retain(const std::string& trial) {
  bool other = false;
  engine_->Look([&](const TrialRecords& records) {
    const TrialRecord* record = records.Find(trial);
    other = record != nullptr && record->config.retention != options_.retention;
  });
  return other ? engine_->SetRetention(trial, options_.retention) : Status::Ok();
}

bool Tuner::Removes() {
  bool removes = false;
  const std::int64_t now = open_.clock->WallNanos();
  engine_->Look([&](const TrialRecords& records) {
    removes = std::ranges::any_of(records.trials(), [&](const auto& item) {
      const TrialRecord& trial = item.second;
      return !trial.core.live && !records.Removals(trial.id, trial.config.retention, now).empty();
    });
  });
  return removes;
}

/// What the rules let go when the last trials ended is taken out beside this thread.
bool Tuner::Settled() {
  const Clock::Duration now = open_.clock->Now();
  if (!settling_since_) {
    settling_since_ = now;
    look_again_ = Clock::Duration::zero();
  }
  if (now - *settling_since_ >= kRemovalPatience || !Removes()) return true;
  // Each look costs as much as there are checkpoints.
  look_again_ =
      std::min<Clock::Duration>(std::max<Clock::Duration>(look_again_ * 2, kFirstLook), kLastLook);
  open_.clock->Sleep(look_again_);
  return false;
}

Status Tuner::Apply(std::string trial, EventKind kind, Value body, std::uint64_t run) {
  return record_.Apply({.time = open_.clock->WallNanos(),
                        .trial = std::move(trial),
                        .run = run,
                        .kind = kind,
                        .body = std::move(body)});
}

Status Tuner::Note(const std::string& trial, Value::Object body) {
  RETURN_IF_ERROR(engine_->Note(trial, body));
  return Apply(trial, EventKind::kNote, std::move(body));
}

std::string Tuner::NextTrial() const {
  return fmt::format("{}_{:05}", options_.trial_prefix, record_.order().size());
}

Result<bool> Tuner::Step(std::chrono::nanoseconds timeout, TuneNews* news) {
  if (!started_ || engine_ == nullptr) return FailedPreconditionError("tuner: it is not started");
  const Clock::Duration until = open_.clock->Now() + timeout;
  for (;;) {
    ASSIGN_OR_RETURN(const bool finished, Turn(until));
    MutexLock hold(&mu_);
    const Clock::Duration now = open_.clock->Now();
    const bool told = !news_.empty() && now >= news_since_ + kNewsTogether;
    if (!finished && !told && now < until) continue;
    news->insert(news->end(), std::make_move_iterator(news_.begin()),
                 std::make_move_iterator(news_.end()));
    news_.clear();
    return finished && messages_.empty();
  }
}

Result<bool> Tuner::Turn(Clock::Duration until) {
  if (!stop_all_ && options_.policy->StopAll()) {
    stop_all_ = true;
    RETURN_IF_ERROR(Note("", {{"what", "stopped"}}));
    Hurry();
  }
  ASSIGN_OR_RETURN(const bool works, LogWorks());
  if (works) RETURN_IF_ERROR(Fill());
  std::deque<Message> taken;
  bool interrupt = false;
  {
    MutexLock hold(&mu_);
    if (!Finished()) WaitForMessages(until);
    taken.swap(messages_);
    interrupt = interrupt_;
  }
  if (interrupt && !interrupted_) RETURN_IF_ERROR(PauseAll());
  for (Message& message : taken) RETURN_IF_ERROR(Handle(std::move(message)));
  if (works) RETURN_IF_ERROR(Fill());
  if (!Finished() || !Settled()) return false;
  RETURN_IF_ERROR(engine_->Flush());
  Summarize();
  return true;
}

void Tuner::WaitForMessages(Clock::Duration until) {
  while (messages_.empty() && interrupt_ == interrupted_) {
    const Clock::Duration end =
        news_.empty() ? until : std::min(until, news_since_ + kNewsTogether);
    const Clock::Duration left = end - open_.clock->Now();
    if (left <= Clock::Duration::zero()) return;
    changed_.WaitFor(&mu_, left);
  }
}

Result<bool> Tuner::LogWorks() {
  const Status trouble = engine_->LogTrouble();
  if (trouble.ok()) {
    trouble_since_.reset();
    return true;
  }
  if (!trouble_since_) trouble_since_ = open_.clock->Now();
  const bool brief = open_.clock->Now() - *trouble_since_ < kLogPatience;
  if (brief && !trouble.Is(Code::kAborted)) return false;
  const std::string what =
      fmt::format("the experiment's log cannot be written: {}", trouble.message());
  return trouble.Is(Code::kResourceExhausted) ? ResourceExhaustedError(what)
                                              : UnavailableError(what);
}

bool Tuner::Finished() const {
  if (!active_.empty()) return false;
  if (interrupted_ || stop_all_) return true;
  return !suggests_ && record_.pending().empty() && record_.paused().empty();
}

Status Tuner::PauseAll() {
  interrupted_ = true;
  engine_->Drain();
  for (const std::string& id : std::vector<std::string>(active_.begin(), active_.end())) {
    ASSIGN_OR_RETURN(const TrialEngine::Standing standing, engine_->StandingOf(id));
    if (!IsEnded(standing.core.state)) RETURN_IF_ERROR(engine_->Pause(id));
    if (!standing.core.live) active_.erase(id);
  }
  return Status::Ok();
}

void Tuner::Hurry() {
  if (options_.stop_signal == 0) return;
  for (const auto& [id, run] : runs_) {
    engine_->Signal(id, options_.stop_signal).IgnoreError("its next report is answered so too");
  }
}

Status Tuner::Handle(Message message) {
  switch (message.kind) {
    case Message::Kind::kBegin:
      return OnBegin(message);
    case Message::Kind::kResult:
      return OnResult(std::move(message));
    case Message::Kind::kSaved:
      return OnSaved(std::move(message));
    case Message::Kind::kFailed:
      return OnFailed(message);
    case Message::Kind::kAsked:
      message.done(Value(Value::Object{{"stop", stop_all_}, {"pause", interrupted_}}));
      return Status::Ok();
    case Message::Kind::kFound:
      return OnFound(message);
    case Message::Kind::kRunEnded:
      return OnRunEnded(message);
  }
  return InternalError("tuner: a message of no kind");
}

Status Tuner::EndTrial(TuneTrial* trial, bool failed) {
  active_.erase(trial->id);
  RETURN_IF_ERROR(options_.policy->OnEnd(trial->id, trial->last_result, failed));
  RETURN_IF_ERROR(Note(trial->id, {{"what", "end"}, {"error", failed}}));
  if (!trial->donor.empty()) Unpin(trial->donor, trial->donor_checkpoint);
  if (failed && options_.fail_fast && !interrupted_) {
    {
      MutexLock hold(&mu_);
      interrupt_ = true;
    }
    RETURN_IF_ERROR(PauseAll());
    Hurry();
  }
  return Status::Ok();
}

Result<bool> Tuner::Suggest() {
  const std::string id = NextTrial();
  ASSIGN_OR_RETURN(const Suggestion suggestion, options_.policy->Suggest(id));
  if (suggestion.kind == Suggestion::Kind::kConfig) {
    RETURN_IF_ERROR(Note(id, {{"what", "suggest"}, {"config", suggestion.config}}));
    return true;
  }
  // Also of one that waits for what will never come.
  if (suggestion.kind == Suggestion::Kind::kFinished ||
      (active_.empty() && record_.paused().empty() && record_.pending().empty())) {
    suggests_ = false;
  }
  return false;
}

Status Tuner::Fill() {
  const std::size_t ahead = options_.policy->PendingAhead();
  while (!stop_all_ && !interrupted_ && suggests_ && record_.pending().size() < ahead) {
    ASSIGN_OR_RETURN(const bool more, Suggest());
    if (!more) break;
  }
  while (!stop_all_ && !interrupted_ && active_.size() < options_.max_concurrent) {
    const std::vector<std::string> pending = record_.pending();
    const std::vector<std::string> paused = record_.paused();
    const Candidates candidates{
        .pending = pending, .paused = paused, .more_to_come = suggests_ || !active_.empty()};
    if (!pending.empty() || !paused.empty()) {
      ASSIGN_OR_RETURN(const Choice choice, options_.policy->Choose(candidates));
      if (choice.kind != Choice::Kind::kNone) {
        RETURN_IF_ERROR(Carry(choice, candidates));
        continue;
      }
      if (!pending.empty()) return Status::Ok();
    }
    if (!suggests_) {
      if (active_.empty() && !paused.empty()) {
        // Nobody will ever take them up: they have ended.
        RETURN_IF_ERROR(Carry({.kind = Choice::Kind::kStop, .trial = paused.front()}, candidates));
        continue;
      }
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(const bool more, Suggest());
    if (!more && suggests_) return Status::Ok();  // it waits for what runs
  }
  return Status::Ok();
}

/// A storage that is away for a moment is no reason to give up what was decided.
Status Tuner::PinPatiently(const std::string& trial, const std::string& checkpoint) {
  Clock::Duration wait = kFirstPinWait;
  for (int attempt = 1;; ++attempt) {
    Status pinned = engine_->Pin(trial, checkpoint, true);
    const bool transient = pinned.Is(Code::kUnavailable) || pinned.Is(Code::kDeadlineExceeded) ||
                           pinned.Is(Code::kAborted);
    if (!transient || attempt == kPinAttempts) return pinned;
    open_.clock->Sleep(wait);
    wait *= 2;
  }
}

Status Tuner::Carry(const Choice& choice, const Candidates& candidates) {
  TuneTrial* trial = record_.Find(choice.trial);
  if (trial == nullptr) return InternalError("the scheduler chose a trial that is not there");
  Value::Object note{{"what", "choose"}, {"choice", ToValue(choice)}};
  if (!candidates.pending.empty()) {
    note["pending"] = Value::List(candidates.pending.begin(), candidates.pending.end());
  }
  if (!candidates.paused.empty()) {
    note["paused"] = Value::List(candidates.paused.begin(), candidates.paused.end());
  }
  note["more"] = candidates.more_to_come;
  if (choice.kind == Choice::Kind::kStop) {
    RETURN_IF_ERROR(Note(trial->id, std::move(note)));
    if (trial->created) RETURN_IF_ERROR(engine_->Cancel(trial->id));
    return EndTrial(trial, false);
  }
  if (!choice.donor.empty()) {
    const auto donor = engine_->StandingOf(choice.donor);
    // Pinned until this trial has a checkpoint of its own.
    if (donor.ok() && donor->newest && PinPatiently(choice.donor, donor->newest->id).ok()) {
      note["checkpoint"] = donor->newest->id;
      note["iteration"] = donor->newest->steps;
    } else {
      LogWarning(fmt::format("trial {} goes on with its own state: that of {} is not to be had",
                             trial->id, choice.donor));
      RETURN_IF_ERROR(options_.policy->SetConfig(trial->id, trial->config));
    }
  }
  RETURN_IF_ERROR(Note(trial->id, std::move(note)));
  return Launch(trial);
}

Status Tuner::Launch(TuneTrial* trial) {
  active_.insert(trial->id);
  if (trial->created) return engine_->Activate(trial->id);
  trial->created = true;
  return engine_
      ->Create(TrialConfig{.experiment = kExperiment,
                           .hparams = trial->config,
                           .argv = options_.argv,
                           .env = options_.env,
                           .storage = kHere,
                           .resources = options_.resources,
                           .max_restarts = std::min(options_.max_failures, kEndless),
                           .preemption_timeout = kPauseTimeout,
                           .kill_grace = options_.kill_grace,
                           .retention = options_.retention,
                           .outlive_engine = !options_.host.empty()},
               trial->id)
      .status();
}

const char* Tuner::StatusOf(const TuneTrial& trial) const {
  if (trial.phase == TunePhase::kEnded) return trial.failed ? "ERROR" : "TERMINATED";
  if (trial.phase == TunePhase::kPaused || left_.contains(trial.id)) return "PAUSED";
  if (trial.phase == TunePhase::kRunning) return active_.contains(trial.id) ? "RUNNING" : "PAUSED";
  return "PENDING";
}

Value Tuner::Trials(bool with_results) {
  Value::List all;
  const auto describe = [&](const TrialRecords& records) {
    for (const std::string& id : record_.order()) {
      const TuneTrial& trial = *record_.Find(id);
      all.push_back(DescribeTrial(trial, StatusOf(trial), records.Find(id), with_results));
    }
  };
  Look(describe);
  return all;
}

Value Tuner::Results(const std::string& trial) {
  Value::List results;
  const TuneTrial* const known = record_.Find(trial);
  if (known == nullptr) return results;
  Look([&](const TrialRecords& records) {
    results = ResultsOf(records.Find(trial), known->former);
  });
  return results;
}

void Tuner::Look(const std::function<void(const TrialRecords&)>& visit) {
  engine_ == nullptr ? visit(trials_) : engine_->Look(visit);
}

}  // namespace cairn::tune

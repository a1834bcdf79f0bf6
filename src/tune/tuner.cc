// The loop of an experiment. One thread asks the policy and writes down what it answered, so that
// the log has every call in the order in which it was made:
//
//   1. What a worker sends is put in a queue by the service's threads.
//   2. The loop takes it out, asks the policy, and gives the engine the event with the decision in
//      it (a report), or a note (a suggestion, a choice, an end).
//   3. The worker is answered when the event is durable. Nothing is done outside of this process
//      before what it follows from is in the log; what was not, never happened.
//
// Killed anywhere, the log is a prefix of what happened: Start makes the same calls again, and the
// engine starts again what ran. A run that comes back with a result that is already there is told
// what was decided then.
#include "tune/tuner.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "storage/open_store.h"
#include "trial/trial_service.h"

namespace cairn::tune {
namespace {

constexpr char kJournal[] = "events";
// Recorded with every trial, and never the directory's own name: an experiment may be moved.
constexpr char kHere[] = ".";
constexpr char kExperiment[] = "experiment";
constexpr std::uint64_t kEndless = std::uint64_t{1} << 60;
constexpr auto kPauseTimeout = std::chrono::minutes(10);
constexpr std::uint64_t kMaxBodyBytes = 16u << 20;

std::string TextOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

std::int64_t IntOf(const Value& object, std::string_view key, std::int64_t fallback = 0) {
  const Value* value = object.Find(key);
  return value == nullptr ? fallback : value->AsInt(fallback);
}

/// What members of an event say, for those who only watch.
std::optional<Value> NewsOf(const Event& event) {
  Value::Object news{{"trial", event.trial}, {"time", event.time}, {"run", event.run}};
  const auto take = [&](const char* from, const char* as) {
    if (const Value* value = event.body.Find(from)) news[as] = *value;
  };
  switch (event.kind) {
    case EventKind::kRunStarted: {
      news["what"] = "run";
      const Value* from = event.body.Find("from");
      news["iteration"] = from == nullptr ? 0 : IntOf(*from, "steps_completed");
      return news;
    }
    case EventKind::kRunReady:
      news["what"] = "started";
      return news;
    case EventKind::kReport:
      news["what"] = "result";
      take("metrics", "result");
      RestoreNonFinite(&news["result"]);
      take("decision", "decision");
      return news;
    case EventKind::kCheckpointCompleted:
      news["what"] = "checkpoint";
      news["checkpoint"] = event.body;
      return news;
    case EventKind::kNote: {
      const std::string what = TextOf(event.body, "what");
      if (what == "suggest") {
        news["what"] = "added";
        take("config", "config");
      } else if (what == "choose") {
        const Value* choice = event.body.Find("choice");
        if (choice == nullptr || TextOf(*choice, "donor").empty()) return std::nullopt;
        news["what"] = "exploit";
        news["donor"] = TextOf(*choice, "donor");
        news["config"] = *choice->Find("config");
        take("iteration", "iteration");
      } else if (what == "failure") {
        news["what"] = "failure";
        take("error", "error");
      } else if (what == "paused") {
        news["what"] = "paused";
      } else if (what == "end") {
        news["what"] = "ended";
        take("error", "failed");
      } else {
        return std::nullopt;
      }
      return news;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

/// The journal, whose events were read once for the tuner and the engine.
class Tuner::Log final : public EventLog {
 public:
  Log(JournalEventLog* journal, std::vector<Event>* history)
      : journal_(journal), history_(history) {}
  Status Append(std::span<const Event> events) override { return journal_->Append(events); }
  Status Replay(std::uint64_t from, const Visitor& visit) override {
    for (const Event& event : *history_) {
      if (event.seq >= from) RETURN_IF_ERROR(visit(event));
    }
    return Status::Ok();
  }

 private:
  JournalEventLog* const journal_;
  std::vector<Event>* const history_;
};

/// Repositories of trials by their recorded, relative names.
class Tuner::Repositories final : public RepositoryAccess {
 public:
  explicit Repositories(std::string directory) : directory_(std::move(directory)) {}
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    return real_->List(PathOf(repository));
  }
  Result<std::vector<std::string>> Remove(const std::string& repository, std::uint64_t run,
                                          const std::vector<std::string>& ids) override {
    return real_->Remove(PathOf(repository), run, ids);
  }
  Status Pin(const std::string& repository, const std::string& id, bool pinned) override {
    return real_->Pin(PathOf(repository), id, pinned);
  }
  std::string PathOf(std::string_view repository) const {
    return fmt::format("{}/{}", directory_, repository.substr(repository.rfind('/') + 1));
  }

 private:
  const std::string directory_;
  const std::unique_ptr<RepositoryAccess> real_ = RepositoryAccess::Real();
};

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

Tuner::Tuner(OpenOptions options) : open_(std::move(options)) {}

Result<bool> Tuner::Exists(const std::string& directory) {
  const auto store = OpenStore(directory, {.create = false});
  if (store.status().Is(Code::kNotFound)) return false;
  RETURN_IF_ERROR(store.status());
  const auto listed = (*store)->List(kJournal);
  if (listed.status().Is(Code::kNotFound)) return false;
  RETURN_IF_ERROR(listed.status());
  return !listed->objects.empty() || !listed->prefixes.empty();
}

Result<std::unique_ptr<Tuner>> Tuner::Open(OpenOptions options) {
  std::unique_ptr<Tuner> tuner(new Tuner(std::move(options)));
  const std::string& directory = tuner->open_.directory;
  if (!tuner->open_.create) {
    ASSIGN_OR_RETURN(const bool there, Exists(directory));
    if (!there) {
      return NotFoundError(directory +
                           " holds no experiment: there is no record of its trials. Give the "
                           "directory that has \"events\" in it");
    }
  }
  ASSIGN_OR_RETURN(tuner->store_, OpenStore(directory, {.create = tuner->open_.create}));
  ASSIGN_OR_RETURN(tuner->journal_,
                   JournalEventLog::Open({.store = tuner->store_.get(), .prefix = kJournal}));
  RETURN_IF_ERROR(tuner->journal_->Replay(1, [&](const Event& event) {
    RETURN_IF_ERROR(
        tuner->record_.Apply(event).WithContext(fmt::format("{}: event {}", directory, event.seq)));
    tuner->history_.push_back(event);
    return Status::Ok();
  }));
  if (!tuner->open_.create && tuner->record_.description().is_null()) {
    return CorruptionError(directory +
                           ": the record of the experiment is empty or damaged: it does "
                           "not say what the experiment is");
  }
  tuner->log_ = std::make_unique<Log>(tuner->journal_.get(), &tuner->history_);
  tuner->repositories_ = std::make_unique<Repositories>(directory);
  return tuner;
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
  if (!socket_directory_.empty()) {
    std::error_code error;
    std::filesystem::remove_all(socket_directory_, error);
    socket_directory_.clear();
  }
}

void Tuner::Enqueue(Message message) {
  {
    MutexLock hold(&mu_);
    if (!closing_) {
      messages_.push_back(std::move(message));
      changed_.NotifyAll();
      return;
    }
  }
  if (message.done) message.done(CancelledError("the tuner ends"));
}

void Tuner::Tell(Value news) {
  MutexLock hold(&mu_);
  news_.push_back(std::move(news));
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
        [this, kind](const RunKey& key, const Value& body, Done done) {
          Enqueue({kind, key, body, std::move(done)});
        },
        kMaxBodyBytes));
  };
  add("/tune/begin", Message::Kind::kBegin);
  add("/tune/result", Message::Kind::kResult);
  add("/tune/saved", Message::Kind::kSaved);
  add("/tune/failed", Message::Kind::kFailed);
  return routes;
}

Status Tuner::Start(TunerOptions options) {
  RETURN_IF_ERROR(options.Validate());
  if (started_) return FailedPreconditionError("tuner: it was started already");
  started_ = true;
  options_ = std::move(options);
  engine_.reset();

  TunerRecord replayed;
  for (const Event& event : history_) {
    RETURN_IF_ERROR(ReplayToPolicy(event, &replayed, options_.policy)
                        .WithContext(fmt::format("replay of event {}", event.seq)));
    RETURN_IF_ERROR(replayed.Apply(event));
  }

  ASSIGN_OR_RETURN(launcher_, options_.open_launcher(
                                  [this](const LaunchInfo& info) { engine_->OnLaunch(info); }));
  ASSIGN_OR_RETURN(engine_, TrialEngine::Open({.log = log_.get(),
                                               .launcher = launcher_.get(),
                                               .repositories = repositories_.get(),
                                               .clock = open_.clock,
                                               .ids = open_.ids,
                                               .max_live_runs = options_.max_concurrent,
                                               .on_event = [this](const Event& event) {
                                                 if (event.kind == EventKind::kRunExited) {
                                                   Enqueue({Message::Kind::kRunEnded,
                                                            {event.trial, event.run},
                                                            event.body,
                                                            nullptr});
                                                 }
                                                 if (auto news = NewsOf(event))
                                                   Tell(*std::move(news));
                                               }}));
  history_.clear();
  history_.shrink_to_fit();

  std::string directory = (std::filesystem::temp_directory_path() / "cairn-tune-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    return UnavailableError("no directory for a socket can be made in " +
                            std::filesystem::temp_directory_path().string());
  }
  socket_directory_ = directory;
  ASSIGN_OR_RETURN(
      server_, HttpServer::Start(
                   {.listen = "unix:" + directory + "/tuner", .max_connections = 4096}, Routes()));
  engine_->SetUrl(server_->url());

  if (record_.description() != options_.description || record_.stopped()) {
    RETURN_IF_ERROR(Note("", {{"what", "experiment"}, {"description", options_.description}}));
  }
  RETURN_IF_ERROR(Revive());
  return engine_->Start();
}

/// What becomes of the trials of an earlier life, before anything is started.
Status Tuner::Revive() {
  for (const std::string& id : std::vector<std::string>(record_.order())) {
    TuneTrial* trial = record_.Find(id);
    bool revived = trial->restarting;
    if (trial->phase == TunePhase::kEnded) {
      const bool again = trial->failed ? options_.resume_errored || options_.restart_errored
                                       : options_.extend_ended;
      if (!again) continue;
      const bool restart = trial->failed && options_.restart_errored;
      RETURN_IF_ERROR(Note(id, {{"what", "resume"}, {"restart", restart}}));
      revived = true;
    }
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
        RETURN_IF_ERROR(repositories_->Remove(repository, standing.core.run, ids).status());
      }
      RETURN_IF_ERROR(Note(id, {{"what", "restarted"}}));
    }
    active_.insert(id);
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

Status Tuner::Note(const std::string& trial, Value::Object body) {
  const Event event{.trial = trial, .kind = EventKind::kNote, .body = Value(body)};
  RETURN_IF_ERROR(engine_->Note(trial, std::move(body)));
  return record_.Apply(event);
}

std::string Tuner::NextTrial() const {
  return fmt::format("{}_{:05}", options_.trial_prefix, record_.order().size());
}

Result<bool> Tuner::Step(std::chrono::nanoseconds timeout, TuneNews* news) {
  if (!started_ || engine_ == nullptr) return FailedPreconditionError("tuner: it is not started");
  if (!stop_all_ && options_.policy->StopAll()) {
    stop_all_ = true;
    RETURN_IF_ERROR(Note("", {{"what", "stopped"}}));
  }
  RETURN_IF_ERROR(Fill());
  std::deque<Message> taken;
  bool interrupt = false;
  {
    MutexLock hold(&mu_);
    const auto quiet = [&]() REQUIRES(mu_) {
      return messages_.empty() && news_.empty() && interrupt_ == interrupted_;
    };
    if (quiet() && !Finished()) changed_.WaitFor(&mu_, timeout);
    taken.swap(messages_);
    interrupt = interrupt_;
  }
  if (interrupt && !interrupted_) RETURN_IF_ERROR(PauseAll());
  for (Message& message : taken) RETURN_IF_ERROR(Handle(std::move(message)));
  RETURN_IF_ERROR(Fill());
  const bool finished = Finished();
  if (finished) RETURN_IF_ERROR(engine_->Flush());
  MutexLock hold(&mu_);
  news->insert(news->end(), std::make_move_iterator(news_.begin()),
               std::make_move_iterator(news_.end()));
  news_.clear();
  return finished && messages_.empty();
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
    case Message::Kind::kRunEnded:
      return OnRunEnded(message);
  }
  return InternalError("tuner: a message of no kind");
}

Status Tuner::OnBegin(const Message& message) {
  TuneTrial* trial = record_.Find(message.key.trial);
  if (trial == nullptr) {
    message.done(NotFoundError("no trial " + message.key.trial));
    return Status::Ok();
  }
  runs_[trial->id] = Run{.number = message.key.run};
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
  const Value* given = message.body.Find("result");
  Value result = given == nullptr ? Value() : *given;
  RestoreNonFinite(&result);
  const std::int64_t at = IntOf(result, "training_iteration");
  if (!result.is_object() || at < 1) {
    message.done(InvalidArgumentError("\"result\" must have a training_iteration from 1 up"));
    return Status::Ok();
  }
  Value::Object report{
      {"sequence", sequence}, {"group", "training"}, {"steps_completed", at}, {"metrics", result}};
  if (sequence == run->second.sequence) {  // its answer got lost
    engine_->Report(message.key, report,
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
  if (*decided != Decision{}) report["decision"] = ToValue(*decided);
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
  const Event event{.trial = trial->id, .kind = EventKind::kReport, .body = report};
  engine_->Report(message.key, event.body,
                  [pending, done = message.done](const Result<Value>& taken) {
                    if (!taken.ok()) return done(taken.status());
                    if (!pending->status.ok()) return done(pending->status);
                    done(Value(std::move(pending->answer)));
                  });
  RETURN_IF_ERROR(record_.Apply(event));
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
  record_.Apply({.trial = key.trial, .kind = EventKind::kCheckpointCompleted, .body = checkpoint})
      .IgnoreError("the trial is there");
  if (!donor.empty()) Unpin(donor, pinned);
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
    return PauseAll();
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
    if (donor.ok() && donor->newest && engine_->Pin(choice.donor, donor->newest->id, true).ok()) {
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
                           .max_restarts = std::min(options_.max_failures, kEndless),
                           .preemption_timeout = kPauseTimeout,
                           .kill_grace = options_.kill_grace,
                           .retention = options_.retention,
                           .outlive_engine = false},
               trial->id)
      .status();
}

Value Tuner::Describe(const TuneTrial& trial, const TrialRecord* record, bool with_results) const {
  const char* status = "PENDING";
  if (trial.phase == TunePhase::kEnded) {
    status = trial.failed ? "ERROR" : "TERMINATED";
  } else if (trial.phase == TunePhase::kPaused || left_.contains(trial.id)) {
    status = "PAUSED";
  } else if (trial.phase == TunePhase::kRunning) {
    status = active_.contains(trial.id) ? "RUNNING" : "PAUSED";
  }
  Value::Object out{
      {"trial", trial.id},    {"config", trial.config},       {"status", status},
      {"error", trial.error}, {"iteration", trial.iteration}, {"last_result", trial.last_result}};
  Value::List results;
  Value::List checkpoints;
  if (record != nullptr) {
    out["run"] = record->core.run;
    // A run that went back reports again what came after.
    std::vector<const MetricPoint*> points;
    for (const MetricPoint& point : record->reports) {
      while (!points.empty() && points.back()->steps >= point.steps) points.pop_back();
      points.push_back(&point);
    }
    if (with_results) {
      for (const MetricPoint* point : points) results.push_back(point->values);
    }
    for (const CheckpointRecord& one : record->checkpoints) {
      if (one.state == CheckpointState::kCompleted) checkpoints.push_back(cairn::ToValue(one));
    }
  }
  if (with_results) out["results"] = std::move(results);
  out["checkpoints"] = std::move(checkpoints);
  return out;
}

Value Tuner::Trials(bool with_results) {
  std::map<std::string, TrialRecord, std::less<>> records;
  if (engine_ != nullptr) {
    for (TrialView& view : engine_->List()) records.emplace(view.record.id, std::move(view.record));
  } else {
    TrialRecords folded;
    for (const Event& event : history_) {
      folded.Apply(event).IgnoreError("an event that the engine will refuse; here it only reads");
    }
    for (const auto& [id, record] : folded.trials()) records.emplace(id, record);
  }
  Value::List all;
  for (const std::string& id : record_.order()) {
    const auto found = records.find(id);
    all.push_back(Describe(*record_.Find(id), found == records.end() ? nullptr : &found->second,
                           with_results));
  }
  return all;
}

}  // namespace cairn::tune

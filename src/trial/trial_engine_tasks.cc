// What the engine does with processes; with repositories: trial_engine_storage.cc. All of it
// follows from durable events: a task looks at the folded state, does the next thing and records
// the outcome as an event. Killed anywhere, the same tasks are found again in the state (Start).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "net/token.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

constexpr auto kStorageRetry = std::chrono::seconds(1);
constexpr auto kStorageReminder = std::chrono::minutes(1);
constexpr auto kLauncherRetry = std::chrono::seconds(1);
constexpr int kMissedHeartbeats = 6;

/// The launcher's durable handle of a run. Of trials with a job it says whose: a launcher may still
/// know runs of a lost record, in which other trials had the same numbers.
std::string LaunchId(const TrialRecord& trial, std::uint64_t run) {
  if (trial.job.empty()) return fmt::format("{}.{}", trial.id, run);
  return fmt::format("{}.{}.{}", trial.id, trial.ShortJob(), run);
}

Value HowItEnded(const LaunchExit& exit) {
  // Taken out of the queue, or ended because the launcher was closed in good order.
  Value::Object how{{"message", exit.message},
                    {"stopped", exit.stopped && !exit.succeeded()},
                    {"ended", exit.time}};
  switch (exit.kind) {
    case ExitKind::kExited:
      how["code"] = exit.code;
      break;
    case ExitKind::kSignaled:
      how["signal"] = exit.signal;
      break;
    case ExitKind::kNotStarted:
      how["code"] = 127;
      break;
    case ExitKind::kTimeLimit:
      how["code"] = 124;
      break;
    case ExitKind::kLost:
      how["lost"] = true;
      break;
  }
  return how;
}

}  // namespace

void TrialEngine::Post(std::function<void()> task) {
  MutexLock hold(&mu_);
  tasks_.push_back(std::move(task));
  task_changed_.NotifyAll();
}

void TrialEngine::PostStorage(const std::string& trial, std::function<void()> task) {
  std::string storage;
  {
    MutexLock hold(&mu_);
    if (const TrialRecord* record = Find(trial); record != nullptr)
      storage = record->config.storage;
  }
  storage_.Post(trial, std::move(storage), std::move(task));
}

void TrialEngine::PostAfterDurable(std::function<void()> task) {
  std::uint64_t seq = 0;
  {
    MutexLock hold(&mu_);
    seq = records_.last_seq();
  }
  writer_->AfterDurable(seq, Clock::Duration::zero(),
                        [this, task = std::move(task)](const Status& status) {
                          if (status.ok()) Post(task);
                        });
}

void TrialEngine::WorkerLoop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::function<void()> task;
    {
      MutexLock hold(&mu_);
      while (tasks_.empty() && !stopping_) task_changed_.Wait(&mu_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void TrialEngine::At(Clock::Duration when, std::function<void()> what) {
  MutexLock hold(&mu_);
  timers_.emplace(when, std::move(what));
  timer_changed_.NotifyAll();
}

void TrialEngine::TimerLoop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Clock::Duration next = writer_->Expire();
    std::vector<std::function<void()>> due;
    {
      MutexLock hold(&mu_);
      if (stopping_) return;
      const Clock::Duration now = options_.clock->Now();
      while (!timers_.empty() && timers_.begin()->first <= now) {
        due.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
      if (!timers_.empty()) next = std::min(next, timers_.begin()->first - now);
      if (due.empty()) timer_changed_.WaitFor(&mu_, next);
    }
    for (const auto& what : due) what();
  }
}

void TrialEngine::StartQueued() {
  std::vector<std::string> starting;
  {
    MutexLock hold(&mu_);
    starting = TakeQueued();
  }
  for (const std::string& id : starting) {
    PostStorage(id, [this, id] { PrepareRun(id); });
  }
}

std::vector<std::string> TrialEngine::TakeQueued() {
  std::vector<std::string> starting;
  if (!started_ || stopping_ || draining_ || options_.launcher == nullptr) return starting;
  std::vector<const TrialRecord*> queued;
  // A run that has just begun is in both for a moment, and takes one place.
  std::size_t live = live_.size();
  for (const std::string& id : preparing_) live += live_.contains(id) ? 0 : 1;
  if (options_.max_live_runs > 0 && live >= options_.max_live_runs) return starting;
  for (const std::string& id : queued_) {
    if (!preparing_.contains(id) && !waits_for_storage_.contains(id)) queued.push_back(Find(id));
  }
  std::ranges::stable_sort(queued, [](const TrialRecord* a, const TrialRecord* b) {
    if (a->config.priority != b->config.priority) return a->config.priority > b->config.priority;
    return a->created < b->created;
  });
  for (const TrialRecord* trial : queued) {
    if (options_.max_live_runs > 0 && live >= options_.max_live_runs) break;
    ++live;
    preparing_.insert(trial->id);
    starting.push_back(trial->id);
  }
  return starting;
}

Value TrialEngine::LocatedValue(const std::optional<StartPoint>& point) const {
  if (!point) return ToValue(point);
  StartPoint located = *point;
  located.repository = Locate(point->repository);
  return ToValue(std::optional(std::move(located)));
}

Value TrialEngine::RunBody(const TrialRecord& trial, const std::string& token) const {
  const std::string repository = RepositoryOf(trial);
  const auto from = trial.NextStart(repository);
  const bool own = from && from->repository == repository;
  return Value::Object{{"token_hash", HashToken(token)},
                       {"resume_mode", !from ? "fresh"
                                       : own ? "resume"
                                             : "continue"},
                       {"from", ToValue(from)}};
}

void TrialEngine::PrepareRun(const std::string& trial) {
  const bool begun = BeginRun(trial);
  {
    MutexLock hold(&mu_);
    preparing_.erase(trial);
  }
  // Its place is free for another.
  if (!begun) StartQueued();
}

void TrialEngine::TellStorageWait(const std::string& trial, const Status& read) {
  const Clock::Duration now = options_.clock->Now();
  const auto seconds = [](Clock::Duration since) {
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
  };
  std::string line;
  {
    MutexLock hold(&mu_);
    const auto known = storage_waits_.find(trial);
    if (read.ok()) {
      if (known == storage_waits_.end()) return;
      line = fmt::format("trial {}: its storage is back after {} s", trial,
                         seconds(now - known->second.since));
      storage_waits_.erase(known);
    } else if (known == storage_waits_.end()) {
      line = fmt::format("trial {} waits for its storage: {}", trial, read.ToString());
      storage_waits_[trial] = {.since = now, .told = now, .why = std::string(read.message())};
    } else {
      StorageWait& wait = known->second;
      if (wait.why == read.message() && now - wait.told < kStorageReminder) return;
      line = fmt::format("trial {} has been waiting for its storage for {} s: {}", trial,
                         seconds(now - wait.since), read.ToString());
      wait.told = now;
      wait.why = read.message();
    }
  }
  LogWarning(line);
  if (options_.on_wait) options_.on_wait(trial);
}

bool TrialEngine::BeginRun(const std::string& trial) {
  {
    MutexLock hold(&mu_);
    if (draining_ || Find(trial)->core.state != TrialState::kQueued) {
      storage_waits_.erase(trial);  // nobody waits any more
      return false;
    }
  }
  // What to start from is decided by what is in the repository, not by what was reported.
  Status read = ChooseRepository(trial);
  if (read.ok()) read = RegisterFound(trial);
  TellStorageWait(trial, read);
  if (!read.ok()) {
    {
      MutexLock hold(&mu_);
      waits_for_storage_.insert(trial);
    }
    At(options_.clock->Now() + kStorageRetry, [this, trial] {
      {
        MutexLock hold(&mu_);
        waits_for_storage_.erase(trial);
      }
      StartQueued();
    });
    return false;
  }
  Retain(trial);
  const Result<std::string> token = NewToken();
  std::uint64_t run = 0;
  bool early = false;
  Status started = token.status();
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record->core.state != TrialState::kQueued) return false;
    run = record->core.run + 1;
    early = options_.submit_early && !record->config.outlive_engine;
    if (started.ok()) {
      started = Emit(trial, run, EventKind::kRunStarted, RunBody(*record, *token));
    }
    if (started.ok()) deadlines_.erase(trial);
  }
  if (!started.ok()) {
    LogError(fmt::format("trial {}: {}", trial, started.ToString()));
    return false;
  }
  auto submit = [this, trial, run, token = *token] { Submit(trial, run, token, false); };
  early ? Post(std::move(submit)) : PostAfterDurable(std::move(submit));
  return true;
}

void TrialEngine::Submit(const std::string& trial, std::uint64_t run, const std::string& token,
                         bool again) {
  LaunchSpec spec;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (draining_ || record->core.run != run || !record->core.live) return;
    const TrialConfig& config = record->config;
    spec.id = LaunchId(*record, run);
    spec.argv = config.argv;
    spec.cwd = Locate(config.cwd);
    spec.env = config.env;
    spec.env["CAIRN_TRIAL_URL"] =
        config.launcher.empty() || remote_url_.empty() ? url_ : remote_url_;
    if (!ca_.empty()) spec.env["CAIRN_MASTER_CA"] = ca_;
    spec.env["CAIRN_RUN_TOKEN"] = token;
    spec.env["CAIRN_EXPERIMENT_ID"] = config.experiment;
    spec.env["CAIRN_TRIAL_ID"] = trial;
    spec.env["CAIRN_RUN_ID"] = std::to_string(run);
    spec.env["CAIRN_HPARAMS"] = EncodeJson(config.hparams);
    spec.env["CAIRN_STORAGE"] = Locate(config.storage);
    spec.env["CAIRN_LATEST_CHECKPOINT"] = record->start ? record->start->id : "";
    spec.env["CAIRN_RESUME_MODE"] = record->resume_mode;
    spec.processes = config.world_size;
    spec.slots = config.slots;
    spec.priority = config.priority;
    spec.launcher = config.launcher;
    spec.resources = config.resources;
    spec.limits = config.limits;
    spec.grace = config.kill_grace;
    spec.outlive_owner = config.outlive_engine;
  }
  const Status submitted = options_.launcher->Submit(spec);
  // Also of a launcher that is being closed: whoever opens it again starts the run.
  if (submitted.Is(Code::kUnavailable) || submitted.Is(Code::kFailedPrecondition)) {
    At(options_.clock->Now() + kLauncherRetry, [this, trial, run, token] {
      Post([this, trial, run, token] { Submit(trial, run, token, true); });
    });
    return;
  }
  if (submitted.Is(Code::kAlreadyExists) && !again) {
    // Left by a later life of this record than the backup which was put in its place. What it does
    // is fenced off by the next run.
    PostStorage(trial, [this, trial, run, id = spec.id] {
      Ended(trial, run,
            Value::Object{{"stopped", true},
                          {"message", fmt::format("the launcher knew a run {} already", id)}});
    });
    return;
  }
  // AlreadyExists: an earlier try got through.
  if (!submitted.ok() && !submitted.Is(Code::kAlreadyExists)) {
    PostStorage(trial, [this, trial, run, message = std::string(submitted.message())] {
      Ended(trial, run, Value::Object{{"code", 127}, {"message", message}});
    });
    return;
  }
  Enforce(trial);  // it may have been paused before it was there
}

Status TrialEngine::Signal(const std::string& trial, int signal) {
  std::string id;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    if (!record->core.live || options_.launcher == nullptr) {
      return FailedPreconditionError(fmt::format("trial {} has no run", trial));
    }
    id = LaunchId(*record, record->core.run);
  }
  return options_.launcher->Signal(id, signal);
}

std::optional<TrialEngine::RunKey> TrialEngine::RunOf(std::string_view launch) {
  const std::size_t point = launch.rfind('.');
  if (point == std::string_view::npos) return std::nullopt;
  RunKey key;
  const char* const end = launch.data() + launch.size();
  if (std::from_chars(launch.data() + point + 1, end, key.run).ptr != end) return std::nullopt;
  const std::string_view before = launch.substr(0, point);
  const TrialRecord* record = Find(before);  // called so before its trial had a job
  const std::size_t job = before.rfind('.');
  if (record == nullptr && job != std::string_view::npos) {
    record = Find(before.substr(0, job));
    if (record != nullptr && LaunchId(*record, key.run) != launch) record = nullptr;
  }
  if (record == nullptr) return std::nullopt;
  key.trial = record->id;
  return key;
}

std::optional<TrialEngine::RunKey> TrialEngine::RunOfLaunch(std::string_view launch) {
  MutexLock hold(&mu_);
  return RunOf(launch);
}

void TrialEngine::OnLaunch(const LaunchInfo& info) {
  std::string trial;
  std::uint64_t run = 0;
  bool waited = false;
  {
    MutexLock hold(&mu_);
    const auto key = RunOf(info.id);
    if (!key) return;
    trial = key->trial;
    run = key->run;
    const TrialRecord* record = Find(trial);
    if (LaunchId(*record, run) != info.id) return;  // from before; what lives is called so
    waited = info.state != LaunchState::kQueued && waits_for_slots_.erase(trial) > 0;
    if (record->core.run != run || !record->core.live) return;
  }
  if (waited && options_.on_wait) options_.on_wait(trial);
  if (info.state != LaunchState::kEnded || !info.exit) return;
  PostStorage(trial, [this, trial, run, how = HowItEnded(*info.exit)] { Ended(trial, run, how); });
}

void TrialEngine::Ended(const std::string& trial, std::uint64_t run, const Value& how) {
  bool tidy = false;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr || record->core.run != run || !record->core.live) return;
    // It may have died in the middle of a save or a removal, and the next run need not write. A
    // process that is lost, or that somebody else started, may still be writing.
    const Value* code = how.Find("code");
    tidy = (code == nullptr || *code != Value(0)) && how.Find("lost") == nullptr &&
           !record->config.detached;
  }
  // A checkpoint that was committed and not reported any more.
  if (const Status read = RegisterFound(trial); !read.ok()) {
    LogWarning(fmt::format("trial {}: its repository is read at the next start: {}", trial,
                           read.ToString()));
  } else if (tidy) {
    if (const Status tidied = Tidy(trial); !tidied.ok()) {
      LogWarning(fmt::format("trial {}: what dead runs left stays: {}", trial, tidied.ToString()));
    }
  }
  {
    MutexLock hold(&mu_);
    deadlines_.erase(trial);
    waits_for_slots_.erase(trial);
    const Status ended = Emit(trial, run, EventKind::kRunExited, how);
    if (!ended.ok()) LogError(fmt::format("trial {}: {}", trial, ended.ToString()));
  }
  PostAfterDurable([this, trial] {
    StartQueued();
    PostStorage(trial, [this, trial] { Retain(trial); });
    PostRetainAll();
  });
}

void TrialEngine::Reattach(const std::string& trial, std::uint64_t run) {
  bool detached = false;
  std::string id;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    detached = record->config.detached;
    id = LaunchId(*record, run);
  }
  if (detached) {
    ArmHeartbeat(trial, run);
    return Enforce(trial);
  }
  if (options_.launcher == nullptr) return;
  const auto info = options_.launcher->Get(id);
  if (info.status().Is(Code::kNotFound)) {
    // Never submitted: we died in between. Nothing of it runs or will.
    return Ended(trial, run, Value::Object{{"stopped", true}});
  }
  if (!info.ok()) {
    At(options_.clock->Now() + kStorageRetry,
       [this, trial, run] { PostStorage(trial, [this, trial, run] { Reattach(trial, run); }); });
    return;
  }
  if (info->state == LaunchState::kEnded && info->exit) {
    return Ended(trial, run, HowItEnded(*info->exit));
  }
  Enforce(trial);
}

void TrialEngine::Enforce(const std::string& trial) {
  TrialCore core;
  bool detached = false;
  bool launched = false;
  std::string id;
  std::chrono::nanoseconds grace{0};
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr || !record->core.live) return;
    core = record->core;
    detached = record->config.detached;
    id = LaunchId(*record, core.run);
    grace = record->config.kill_grace;
    launched = core.state == TrialState::kStarting && !detached && options_.launcher != nullptr;
    // Before one looks whether it does: what starts meanwhile is taken out by OnLaunch.
    if (launched) waits_for_slots_.insert(trial);
  }
  if (launched) {
    // Nothing is to be done about it; but who shows it has to know that it waits for slots.
    const auto info = options_.launcher->Get(id);
    if (info.ok() && info->state == LaunchState::kQueued) {
      if (options_.on_wait) options_.on_wait(trial);
      return;
    }
    MutexLock hold(&mu_);
    waits_for_slots_.erase(trial);
    return;
  }
  const bool asked = core.state == TrialState::kPausing || core.state == TrialState::kStopping;
  if (!asked) return;
  // Nobody here can end a process that was started elsewhere; from now on it is not heard.
  if (detached && core.signalled) {
    return PostStorage(
        trial, [this, trial, run = core.run] { Ended(trial, run, Value::Object{{"lost", true}}); });
  }
  if (detached || options_.launcher == nullptr) return;
  Status done;
  if (core.killed) {
    done = options_.launcher->Kill(id);
  } else if (core.signalled) {
    done = options_.launcher->Stop(id, grace);
  } else if (const auto info = options_.launcher->Get(id);
             info.ok() && info->state == LaunchState::kQueued) {
    done = options_.launcher->Kill(id);  // nobody is there to be told
  }
  if (!done.ok() && !done.Is(Code::kNotFound)) {
    LogWarning(fmt::format("trial {}: {}", trial, done.ToString()));
    At(options_.clock->Now() + kLauncherRetry,
       [this, trial] { Post([this, trial] { Enforce(trial); }); });
  }
}

void TrialEngine::ArmDeadline(const std::string& trial) {
  std::uint64_t run = 0;
  Clock::Duration when{};
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr || !record->core.live) return;
    run = record->core.run;
    when = options_.clock->Now() + std::chrono::milliseconds(record->deadline_ms);
    deadlines_[trial] = when;
  }
  At(when, [this, trial, run] { DeadlinePassed(trial, run); });
}

void TrialEngine::DeadlinePassed(const std::string& trial, std::uint64_t run) {
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    const bool asked =
        record->core.state == TrialState::kPausing || record->core.state == TrialState::kStopping;
    const auto deadline = deadlines_.find(trial);
    if (record->core.run != run || !record->core.live || !asked || record->core.signalled ||
        deadline == deadlines_.end() || deadline->second > options_.clock->Now()) {
      return;
    }
    const Status signalled =
        Emit(trial, run, EventKind::kSignalled, Value::Object{{"signal", "SIGTERM"}});
    if (!signalled.ok()) return;
  }
  PostAfterDurable([this, trial] { Enforce(trial); });
}

void TrialEngine::ArmHeartbeat(const std::string& trial, std::uint64_t run) {
  const Clock::Duration patience = options_.heartbeat * kMissedHeartbeats;
  Clock::Duration when{};
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr || record->core.run != run || !record->core.live) return;
    when = heard_[trial] + patience;
  }
  At(when, [this, trial, run, patience] {
    bool lost = false;
    {
      MutexLock hold(&mu_);
      lost = heard_[trial] + patience <= options_.clock->Now();
    }
    if (!lost) return ArmHeartbeat(trial, run);
    PostStorage(trial, [this, trial, run] {
      Ended(trial, run, Value::Object{{"lost", true}, {"message", "no heartbeat"}});
    });
  });
}

}  // namespace cairn

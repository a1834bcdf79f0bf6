#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/settable_clock.h"
#include "base/thread_annotations.h"
#include "launch/launcher.h"
#include "trial/event_log.h"
#include "trial/repository_access.h"
#include "trial/trial_engine.h"

namespace cairn {

/// A launcher whose processes are entries of a map: a test says when they end. Lives on while
/// engines come and go, as real processes do.
class FakeLauncher final : public Launcher {
 public:
  /// Who is told. Once another one is set, the former is not being called any more.
  class Told {
   public:
    Told& operator=(LaunchListener listener) {
      MutexLock hold(&mu_);
      listener_ = std::move(listener);
      return *this;
    }
    void operator()(const LaunchInfo& info) {
      MutexLock hold(&mu_);
      if (listener_) listener_(info);
    }

   private:
    Mutex mu_;
    LaunchListener listener_ GUARDED_BY(mu_);
  };
  Told listener;
  bool hold_queue = false;  // everything submitted waits for slots

  Status Submit(LaunchSpec spec) override {
    LaunchInfo info;
    {
      MutexLock hold(&mu_);
      if (launches_.contains(spec.id)) return AlreadyExistsError(spec.id);
      info.id = spec.id;
      info.state = hold_queue ? LaunchState::kQueued : LaunchState::kRunning;
      specs_[spec.id] = spec;
      launches_[spec.id] = info;
      changed_.NotifyAll();
    }
    if (info.state == LaunchState::kRunning) listener(info);
    return Status::Ok();
  }
  Result<LaunchInfo> Get(std::string_view id) override {
    MutexLock hold(&mu_);
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError(std::string(id));
    return found->second;
  }
  Result<std::vector<LaunchInfo>> List() override {
    MutexLock hold(&mu_);
    std::vector<LaunchInfo> all;
    for (const auto& [id, info] : launches_) all.push_back(info);
    return all;
  }
  Status Signal(std::string_view id, int signal) override {
    MutexLock hold(&mu_);
    signals_.emplace_back(id, signal);
    return Status::Ok();
  }
  Status Stop(std::string_view id, std::chrono::nanoseconds grace) override {
    bool queued = false;
    {
      MutexLock hold(&mu_);
      if (fail_stops > 0) {
        --fail_stops;
        return UnavailableError("not now");
      }
      stops_[std::string(id)].push_back(grace);
      const auto found = launches_.find(id);
      queued = found != launches_.end() && found->second.state == LaunchState::kQueued;
      changed_.NotifyAll();
    }
    if (queued) {
      End(std::string(id), {.kind = ExitKind::kNotStarted, .stopped = true});
    } else if (ends_when_stopped) {
      End(std::string(id), {.kind = ExitKind::kSignaled, .signal = 15, .stopped = true});
    }
    return Status::Ok();
  }
  Result<LaunchInfo> Wait(std::string_view, std::chrono::nanoseconds) override {
    return UnimplementedError("not in tests");
  }
  Result<LaunchLogPage> ReadLog(std::string_view, std::uint64_t, std::uint64_t) override {
    return LaunchLogPage{};
  }
  Status Forget(std::string_view) override { return Status::Ok(); }
  Status Close(CloseMode, std::chrono::nanoseconds) override { return Status::Ok(); }

  /// What waited for slots has them.
  void Begin(const std::string& id) {
    LaunchInfo info;
    {
      MutexLock hold(&mu_);
      launches_[id].state = LaunchState::kRunning;
      info = launches_[id];
    }
    listener(info);
  }
  void End(const std::string& id, LaunchExit exit) {
    LaunchInfo info;
    {
      MutexLock hold(&mu_);
      LaunchInfo& launch = launches_[id];
      if (launch.state == LaunchState::kEnded) return;
      launch.state = LaunchState::kEnded;
      launch.exit = exit;
      info = launch;
      changed_.NotifyAll();
    }
    listener(info);
  }
  /// Waits until it was submitted, and gives what was.
  LaunchSpec WaitFor(const std::string& id) {
    MutexLock hold(&mu_);
    while (!specs_.contains(id)) changed_.Wait(&mu_);
    return specs_[id];
  }
  /// Waits until it was told to stop, and gives the grace.
  std::chrono::nanoseconds WaitForStop(const std::string& id) {
    MutexLock hold(&mu_);
    while (stops_[id].empty()) changed_.Wait(&mu_);
    return stops_[id].back();
  }
  std::vector<std::pair<std::string, int>> signals() {
    MutexLock hold(&mu_);
    return signals_;
  }
  std::size_t running() {
    MutexLock hold(&mu_);
    std::size_t count = 0;
    for (const auto& [id, info] : launches_) count += info.state == LaunchState::kRunning ? 1 : 0;
    return count;
  }
  bool ends_when_stopped = false;
  int fail_stops = 0;  // so many are refused first

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, LaunchInfo, std::less<>> launches_ GUARDED_BY(mu_);
  std::map<std::string, LaunchSpec, std::less<>> specs_ GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::chrono::nanoseconds>, std::less<>> stops_ GUARDED_BY(mu_);
  std::vector<std::pair<std::string, int>> signals_ GUARDED_BY(mu_);
};

/// Repositories in memory.
class FakeRepositories final : public RepositoryAccess {
 public:
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    MutexLock hold(&mu_);
    ++lists_;
    changed_.NotifyAll();
    while (held_.contains(repository)) changed_.Wait(&mu_);
    if (!failure_.ok()) return failure_;
    if (const auto failed = failures_.find(repository); failed != failures_.end()) {
      return failed->second;
    }
    return found_[repository];
  }
  void WaitForLists(int count) {
    MutexLock hold(&mu_);
    while (lists_ < count) changed_.Wait(&mu_);
  }
  int lists() {
    MutexLock hold(&mu_);
    return lists_;
  }
  Result<std::string> Job(const std::string& repository) override {
    MutexLock hold(&mu_);
    const auto found = jobs_.find(repository);
    return found == jobs_.end() ? Result<std::string>(NotFoundError(repository)) : found->second;
  }
  Result<std::uint64_t> NewestRun(const std::string& repository) override {
    MutexLock hold(&mu_);
    const auto found = runs_.find(repository);
    return found == runs_.end() ? 0 : found->second;
  }
  Result<std::string> Claim(const std::string& repository, const std::string& job) override {
    MutexLock hold(&mu_);
    return jobs_.emplace(repository, job).first->second;
  }
  Result<std::vector<std::string>> Remove(const std::string& repository, const Owner& owner,
                                          const std::vector<std::string>& ids) override {
    MutexLock hold(&mu_);
    if (const auto job = jobs_.find(repository);
        job != jobs_.end() && !owner.job.empty() && job->second != owner.job) {
      return FailedPreconditionError(repository + " belongs to another job");
    }
    if (runs_[repository] > owner.run) return FailedPreconditionError("an older run");
    while (held_.contains(repository)) changed_.Wait(&mu_);
    std::vector<std::string> gone;
    for (const std::string& id : ids) {
      std::vector<FoundCheckpoint>& there = found_[repository];
      if (std::ranges::any_of(there, [&](const auto& one) { return one.id == id && one.pinned; })) {
        continue;
      }
      std::erase_if(there, [&](const auto& one) { return one.id == id; });
      gone.push_back(id);
      removed_.push_back(id);
    }
    changed_.NotifyAll();
    if (gone.empty() && !ids.empty()) return FailedPreconditionError(ids.front() + " is pinned");
    return gone;
  }
  Status Tidy(const std::string& repository, const Owner& owner) override {
    MutexLock hold(&mu_);
    tidied_.emplace_back(repository, owner.run);
    return Status::Ok();
  }
  /// Where it was asked to, and in the name of which run.
  std::vector<std::pair<std::string, std::uint64_t>> tidied() {
    MutexLock hold(&mu_);
    return tidied_;
  }
  Status Pin(const std::string& repository, const std::string& id, bool pinned) override {
    MutexLock hold(&mu_);
    for (FoundCheckpoint& one : found_[repository]) {
      if (one.id != id) continue;
      one.pinned = pinned;
      return Status::Ok();
    }
    return NotFoundError(id);
  }
  /// Moves all below one directory to another.
  void Move(const std::string& from, const std::string& to) {
    MutexLock hold(&mu_);
    const auto move = [&](auto* map) {
      auto before = std::exchange(*map, {});
      for (auto& [name, value] : before) {
        const bool moved = name.starts_with(from + "/");
        (*map)[moved ? to + name.substr(from.size()) : name] = std::move(value);
      }
    };
    move(&found_);
    move(&jobs_);
  }
  /// As a run that opened it.
  void SetRun(const std::string& repository, std::uint64_t run) {
    MutexLock hold(&mu_);
    runs_[repository] = run;
  }
  /// Makes it somebody's.
  void SetJob(const std::string& repository, const std::string& job) {
    MutexLock hold(&mu_);
    jobs_[repository] = job;
  }
  /// As a run does that was told to: a pinned one stays.
  Status RemoveAsRun(const std::string& repository, const std::string& id) {
    MutexLock hold(&mu_);
    const std::size_t gone = std::erase_if(
        found_[repository], [&](const auto& one) { return one.id == id && !one.pinned; });
    return gone == 1 ? Status::Ok() : FailedPreconditionError(id);
  }
  /// Calls for that repository wait until Release.
  void Hold(const std::string& repository) {
    MutexLock hold(&mu_);
    held_.insert(repository);
  }
  void Release() {
    MutexLock hold(&mu_);
    held_.clear();
    changed_.NotifyAll();
  }
  void Commit(const std::string& repository, FoundCheckpoint checkpoint) {
    MutexLock hold(&mu_);
    checkpoint.generation = ++generation_;
    found_[repository].push_back(std::move(checkpoint));
  }
  void Damage(const std::string& repository, const std::string& id, const std::string& damage) {
    MutexLock hold(&mu_);
    for (FoundCheckpoint& one : found_[repository]) {
      if (one.id == id) one.damage = damage;
    }
  }
  void Fail(Status status) {
    MutexLock hold(&mu_);
    failure_ = std::move(status);
  }
  void FailFor(const std::string& repository, const Status& status) {
    MutexLock hold(&mu_);
    failures_.erase(repository);
    if (!status.ok()) failures_.emplace(repository, status);
  }
  std::vector<std::string> removed() {
    MutexLock hold(&mu_);
    return removed_;
  }
  void WaitForRemoved(std::size_t count) {
    MutexLock hold(&mu_);
    while (removed_.size() < count) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Status failure_ GUARDED_BY(mu_);
  std::map<std::string, Status> failures_ GUARDED_BY(mu_);
  int lists_ GUARDED_BY(mu_) = 0;
  std::set<std::string> held_ GUARDED_BY(mu_);
  std::uint64_t generation_ GUARDED_BY(mu_) = 0;
  std::map<std::string, std::vector<FoundCheckpoint>> found_ GUARDED_BY(mu_);
  std::map<std::string, std::string> jobs_ GUARDED_BY(mu_);
  std::map<std::string, std::uint64_t> runs_ GUARDED_BY(mu_);
  std::vector<std::string> removed_ GUARDED_BY(mu_);
  std::vector<std::pair<std::string, std::uint64_t>> tidied_ GUARDED_BY(mu_);
};

/// An event log in memory that can fail.
class MemoryEventLog final : public EventLog {
 public:
  Status Append(std::span<const Event> events) override {
    MutexLock hold(&mu_);
    ++appends_;
    if (!failure_.ok()) return failure_;
    for (const Event& event : events) {
      if (events_.empty() || event.seq > events_.back().seq) events_.push_back(event);
    }
    return Status::Ok();
  }
  Status Replay(std::uint64_t from, const Visitor& visit) override {
    for (const Event& event : events()) {
      if (event.seq < from) continue;
      if (const Status seen = visit(event); !seen.ok()) return seen;
    }
    return Status::Ok();
  }
  void Fail(Status status) {
    MutexLock hold(&mu_);
    failure_ = std::move(status);
  }
  std::vector<Event> events() {
    MutexLock hold(&mu_);
    return events_;
  }
  std::uint64_t appends() {
    MutexLock hold(&mu_);
    return appends_;
  }
  void Cut(std::size_t count) {
    MutexLock hold(&mu_);
    events_.resize(count);
  }

 private:
  Mutex mu_;
  Status failure_ GUARDED_BY(mu_);
  std::uint64_t appends_ GUARDED_BY(mu_) = 0;
  std::vector<Event> events_ GUARDED_BY(mu_);
};

}  // namespace cairn

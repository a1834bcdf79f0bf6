// What Ray and the directories say of launches that were handed over (ray_site.cc).

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/log.h"
#include "base/status_macros.h"
#include "launch/ray_jobs.h"
#include "launch/ray_site.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr std::size_t kLongestWords = 500;

/// Ray's words, which may hold a whole log: their first line and their end.
std::string Said(const std::string& message) {
  const std::string first = message.substr(0, std::min(message.find('\n'), kLongestWords));
  if (first.size() == message.size()) return first;
  std::string rest = message.substr(first.size() + 1);
  if (rest.size() > kLongestWords) rest.erase(0, rest.size() - kLongestWords);
  while (rest.ends_with('\n')) rest.pop_back();
  return first + " " + rest;
}

/// What a shim that was killed left behind, where that can be seen from here.
void SweepHere(const LaunchDirectory& directory, const std::string& key) {
  const auto keeper = directory.ReadKeeper();
  const auto self = IdentityOf(getpid());
  if (!keeper.ok() || !self.ok() || keeper->boot != self->boot) return;
  if (const Status swept = KillByEnvironment(kLaunchKeyVariable, key); !swept.ok()) {
    LogWarning(swept.WithContext("launch in " + directory.path()).ToString());
  }
}

}  // namespace

void RayLauncher::AskForJobs() {
  asked_ = clock()->Now();
  const auto jobs = client_->Jobs();
  {
    MutexLock lock(&mu_);
    Note(jobs.status(), &trouble_);
  }
  if (!jobs.ok()) {
    if (!silent_since_.has_value()) silent_since_ = asked_;
    return;
  }
  silent_since_.reset();
  std::map<std::string, std::pair<RayJobOrigin, const RayJob*>> latest;  // by the launch's job
  for (const RayJob& job : *jobs) {
    auto origin = OriginOf(job);
    if (!origin.has_value() || origin->launches != options_.directory) continue;
    const auto known = latest.find(origin->job);
    if (known != latest.end() && known->second.first.attempt > origin->attempt) continue;
    std::string name = origin->job;
    latest.insert_or_assign(std::move(name), std::make_pair(*std::move(origin), &job));
  }
  std::vector<std::pair<std::string, const RayJob*>> silent;
  {
    MutexLock lock(&mu_);
    NoteOldJobs(*jobs);
    for (const auto& [id, each] : launches_) {
      RayLaunch* launch = Of(each);
      if (!launch->handed()) continue;
      const auto found = latest.find(launch->job);
      const RayJob* job = found == latest.end() ? nullptr : found->second.second;
      if (job != nullptr) {
        launch->accepted = true;
        launch->attempt = std::max(launch->attempt, found->second.first.attempt);
        launch->waits_for =
            launch->nodes > 1 && job->status == "RUNNING"
                ? fmt::format("job {} waits in Ray: until {} nodes have what it wants", job->id,
                              launch->nodes)
                : fmt::format("job {} waits in Ray: {}", job->id, Said(job->message));
      }
      if (job != nullptr && !job->ended()) {
        launch->silent = 0;
        launch->doubt.reset();
        continue;
      }
      if (std::ranges::any_of(submissions_, [&](const auto& s) { return s.launch == id; })) {
        continue;  // not handed over yet
      }
      // One that was never accepted was left by an owner who died before it was.
      if (++launch->silent >= kLooksBeforeLost || !launch->accepted) silent.emplace_back(id, job);
    }
  }
  for (const auto& [id, job] : silent) Judge(id, job);
}

void RayLauncher::NoteOldJobs(const std::vector<RayJob>& jobs) {
  std::vector<const RayJob*> ended;
  for (const RayJob& job : jobs) {
    if (!job.ended()) continue;
    const auto origin = OriginOf(job);
    if (!origin.has_value() || origin->launches != options_.directory) continue;
    const RayLaunch* launch = FindHanded(origin->launch);
    if (launch == nullptr || launch->job != origin->job) ended.push_back(&job);
  }
  old_jobs_.clear();
  const auto keep = static_cast<std::size_t>(options_.keep_jobs);
  if (ended.size() <= keep) return;
  std::ranges::sort(ended, std::greater<>(), &RayJob::end_time);
  for (std::size_t i = keep; i < ended.size(); ++i) old_jobs_.push_back(ended[i]->id);
}

LaunchExit RayLauncher::LostIn(const RayLaunch& launch, const RayJob* job, bool begun) const {
  LaunchExit lost;
  lost.kind = begun ? ExitKind::kLost : ExitKind::kNotStarted;
  // A head that was started anew knows nothing: nobody's failure.
  lost.stopped = launch.stop_asked || job == nullptr || job->taken_away();
  lost.message =
      fmt::format("Ray's job {} is {}: {}", RayJobId(launch.job, launch.attempt),
                  job == nullptr ? "not known to it" : job->status,
                  begun ? "how the launch ended is not known" : "it ended before the launch began");
  if (job != nullptr && !job->message.empty()) lost.message += ": " + Said(job->message);
  return lost;
}

void RayLauncher::Judge(const std::string& id, const RayJob* job) {
  const LaunchDirectory directory(Path(id));
  directory.Refresh();
  const bool ended = directory.ReadExit().ok();
  const bool begun = directory.ReadKeeper().ok();
  {
    MutexLock lock(&mu_);
    RayLaunch* launch = FindHanded(id);
    if (launch == nullptr) return;
    if (!begun) return JudgeWaiting(launch, job);
    if (!ended && !launch->doubt.has_value()) {
      launch->doubt = LostIn(*launch, job, /*begun=*/true);
      launch->heard.reset();
      // A shim on a node that Ray gave up, and that lives, reads this.
      Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
          .IgnoreError("nobody may be there");
    }
  }
  // Otherwise it is listened for: LookAtDirectories.
  if (ended || (job != nullptr && job->process_ended())) Settle(id);
}

void RayLauncher::JudgeWaiting(RayLaunch* launch, const RayJob* job) {
  const std::string id = launch->info.id;
  if (job == nullptr && !launch->accepted) {
    if (launch->directory.Remove().ok()) Drop(id);
    return;
  }
  if (job != nullptr && job->gave_up_waiting() && !launch->stop_asked) {
    launch->silent = 0;
    ++launch->attempt;
    submissions_.push_back(
        {.launch = id, .request = RequestFor(*launch, OriginOf(*job)->resources)});
    return;
  }
  const Status claimed = ClaimLaunch(launch->directory);
  if (claimed.Is(Code::kAlreadyExists)) return;  // it has begun after all
  if (!claimed.ok()) {
    LogError(claimed.WithContext("launch " + id).ToString());
    return;  // again at the next look
  }
  LaunchExit lost = LostIn(*launch, job, /*begun=*/false);
  EndUnstarted(launch, lost.stopped, std::move(lost.message));
}

void RayLauncher::Settle(const std::string& id) {
  const LaunchDirectory directory(Path(id));
  std::string key;
  std::optional<LaunchExit> doubt;
  {
    MutexLock lock(&mu_);
    const RayLaunch* launch = FindHanded(id);
    if (launch == nullptr) return;
    key = launch->key;
    doubt = launch->doubt;
  }
  Result<LaunchExit> exit = directory.ReadExit();
  if (!exit.ok() && doubt.has_value()) {
    SweepHere(directory, key);
    doubt->time = clock()->WallNanos();
    const Status published = directory.Publish(*doubt);
    if (!published.ok() && !published.Is(Code::kAlreadyExists)) {
      LogError(published.WithContext("launch " + id).ToString());
      return;  // again at the next look
    }
    exit = directory.ReadExit();
    if (!exit.ok()) exit = *std::move(doubt);
  }
  MutexLock lock(&mu_);
  if (RayLaunch* launch = FindHanded(id); launch != nullptr && exit.ok()) {
    End(launch, *std::move(exit));
  }
}

bool RayLauncher::HeadIsSilent() const {
  return silent_since_.has_value() && clock()->Now() >= *silent_since_ + options_.head_patience;
}

bool RayLauncher::IsDoubtful(ClusterLaunch* launch) {
  auto* ray = static_cast<RayLaunch*>(launch);
  const bool runs = launch->info.state == LaunchState::kRunning;
  const bool doubtful = ray->doubt.has_value() || (runs && HeadIsSilent());
  if (!doubtful) ray->heard.reset();
  return doubtful;
}

void RayLauncher::Listen(const std::string& id) {
  std::string pulse = LaunchDirectory(Path(id)).ReadPulse();
  const Nanos now = clock()->Now();
  {
    MutexLock lock(&mu_);
    RayLaunch* launch = FindHanded(id);
    if (launch == nullptr) return;
    if (!launch->heard.has_value() || pulse != launch->pulse) {
      launch->pulse = std::move(pulse);
      launch->heard = now;
      return;
    }
    if (now < *launch->heard + options_.shim_patience) return;
    if (!launch->doubt.has_value()) {
      launch->doubt = LaunchExit{
          .kind = ExitKind::kLost,
          .stopped = true,
          .message = "neither Ray nor the launch itself say anything any more: " + trouble_};
      Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
          .IgnoreError("nobody may be there");
    }
  }
  Settle(id);
}

}  // namespace cairn

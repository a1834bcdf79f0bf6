// What Slurm and the directories say of launches that were handed over (slurm_site.cc).

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/log.h"
#include "base/status_macros.h"
#include "launch/slurm_site.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr Nanos kForever = std::chrono::hours(24 * 365);

/// States of a job that was taken from its launch, not failed by it.
constexpr std::string_view kTakenAway[] = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "CANCELLED",
                                           "REVOKED",   "PENDING",   "REQUEUED",  "REQUEUE_HOLD"};

}  // namespace

void SlurmLauncher::LookForBatches(
    const std::map<std::pair<std::string_view, int>, const SlurmJob*>& jobs) {
  for (SlurmBatch& batch : batches_) {
    // Not at once: a call that timed out may still be under way to the controller.
    if (!batch.look_first || asked_ < batch.not_before) continue;
    batch.look_first = false;
    if (!jobs.contains({batch.name, batch.first_index()})) continue;  // submitted again
    for (const std::string& id : batch.ids) {
      if (SlurmLaunch* launch = FindHanded(id)) launch->accepted = true;
    }
    batch.ids.clear();
  }
  std::erase_if(batches_, [](const SlurmBatch& batch) { return batch.ids.empty(); });
}

void SlurmLauncher::AskForJobs() {
  asked_ = clock()->Now();
  const auto jobs = client_->Jobs();
  std::vector<std::pair<std::string, const SlurmJob*>> silent;
  std::vector<std::string> requeued;
  {
    MutexLock lock(&mu_);
    if (!jobs.ok()) {
      if (trouble_.empty()) LogWarning("launcher: " + jobs.status().ToString());
      trouble_ = jobs.status().message();
      return;
    }
    trouble_.clear();
    std::map<std::pair<std::string_view, int>, const SlurmJob*> by_name;
    for (const SlurmJob& job : *jobs) {
      // Of two with one name (a submission that was made twice) the one that lives counts: the
      // other found the launch taken.
      const SlurmJob*& known = by_name[{job.name, job.index}];
      if (known == nullptr || known->ended()) known = &job;
    }
    LookForBatches(by_name);
    for (const auto& [place, when] : left_) {
      const auto found = by_name.find({place.first, place.second});
      if (found != by_name.end() && found->second->pending()) {
        requeued.push_back(found->second->id);
      }
    }
    for (const auto& [id, each] : launches_) {
      SlurmLaunch* launch = Of(each);
      if (!launch->handed()) continue;
      const auto found = by_name.find({launch->job, launch->index});
      const SlurmJob* job = found == by_name.end() ? nullptr : found->second;
      if (job != nullptr) {
        launch->accepted = true;
        launch->job_id = job->id;
        launch->waits_for = fmt::format("job {} waits in Slurm: {}", job->id, job->reason);
      }
      // In the queue though it has begun: somebody requeued it by force. Its ranks are gone, and
      // the shim of its second life will start nothing.
      const bool back =
          job != nullptr && job->pending() && launch->info.state == LaunchState::kRunning;
      if (job != nullptr && !job->ended() && !back) {
        launch->silent = 0;
        WarnIfDue(launch, *job);
        continue;
      }
      const bool ours = std::ranges::any_of(batches_, [&](const SlurmBatch& batch) {
        return std::ranges::find(batch.ids, id) != batch.ids.end();
      });
      if (ours) continue;  // not submitted yet
      ++launch->silent;
      // One that was never accepted was left by an owner who died before sbatch; one that we took
      // out of Slurm's queue has nothing more to say.
      const bool cancelled = launch->stop_asked && launch->info.state == LaunchState::kQueued;
      if (launch->silent >= kLooksBeforeLost || !launch->accepted || cancelled) {
        silent.emplace_back(id, job);
      }
    }
  }
  for (const auto& [id, job] : silent) Settle(id, job);
  if (!requeued.empty()) CancelRequeued(requeued);
}

void SlurmLauncher::WarnIfDue(SlurmLaunch* launch, const SlurmJob& job) {
  if (client_->warns() || launch->warned || launch->info.state != LaunchState::kRunning) return;
  const std::int64_t now = clock()->WallNanos() / std::nano::den;
  const bool over_soon = job.ends > 0 && now + launch->warning.count() >= job.ends;
  if (!job.preempted && !over_soon) return;
  launch->warned = true;
  // How much time it has is Slurm's to say, as with a warning of Slurm's.
  Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = kForever.count()})
      .IgnoreError("Slurm ends it with a grace of its own");
}

void SlurmLauncher::CancelRequeued(const std::vector<std::string>& jobs) {
  if (!budget_.Take(clock()->Now())) return;  // at the next look
  if (const Status cancelled = client_->Cancel(jobs, /*pending_only=*/true); !cancelled.ok()) {
    LogWarning("launcher: " + cancelled.ToString());
  }
}

LaunchExit SlurmLauncher::LostIn(const SlurmLaunch& launch, const SlurmJob* job, bool begun) const {
  const std::string state = job == nullptr ? "unknown to it" : job->state;
  LaunchExit lost;
  lost.kind = begun ? ExitKind::kLost : ExitKind::kNotStarted;
  if (begun && state == "TIMEOUT") lost.kind = ExitKind::kTimeLimit;
  lost.stopped = launch.stop_asked || (!begun && job == nullptr) ||
                 std::ranges::find(kTakenAway, state) != std::end(kTakenAway);
  lost.message = fmt::format(
      "Slurm's job {} is {}: {}", launch.job_id.empty() ? launch.job : launch.job_id, state,
      begun ? "how the launch ended is not known" : "it ended before the launch began");
  const std::string said = begun ? "" : LastWords(JobOutput(outputs_, launch.job, launch.index));
  if (!said.empty()) lost.message += ": " + said;
  lost.time = clock()->WallNanos();
  return lost;
}

/// How a launch ended of which Slurm says that nothing is left.
void SlurmLauncher::Settle(const std::string& id, const SlurmJob* job) {
  const LaunchDirectory directory(Path(id));
  directory.Refresh();
  Result<LaunchExit> exit = directory.ReadExit();
  const bool begun = directory.ReadKeeper().ok();
  MutexLock lock(&mu_);
  SlurmLaunch* launch = FindHanded(id);
  if (launch == nullptr) return;
  if (!exit.ok() && !begun && job == nullptr && !launch->accepted) {
    if (directory.Remove().ok()) Drop(id);
    return;
  }
  if (!exit.ok()) {
    LaunchExit lost = LostIn(*launch, job, begun);
    // A shim on a node that Slurm gave up, and that lives, reads this.
    Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
        .IgnoreError("nobody may be there");
    const Status published = directory.Publish(lost);
    if (published.Is(Code::kAlreadyExists)) {
      exit = directory.ReadExit();
    } else if (!published.ok()) {
      LogError(published.WithContext("launch " + id).ToString());
      return;  // again at the next look
    }
    if (!exit.ok()) exit = std::move(lost);
  }
  End(launch, *std::move(exit));
}

void SlurmLauncher::CancelDue(const std::vector<std::string>& ids, bool pending_only) {
  std::vector<std::string> jobs;
  {
    MutexLock lock(&mu_);
    for (const std::string& id : ids) {
      SlurmLaunch* launch = FindHanded(id);
      if (launch == nullptr) continue;
      jobs.push_back(launch->job_id);
      launch->take_back = false;
      if (!pending_only) launch->cancel_at = clock()->Now() + kCancelSlack;
    }
  }
  if (jobs.empty()) return;
  const Status cancelled = client_->Cancel(jobs, pending_only);
  if (cancelled.ok()) return;
  LogWarning("launcher: " + cancelled.ToString());
  MutexLock lock(&mu_);
  for (const std::string& id : ids) {
    if (SlurmLaunch* launch = FindHanded(id); launch != nullptr && pending_only) {
      launch->take_back = true;
    }
  }
}

}  // namespace cairn

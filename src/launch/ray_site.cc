#include "launch/ray_site.h"

// The order of things, and why:
//   1. The directory of the launch with launch.json, durable: it holds the name of its job, which
//      nobody else has. From now on a job that comes finds what to start.
//   2. POST /api/jobs/ with that name as submission_id, which Ray takes once: when the answer is
//      lost (we were killed, the head was away), it is posted again, and a refusal because Ray has
//      it is as good as an acceptance.
//   3. The job's shell becomes the shim (keeper.cc), which claims the launch by keeper.json, runs
//      it, and publishes exit.json. Starts and ends are seen by looking for these files. Whatever
//      else Ray may start for the launch finds it claimed and starts nothing; and so does this
//      launcher claim what is stopped before its turn comes, because Ray cannot take a job out of
//      its queue.
//      A launch over several nodes has a job that wants nothing and runs on the head: its shim has
//      no ranks, reserves the nodes together, and starts a shim on each (ray_nodes.py).
//   4. GET /api/jobs/, for all jobs together: why they wait, and which ended without a word. Then
//      the launch is settled here: never begun, or lost.
// An owner that dies after 1 and before 2 leaves a directory that no job knows. The next one asks
// Ray, and removes it; a job that comes later finds nothing to start.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launch/ray_jobs.h"
#include "launch/ray_nodes.h"
#include "launch/slurm_script.h"
#include "launch/spawn_shim.h"

namespace cairn {

RayLauncher::RayLauncher(RayLauncherOptions options, std::string shim,
                         std::unique_ptr<RayClient> client, OwnedFd lock)
    : ClusterFrame({.name = "Ray",
                    .directory = options.directory,
                    .slots = options.slots,
                    .listener = options.listener,
                    .clock = options.clock,
                    .calls_per_second = options.calls_per_second,
                    .look = options.look},
                   std::move(lock)),
      options_(std::move(options)),
      shim_(std::move(shim)),
      client_(std::move(client)) {}

Status RayLauncher::CheckSite(const LaunchSpec& spec) const {
  return ReadRayResources(spec.resources, spec.processes).status();
}

std::unique_ptr<LaunchFrame::Launch> RayLauncher::NewLaunch(std::string path) {
  return std::make_unique<RayLaunch>(std::move(path));
}

std::string RayLauncher::ReasonOf(const Launch& launch) const {
  const auto& ray = static_cast<const RayLaunch&>(launch);
  if (!ray.accepted && !refusal_.empty()) return refusal_;
  if (!trouble_.empty()) return trouble_;
  if (!ray.accepted) return "is being handed to Ray";
  return ray.waits_for.empty() ? "waits in Ray" : ray.waits_for;
}

Status RayLauncher::Furnish(const LaunchDirectory& directory) { return directory.AskForPulse(); }

void RayLauncher::TakeFromQueue() {
  std::vector<LaunchSpec> specs;
  {
    MutexLock lock(&mu_);
    while (Launch* launch = TakeNext()) specs.push_back(std::move(launch->spec));
  }
  for (const LaunchSpec& spec : specs) Prepare(spec);
}

/// Step 1.
void RayLauncher::Prepare(const LaunchSpec& spec) {
  std::optional<LaunchRecord> record = NewRecord(spec);
  if (!record.has_value()) return;
  const RayResources resources = *ReadRayResources(spec.resources, spec.processes);
  record->nodes = resources.nodes;
  if (resources.nodes > 1) record->starter = RayNodeStarter(resources);
  record->job = fmt::format("{}.{}", spec.id, IdSource::System()->NewUuid().substr(0, 13));
  if (!MakeDirectory(spec, *record)) return;
  MutexLock lock(&mu_);
  RayLaunch* launch = FindHanded(spec.id);
  if (launch == nullptr) return;
  launch->nodes = resources.nodes;
  submissions_.push_back({.launch = spec.id, .request = RequestFor(*launch, resources)});
}

RayJobRequest RayLauncher::RequestFor(const RayLaunch& launch,
                                      const RayResources& resources) const {
  RayJobRequest request;
  request.id = RayJobId(launch.job, launch.attempt);
  request.entrypoint = fmt::format("exec {} {} remote:{}", ShellQuote(shim_),
                                   ShellQuote(launch.directory.path()), launch.key);
  // The job of several nodes has none of the ranks: nodes are asked for in it, all together.
  request.resources = resources.nodes > 1 ? RayResources{} : resources;
  request.metadata = RayMetadata({.launches = options_.directory,
                                  .launch = launch.info.id,
                                  .job = launch.job,
                                  .attempt = launch.attempt,
                                  .resources = resources});
  request.environment["RAY_JOB_STOP_WAIT_TIME_S"] = std::to_string(options_.warning.count());
  return request;
}

/// Step 3, for those whose turn has not come: if it has, they are told by their commands.
void RayLauncher::ClaimStopped() {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, each] : launches_) {
      if (Of(each)->handed() && Of(each)->take_back) ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    const Status claimed = ClaimLaunch(LaunchDirectory(Path(id)));
    MutexLock lock(&mu_);
    RayLaunch* launch = FindHanded(id);
    if (launch == nullptr) continue;
    if (claimed.ok()) {
      EndUnstarted(launch, /*stopped=*/true, "stopped before it was started");
    } else if (claimed.Is(Code::kAlreadyExists)) {
      launch->take_back = false;
    } else {
      LogWarning(claimed.WithContext("launch " + id).ToString());
    }
  }
}

void RayLauncher::CallCluster() {
  TakeFromQueue();
  ClaimStopped();
  CallRay();
}

/// As the budget allows. Asking comes first when it is overdue, because nothing else tells what was
/// lost, but not when there was nothing to ask for, or when it failed: others wait for their turn.
void RayLauncher::CallRay() {
  const Nanos now = clock()->Now();
  if (now < quiet_until_) return;
  bool handed = false;
  std::vector<std::string> overdue;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    handed = AnyHanded();
    for (const auto& [id, each] : launches_) {
      const RayLaunch* launch = Of(each);
      if (!launch->handed() || !launch->cancel_at.has_value()) continue;
      if (now >= *launch->cancel_at) overdue.push_back(id);
    }
  }
  if (handed && !followed_) asked_ = now;
  followed_ = handed;
  const auto ask = [&] {
    if (handed && now >= asked_ + options_.poll && budget_.Take(now)) AskForJobs();
  };
  if (now >= asked_ + 3 * options_.poll && !silent_since_.has_value()) ask();
  while (!submissions_.empty() && now >= quiet_until_) {
    if (!budget_.Take(now)) return;
    SubmitNext();
    TellListener();
  }
  for (const std::string& id : overdue) {
    if (!budget_.Take(now)) return;
    StopJob(id);
  }
  ask();
  if (now >= quiet_until_ && !old_jobs_.empty() && budget_.Take(now)) {
    const Status forgotten = client_->Forget(old_jobs_.back());
    old_jobs_.pop_back();  // the next list names it again
    if (!forgotten.ok()) LogWarning("launcher: " + forgotten.ToString());
  }
}

void RayLauncher::Note(const Status& status, std::string* trouble) {
  if (!status.ok()) {
    if (trouble->empty()) LogWarning("launcher: " + status.ToString());
    quiet_until_ = clock()->Now() + kRetry;
  }
  *trouble = status.message();
}

/// Step 2.
void RayLauncher::SubmitNext() {
  const std::string id = submissions_.front().launch;
  const auto wanted = [&] {
    MutexLock lock(&mu_);
    return FindHanded(id) != nullptr;
  };
  Status submitted;
  if (wanted()) {
    submitted = client_->Submit(submissions_.front().request);
    const bool again = submitted.Is(Code::kUnavailable) || submitted.Is(Code::kDeadlineExceeded);
    MutexLock lock(&mu_);
    Note(again ? submitted : Status::Ok(), &refusal_);
    if (again) return;
  }
  submissions_.erase(submissions_.begin());
  MutexLock lock(&mu_);
  RayLaunch* launch = FindHanded(id);
  if (launch == nullptr) return;
  // One that is refused now may have been taken before, when the answer was lost.
  if (submitted.ok() || ClaimLaunch(launch->directory).Is(Code::kAlreadyExists)) {
    launch->accepted = true;
    launch->silent = 0;
  } else {
    EndUnstarted(launch, launch->stop_asked, std::string(submitted.message()));
  }
}

void RayLauncher::StopJob(const std::string& id) {
  std::string job;
  {
    MutexLock lock(&mu_);
    RayLaunch* launch = FindHanded(id);
    if (launch == nullptr) return;
    job = RayJobId(launch->job, launch->attempt);
    launch->cancel_at = clock()->Now() + kCancelSlack;
  }
  if (const Status stopped = client_->Stop(job); !stopped.ok()) {
    LogWarning("launcher: " + stopped.ToString());
  }
}

}  // namespace cairn

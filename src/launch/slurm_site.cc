#include "launch/slurm_site.h"

// The order of things, and why:
//   1. The directory of the launch with launch.json, durable: it holds the name of the job, which
//      nobody else has. From now on a job that comes finds what to start.
//   2. sbatch. When its answer is lost (we were killed, the controller was away), the job is looked
//      for by its name, and submitted again only when Slurm does not have it. Should both come
//      after all, the second shim finds keeper.json and starts nothing.
//   3. The job's shell becomes the shim (keeper.cc), which claims the launch, runs it, and
//      publishes exit.json. Starts and ends are seen by looking for these files.
//   4. squeue, for all jobs together: why they wait, and which ended without a word. Then the
//      launch is settled here: never begun, or lost.
// An owner that dies after 1 and before 2 leaves a directory that no job knows. The next one asks
// squeue, and removes it; a job that comes later finds nothing to start.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include "base/log.h"
#include "base/status_macros.h"
#include "launch/slurm_script.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr std::size_t kLargestArray = 500;
/// Slurm lets a job that was put back into its queue wait for two minutes, unless told otherwise.
constexpr Nanos kLeftTime = std::chrono::minutes(10);

}  // namespace

SlurmLauncher::SlurmLauncher(SlurmLauncherOptions options, std::string shim,
                             std::unique_ptr<SlurmClient> client, OwnedFd lock)
    : ClusterFrame({.name = "Slurm",
                    .directory = options.directory,
                    .slots = options.slots,
                    .listener = options.listener,
                    .clock = options.clock,
                    .calls_per_second = options.calls_per_second,
                    .look = options.look},
                   std::move(lock)),
      options_(std::move(options)),
      outputs_(options_.directory + kSlurmOutputs),
      shim_(std::move(shim)),
      client_(std::move(client)) {}

Status SlurmLauncher::CheckSite(const LaunchSpec& spec) const {
  RETURN_IF_ERROR(SlurmFlags(spec.resources).status());
  ASSIGN_OR_RETURN(const int nodes, SlurmNodes(spec.resources));
  if (spec.processes % nodes != 0) {
    return InvalidArgumentError(fmt::format(
        "slurm: {} processes cannot be shared evenly by {} nodes", spec.processes, nodes));
  }
  return Status::Ok();
}

std::unique_ptr<LaunchFrame::Launch> SlurmLauncher::NewLaunch(std::string path) {
  return std::make_unique<SlurmLaunch>(std::move(path));
}

std::string SlurmLauncher::ReasonOf(const Launch& launch) const {
  const auto& slurm = static_cast<const SlurmLaunch&>(launch);
  if (!trouble_.empty()) return "Slurm does not answer: " + trouble_;
  if (!slurm.accepted) return "is being handed to Slurm";
  return slurm.waits_for.empty() ? "waits in Slurm" : slurm.waits_for;
}

void SlurmLauncher::OnEnd(Launch* launch) {
  const auto* slurm = static_cast<SlurmLaunch*>(launch);
  if (slurm->job.empty()) return;
  unlink(JobOutput(outputs_, slurm->job, slurm->index).c_str());
  const Nanos now = clock()->Now();
  std::erase_if(left_, [&](const auto& entry) { return entry.second + kLeftTime < now; });
  left_[{slurm->job, slurm->index}] = now;
}

void SlurmLauncher::OnAdopt(ClusterLaunch* launch, const LaunchRecord& record) {
  auto* slurm = static_cast<SlurmLaunch*>(launch);
  slurm->index = static_cast<int>(record.job_index);
  slurm->warning = options_.warning;  // its own is not written down
}

/// Makes the directories of what is next and puts equal launches together.
void SlurmLauncher::TakeFromQueue() {
  std::map<std::vector<std::string>, std::vector<LaunchSpec>> alike;
  {
    MutexLock lock(&mu_);
    while (Launch* launch = TakeNext()) {
      LaunchSpec spec = std::move(launch->spec);
      std::vector<std::string> flags = FlagsOfLaunch(spec, options_.warning);
      alike[std::move(flags)].push_back(std::move(spec));
    }
  }
  for (auto& [flags, specs] : alike) {
    for (std::size_t begin = 0; begin < specs.size(); begin += kLargestArray) {
      const auto from = std::next(specs.begin(), static_cast<std::ptrdiff_t>(begin));
      const auto to = std::next(
          from, static_cast<std::ptrdiff_t>(std::min(kLargestArray, specs.size() - begin)));
      SlurmBatch batch =
          Prepare({std::make_move_iterator(from), std::make_move_iterator(to)}, flags);
      if (!batch.ids.empty()) batches_.push_back(std::move(batch));
    }
  }
}

SlurmBatch SlurmLauncher::Prepare(const std::vector<LaunchSpec>& specs,
                                  const std::vector<std::string>& flags) {
  SlurmBatch batch = NewBatch(specs, flags, outputs_);
  for (const LaunchSpec& spec : specs) {
    std::optional<LaunchRecord> record = NewRecord(spec);
    if (!record.has_value()) continue;
    record->job = batch.name;
    record->job_index = batch.array ? static_cast<std::int64_t>(batch.ids.size()) : -1;
    record->nodes = *SlurmNodes(spec.resources);
    if (!MakeDirectory(spec, *record)) continue;
    MutexLock lock(&mu_);
    SlurmLaunch* launch = FindHanded(spec.id);
    if (launch == nullptr) continue;
    launch->index = static_cast<int>(record->job_index);
    launch->warning = *SlurmWarning(spec.resources, options_.warning);
    batch.ids.push_back(spec.id);
    batch.tasks.push_back({.directory = Path(spec.id), .key = record->key});
  }
  // Also of one that is alone because the others could not be made: its place is written down.
  if (batch.array) batch.flags.push_back(fmt::format("--array=0-{}", batch.ids.size() - 1));
  return batch;
}

void SlurmLauncher::CallCluster() {
  TakeFromQueue();
  CallSlurm();
}

/// At most one call of each kind, as the budget allows: asking comes first when it is overdue,
/// because nothing else tells what was lost.
void SlurmLauncher::CallSlurm() {
  const Nanos now = clock()->Now();
  bool handed = false;
  std::vector<std::string> pending;
  std::vector<std::string> overdue;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    handed = AnyHanded();
    for (const auto& [id, each] : launches_) {
      const SlurmLaunch* launch = Of(each);
      if (!launch->handed() || launch->job_id.empty()) continue;  // squeue will tell it
      if (launch->take_back) pending.push_back(id);
      if (launch->cancel_at.has_value() && now >= *launch->cancel_at) overdue.push_back(id);
    }
  }
  const auto ask = [&] {
    if (handed && now >= asked_ + options_.poll && budget_.Take(now)) AskForJobs();
  };
  if (now >= asked_ + 3 * options_.poll) ask();
  for (std::size_t i = 0; i < batches_.size();) {
    if (now < batches_[i].not_before || batches_[i].look_first) {
      ++i;
      continue;
    }
    if (!budget_.Take(now)) return;
    SlurmBatch batch = std::move(batches_[i]);
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(i));
    SubmitBatch(std::move(batch));
    TellListener();
  }
  if (!pending.empty() && budget_.Take(now)) CancelDue(pending, /*pending_only=*/true);
  if (!overdue.empty() && budget_.Take(now)) CancelDue(overdue, /*pending_only=*/false);
  ask();
}

void SlurmLauncher::SubmitBatch(SlurmBatch batch) {
  if (!batch.tried && AllStopped(batch)) return;
  batch.tried = true;
  const Status submitted = client_->Submit(batch.flags, SlurmScript(shim_, batch.tasks));
  MutexLock lock(&mu_);
  if (submitted.Is(Code::kUnavailable)) {
    if (trouble_.empty()) LogWarning("launcher: " + submitted.ToString());
    trouble_ = submitted.message();
    batch.look_first = true;
    batch.not_before = clock()->Now() + kRetry;
    batches_.push_back(std::move(batch));
    return;
  }
  for (const std::string& id : batch.ids) {
    SlurmLaunch* launch = FindHanded(id);
    if (launch == nullptr) continue;
    launch->accepted = submitted.ok();
    launch->silent = 0;
    if (!submitted.ok()) {
      EndUnstarted(launch, launch->stop_asked, std::string(submitted.message()));
    }
  }
}

/// Ends launches that nobody wants any more before Slurm hears of them.
bool SlurmLauncher::AllStopped(const SlurmBatch& batch) {
  MutexLock lock(&mu_);
  for (const std::string& id : batch.ids) {
    const auto found = Find(id);
    if (found.ok() && !static_cast<SlurmLaunch*>(*found)->stop_asked) return false;
  }
  for (const std::string& id : batch.ids) {
    if (SlurmLaunch* launch = FindHanded(id)) {
      EndUnstarted(launch, /*stopped=*/true, "stopped before it was started");
    }
  }
  return true;
}

}  // namespace cairn

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

constexpr Nanos kIdle = std::chrono::hours(1);
constexpr Nanos kRetry = std::chrono::seconds(2);
constexpr Nanos kStopSlack = std::chrono::seconds(60);
constexpr std::size_t kLargestArray = 500;
/// Slurm lets a job that was put back into its queue wait for two minutes, unless told otherwise.
constexpr Nanos kLeftTime = std::chrono::minutes(10);

}  // namespace

SlurmLauncher::SlurmLauncher(SlurmLauncherOptions options, std::string shim,
                             std::unique_ptr<SlurmClient> client, OwnedFd lock)
    : LaunchFrame({.directory = options.directory,
                   .slots = options.slots,
                   .stop_slack = kStopSlack,
                   .listener = options.listener,
                   .clock = options.clock},
                  std::move(lock)),
      options_(std::move(options)),
      outputs_(options_.directory + kSlurmOutputs),
      shim_(std::move(shim)),
      client_(std::move(client)),
      budget_(options_.calls_per_second) {}

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

void SlurmLauncher::Wake() {
  woken_ = true;
  work_.NotifyAll();
}

Status SlurmLauncher::Send(Launch* launch) {
  if (Of(launch)->job.empty()) return Status::Ok();  // sent when its directory is made
  if (launch->unsent.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(const OwnedFd commands, launch->directory.OpenCommands());
  if (write(commands.get(), launch->unsent.data(), launch->unsent.size()) !=
      std::ssize(launch->unsent)) {
    return ErrnoStatus("tell launch " + launch->info.id, errno);
  }
  launch->unsent.clear();
  return Status::Ok();
}

void SlurmLauncher::OnStop(Launch* launch, Nanos grace) {
  SlurmLaunch* slurm = Of(launch);
  slurm->stop_asked = true;
  if (launch->info.state == LaunchState::kQueued) slurm->cancel_pending = true;
  const Nanos at = clock()->Now() + std::min<Nanos>(grace, kIdle * 24) + kCancelSlack;
  slurm->cancel_at = std::min(slurm->cancel_at.value_or(at), at);
  Wake();
}

void SlurmLauncher::OnLeave(Launch* launch, Nanos grace) {
  if (launch->outlive_owner) return;
  StopOne(launch, grace).IgnoreError("it notices that its owner is gone");
}

void SlurmLauncher::OnEnd(Launch* launch) {
  const SlurmLaunch* slurm = Of(launch);
  if (slurm->job.empty()) return;
  unlink(JobOutput(outputs_, slurm->job, slurm->index).c_str());
  const Nanos now = clock()->Now();
  std::erase_if(left_, [&](const auto& entry) { return entry.second + kLeftTime < now; });
  left_[{slurm->job, slurm->index}] = now;
}

Status SlurmLauncher::AfterAdopting() {
  {
    MutexLock lock(&mu_);
    if (!AnyHanded()) return Status::Ok();
  }
  AskForJobs();  // those that no job knows were never there
  return Status::Ok();
}

Status SlurmLauncher::Adopt(const std::string& id) {
  MutexLock lock(&mu_);
  auto launch = std::make_unique<SlurmLaunch>(Path(id));
  launch->info.id = id;
  const auto record = launch->directory.ReadLaunch();
  if (record.status().Is(Code::kNotFound)) return launch->directory.Remove();  // no job knows of it
  auto exit = launch->directory.ReadExit();
  const bool running = NoteRunning(launch.get());
  if (record.ok()) {
    if (record->job.empty()) {
      return FailedPreconditionError("belongs to a launcher of this machine, not to Slurm's");
    }
    Fill(launch.get(), *record);
    launch->job = record->job;
    launch->index = static_cast<int>(record->job_index);
  }
  if (exit.status().Is(Code::kNotFound) && record.ok()) {
    launch->info.state = running ? LaunchState::kRunning : LaunchState::kQueued;
    launch->warning = options_.warning;  // its own is not written down
    launch->accepted = launch->directory.ReadKeeper().ok();
  } else {
    // One whose records cannot be read is not waited for; its shim, if it lives, is told to end.
    if (!exit.ok()) {
      const Status& damage = record.ok() ? exit.status() : record.status();
      LogError("launch " + id + ": " + damage.ToString());
      if (launch->job.empty()) launch->job = "unknown";  // reachable by its directory all the same
      Tell(launch.get(), {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
          .IgnoreError("it may be what is damaged");
      exit = LaunchExit{
          .kind = ExitKind::kLost, .message = damage.ToString(), .time = clock()->WallNanos()};
    }
    launch->info.state = LaunchState::kEnded;
    launch->info.exit = *std::move(exit);
  }
  Put(std::move(launch));
  return Status::Ok();
}

void SlurmLauncher::Work() {
  for (;;) {
    TakeFromQueue();
    CallSlurm();
    LookAtDirectories();
    TellListener();
    Beat();
    MutexLock lock(&mu_);
    if (closed_) return;
    const bool busy = AnyHanded() || !batches_.empty();
    if (!woken_) work_.WaitFor(&mu_, busy ? options_.look : kIdle);
    woken_ = false;
  }
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
    LaunchRecord record;
    {
      MutexLock lock(&mu_);
      const auto found = Find(spec.id);
      if (!found.ok()) continue;
      record = RecordOf(spec, **found);
    }
    if (record.cwd.empty()) record.cwd = std::filesystem::current_path().string();
    record.job = batch.name;
    record.job_index = batch.array ? static_cast<std::int64_t>(batch.ids.size()) : -1;
    record.nodes = *SlurmNodes(spec.resources);
    const LaunchDirectory directory(Path(spec.id));
    const Status made = directory.CreateShared(record, LaunchEnvironment(record.key, spec));
    MutexLock lock(&mu_);
    const auto found = Find(spec.id);
    if (!found.ok()) continue;
    SlurmLaunch* launch = Of(*found);
    if (!made.ok()) {
      End(launch, {.kind = ExitKind::kNotStarted, .message = std::string(made.message())});
      continue;
    }
    launch->job = record.job;
    launch->index = static_cast<int>(record.job_index);
    launch->warning = *SlurmWarning(spec.resources, options_.warning);
    if (const Status sent = Send(launch); !sent.ok()) LogWarning("launcher: " + sent.ToString());
    batch.ids.push_back(spec.id);
    batch.tasks.push_back({.directory = directory.path(), .key = record.key});
  }
  // Also of one that is alone because the others could not be made: its place is written down.
  if (batch.array) batch.flags.push_back(fmt::format("--array=0-{}", batch.ids.size() - 1));
  return batch;
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
      if (launch->cancel_pending) pending.push_back(id);
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
    if (found.ok() && !Of(*found)->stop_asked) return false;
  }
  for (const std::string& id : batch.ids) {
    if (SlurmLaunch* launch = FindHanded(id)) {
      EndUnstarted(launch, /*stopped=*/true, "stopped before it was started");
    }
  }
  return true;
}

}  // namespace cairn

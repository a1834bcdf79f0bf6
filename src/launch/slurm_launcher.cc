#include "launch/slurm_launcher.h"

// The order of things, and why:
//   1. The directory of the launch with launch.json, durable: it holds the name of the job, which
//      nobody else has. From now on a job that comes finds what to start.
//   2. sbatch. When its answer is lost (we were killed, the controller was away), the job is looked
//      for by its name, and submitted again only when Slurm does not have it. Should both come
//      after all, the second shim finds keeper.json and starts nothing.
//   3. The job's shell becomes the shim (keeper.cc), which claims the launch, runs it, and
//   publishes
//      exit.json. Starts and ends are seen by looking for these files.
//   4. squeue, for all jobs together: why they wait, and which ended without a word. Then the
//   launch
//      is settled here: never begun, or lost.
// An owner that dies after 1 and before 2 leaves a directory that no job knows. The next one asks
// squeue, and removes it; a job that comes later finds nothing to start.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "launch/launch_directory.h"
#include "launch/launch_queue.h"
#include "launch/launch_spec.h"
#include "launch/slurm_client.h"
#include "launch/slurm_script.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr Nanos kIdle = std::chrono::hours(1);
constexpr Nanos kRetry = std::chrono::seconds(2);
/// After the grace of a stop: what the shim did not do by then, Slurm does.
constexpr Nanos kCancelSlack = std::chrono::seconds(10);
constexpr Nanos kStopSlack = std::chrono::seconds(60);
/// A job that ended, or is gone, without exit.json: seen so often before it is believed, because
/// what another machine wrote may come late.
constexpr int kLooksBeforeLost = 2;
constexpr std::size_t kLargestArray = 500;
constexpr Nanos kBeat = std::chrono::milliseconds(500);
/// Output of jobs, until their shim has its own; below the launcher's directory.
constexpr char kOutputs[] = ".outputs";

/// How many calls there may be: `rate` a second, two at once.
class CallBudget {
 public:
  explicit CallBudget(double rate) : gap_(static_cast<std::int64_t>(1e9 / rate)) {}

  bool Take(Nanos now) {
    if (now < next_ - gap_) return false;
    next_ = std::max(now, next_) + gap_;
    return true;
  }

 private:
  const Nanos gap_;
  Nanos next_{0};
};

class SlurmLauncher final : public Launcher {
 public:
  SlurmLauncher(SlurmLauncherOptions options, std::string shim, SlurmClient client, OwnedFd lock)
      : options_(std::move(options)),
        shim_(std::move(shim)),
        client_(std::move(client)),
        lock_(std::move(lock)),
        budget_(options_.calls_per_second),
        queue_(options_.slots) {}

  ~SlurmLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

  Status Begin();

  Status Submit(LaunchSpec spec) override {
    RETURN_IF_ERROR(ValidateSpec(spec));
    RETURN_IF_ERROR(SlurmFlags(spec.resources).status());
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    if (closing_) return FailedPreconditionError("the launcher is being closed");
    if (launches_.contains(spec.id)) return AlreadyExistsError("launch " + spec.id + " is known");
    if (spec.slots > options_.slots) {
      return ResourceExhaustedError(fmt::format("launch {} wants {} slots, and there are {}",
                                                spec.id, spec.slots, options_.slots));
    }
    Launch launch(Path(spec.id));
    launch.info.id = spec.id;
    launch.info.slots = spec.slots;
    launch.info.priority = spec.priority;
    launch.info.submitted = options_.clock->WallNanos();
    queue_.Push(spec.id, spec.slots, spec.priority);
    const std::string id = spec.id;
    launch.outlive_owner = spec.outlive_owner;
    launch.spec = std::move(spec);
    launches_.emplace(id, std::move(launch));
    Wake();
    return Status::Ok();
  }

  Result<LaunchInfo> Get(std::string_view id) override {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(const Launch* launch, Find(id));
    return Describe(*launch);
  }

  Result<std::vector<LaunchInfo>> List() override {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    std::vector<LaunchInfo> infos;
    for (const auto& [id, launch] : launches_) infos.push_back(Describe(launch));
    return infos;
  }

  Status Signal(std::string_view id, int signal) override {
    if (signal <= 0 || signal >= NSIG) {
      return InvalidArgumentError("there is no signal " + std::to_string(signal));
    }
    if (signal == SIGKILL) return Kill(id);
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(Launch * launch, Find(id));
    // Whether it runs already is its shim's to know: what came before that reaches nobody.
    if (!launch->handed()) return Status::Ok();
    return Tell(*launch, {.kind = ControlCommand::Kind::kSignal, .signal = signal, .grace = 0});
  }

  Status Stop(std::string_view id, Nanos grace) override {
    if (grace.count() < 0) return InvalidArgumentError("grace must not be negative");
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(Launch * launch, Find(id));
    return StopOne(launch, grace);
  }

  Result<LaunchInfo> Wait(std::string_view id, Nanos timeout) override {
    MutexLock lock(&mu_);
    const Nanos deadline = options_.clock->Now() + timeout;
    for (;;) {
      RETURN_IF_ERROR(CheckOpen());
      ASSIGN_OR_RETURN(const Launch* launch, Find(id));
      if (launch->info.state == LaunchState::kEnded) return Describe(*launch);
      const Nanos left = deadline - options_.clock->Now();
      if (left.count() <= 0) {
        return DeadlineExceededError("launch " + std::string(id) + " has not ended");
      }
      changed_.WaitFor(&mu_, left);
    }
  }

  Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t offset,
                                std::uint64_t max_bytes) override {
    bool ended = false;
    {
      MutexLock lock(&mu_);
      RETURN_IF_ERROR(CheckOpen());
      ASSIGN_OR_RETURN(const Launch* launch, Find(id));
      ended = launch->info.state == LaunchState::kEnded;
    }
    return LaunchDirectory(Path(id)).ReadLog(offset, max_bytes, ended);
  }

  Status Forget(std::string_view id) override {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    const auto found = launches_.find(id);
    if (found == launches_.end()) return Status::Ok();
    if (found->second.info.state != LaunchState::kEnded) {
      return FailedPreconditionError("launch " + std::string(id) + " lives: stop it first");
    }
    RETURN_IF_ERROR(found->second.directory.Remove());
    launches_.erase(found);
    return Status::Ok();
  }

  Status Close(CloseMode mode, Nanos grace) override {
    Status outcome;
    {
      MutexLock lock(&mu_);
      if (closed_) return Status::Ok();
      closing_ = true;
      if (mode == CloseMode::kStopAll) {
        outcome = StopAll(grace);
      } else {
        for (auto& [id, launch] : launches_) {
          if (launch.outlive_owner || !launch.handed()) continue;
          StopOne(&launch, grace).IgnoreError("it notices that its owner is gone");
        }
      }
      closed_ = true;
      changed_.NotifyAll();
      Wake();
    }
    if (worker_.joinable()) worker_.join();
    MutexLock lock(&mu_);
    launches_.clear();
    lock_.Reset();
    return outcome;
  }

 private:
  struct Launch {
    explicit Launch(std::string path) : directory(std::move(path)) {}

    /// Its directory is there: a job may know of it.
    bool handed() const { return !job.empty() && info.state != LaunchState::kEnded; }

    LaunchDirectory directory;
    LaunchSpec spec;  // until its directory is made
    LaunchInfo info;
    std::string key;
    std::vector<int> slots;
    bool outlive_owner = true;
    std::string job;  // the name; "" until its directory is made
    int index = -1;
    bool accepted = false;  // by sbatch, or seen in squeue
    std::string job_id;     // once squeue told it
    std::string waits_for;
    int silent = 0;  // times that squeue did not know it, or said that it ended
    bool stop_asked = false;
    bool cancel_pending = false;     // scancel, if it has not begun
    std::optional<Nanos> cancel_at;  // scancel, in any case
  };

  /// Launches that go to Slurm with one call.
  struct Batch {
    std::string name;
    std::vector<std::string> flags;
    std::vector<std::string> ids;
    std::vector<SlurmTask> tasks;
    bool tried = false;
    bool look_first = false;  // its answer was lost
    Nanos not_before{0};
  };

  std::string Path(std::string_view id) const { return options_.directory + "/" + std::string(id); }
  std::string OutputPath(const Launch& launch) const {
    return fmt::format("{}/{}/{}{}", options_.directory, kOutputs, launch.job,
                       launch.index < 0 ? "" : fmt::format(".{}", launch.index));
  }

  Status CheckOpen() const REQUIRES(mu_) {
    return closed_ ? FailedPreconditionError("the launcher is closed") : Status::Ok();
  }

  Result<Launch*> Find(std::string_view id) REQUIRES(mu_) {
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError("no launch is called " + std::string(id));
    return &found->second;
  }

  LaunchInfo Describe(const Launch& launch) const REQUIRES(mu_) {
    LaunchInfo info = launch.info;
    if (info.state != LaunchState::kQueued) return info;
    if (launch.job.empty()) {
      info.reason = queue_.Reason(info.id);
    } else if (!trouble_.empty()) {
      info.reason = "Slurm does not answer: " + trouble_;
    } else if (!launch.accepted) {
      info.reason = "is being handed to Slurm";
    } else {
      info.reason = launch.waits_for.empty() ? "waits in Slurm" : launch.waits_for;
    }
    return info;
  }

  void Wake() REQUIRES(mu_) {
    woken_ = true;
    work_.NotifyAll();
  }

  Status StopOne(Launch* launch, Nanos grace) REQUIRES(mu_) {
    if (launch->info.state == LaunchState::kEnded) return Status::Ok();
    if (launch->job.empty()) {
      queue_.Remove(launch->info.id);
      End(launch, {.kind = ExitKind::kNotStarted,
                   .stopped = true,
                   .message = "stopped before it was started"});
      Wake();
      return Status::Ok();
    }
    RETURN_IF_ERROR(
        Tell(*launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = grace.count()}));
    launch->stop_asked = true;
    if (launch->info.state == LaunchState::kQueued) launch->cancel_pending = true;
    const Nanos at = options_.clock->Now() + std::min<Nanos>(grace, kIdle * 24) + kCancelSlack;
    launch->cancel_at = std::min(launch->cancel_at.value_or(at), at);
    Wake();
    return Status::Ok();
  }

  Status StopAll(Nanos grace) REQUIRES(mu_) {
    Status outcome;  // one that cannot be told keeps no other from being told
    for (auto& [id, launch] : launches_) {
      const Status told = StopOne(&launch, grace);
      if (outcome.ok()) outcome = told.WithContext("launch " + id);
    }
    const Nanos deadline = options_.clock->Now() + grace + kStopSlack;
    for (;;) {
      std::string names;
      for (const auto& [id, launch] : launches_) {
        if (launch.info.state != LaunchState::kEnded) names += " " + id;
      }
      if (names.empty()) return outcome;
      const Nanos left = deadline - options_.clock->Now();
      if (left.count() <= 0) {
        return outcome.ok() ? DeadlineExceededError("launches that do not end:" + names) : outcome;
      }
      changed_.WaitFor(&mu_, left);
    }
  }

  Status Tell(const Launch& launch, const ControlCommand& command) REQUIRES(mu_) {
    const std::string line = EncodeCommand(command);
    ASSIGN_OR_RETURN(const OwnedFd commands, launch.directory.OpenCommands());
    if (write(commands.get(), line.data(), line.size()) != std::ssize(line)) {
      return ErrnoStatus("tell launch " + launch.info.id, errno);
    }
    return Status::Ok();
  }

  void End(Launch* launch, LaunchExit exit) REQUIRES(mu_) {
    if (exit.time == 0) exit.time = options_.clock->WallNanos();
    queue_.Release(launch->slots);
    launch->slots.clear();
    launch->info.state = LaunchState::kEnded;
    launch->info.slot_ids.clear();
    launch->info.exit = std::move(exit);
    if (!launch->job.empty()) unlink(OutputPath(*launch).c_str());
    told_.push_back(launch->info);
    changed_.NotifyAll();
    Wake();  // its slots are free
  }

  bool AnyHanded() const REQUIRES(mu_) {
    return std::ranges::any_of(launches_, [](const auto& entry) { return entry.second.handed(); });
  }

  Status Adopt(const std::string& id);
  void Work();
  void TakeFromQueue() EXCLUDES(mu_);
  Result<Batch> Prepare(std::vector<LaunchSpec> specs, const std::vector<std::string>& flags)
      EXCLUDES(mu_);
  void CallSlurm() EXCLUDES(mu_);
  void SubmitBatch(Batch batch) EXCLUDES(mu_);
  bool AllStopped(const Batch& batch) EXCLUDES(mu_);
  void AskForJobs() EXCLUDES(mu_);
  void CancelDue(const std::vector<std::string>& ids, bool pending_only) EXCLUDES(mu_);
  void LookAtDirectories() EXCLUDES(mu_);
  void Settle(const std::string& id, const SlurmJob* job) EXCLUDES(mu_);
  void Beat() EXCLUDES(mu_);
  void TellListener() EXCLUDES(mu_);

  const SlurmLauncherOptions options_;
  const std::string shim_;
  const SlurmClient client_;
  OwnedFd lock_;

  // Of the worker alone (and of Begin, before it).
  CallBudget budget_;
  std::vector<Batch> batches_;  // that Slurm does not have yet
  Nanos asked_{-kIdle};         // when squeue was last asked
  Nanos beaten_{-kIdle};
  std::uint64_t beats_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  CondVar work_;
  std::map<std::string, Launch, std::less<>> launches_ GUARDED_BY(mu_);
  LaunchQueue queue_ GUARDED_BY(mu_);
  std::vector<LaunchInfo> told_ GUARDED_BY(mu_);
  std::string trouble_ GUARDED_BY(mu_);  // why Slurm's last answer was none
  bool woken_ GUARDED_BY(mu_) = false;
  bool closing_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;

  std::jthread worker_;  // last: it uses all of the above
};

Status SlurmLauncher::Begin() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string id = entry.path().filename().string();
    if (id.starts_with(kRemovedPrefix)) {
      std::error_code left_to_the_next_opening;
      std::filesystem::remove_all(entry.path(), left_to_the_next_opening);
      continue;
    }
    if (!entry.is_directory(error) || !IsLaunchId(id)) continue;  // not ours
    RETURN_IF_ERROR(Adopt(id).WithContext("launch " + id));
  }
  if (error) return UnavailableError("list " + options_.directory + ": " + error.message());
  bool any = false;
  {
    MutexLock lock(&mu_);
    any = AnyHanded();
  }
  if (any) AskForJobs();  // those that no job knows were never there
  worker_ = std::jthread([this] { Work(); });
  return Status::Ok();
}

/// Takes up the launch in a directory that an earlier launcher left; before the worker runs.
Status SlurmLauncher::Adopt(const std::string& id) {
  MutexLock lock(&mu_);
  Launch launch(Path(id));
  launch.info.id = id;
  const auto record = launch.directory.ReadLaunch();
  if (record.status().Is(Code::kNotFound)) return launch.directory.Remove();  // no job knows of it
  auto exit = launch.directory.ReadExit();
  const auto running = launch.directory.ReadRunning();
  if (running.ok()) {
    launch.info.pids = running->pids;
    launch.info.started = running->time;
  }
  if (record.ok()) {
    if (record->job.empty()) {
      return FailedPreconditionError("belongs to a launcher of this machine, not to Slurm's");
    }
    launch.key = record->key;
    launch.job = record->job;
    launch.index = static_cast<int>(record->job_index);
    launch.outlive_owner = record->outlive_owner;
    launch.info.submitted = record->submitted;
    launch.info.priority = static_cast<int>(record->priority);
    launch.slots = ParseSlots(record->slots);
    launch.info.slots = static_cast<int>(launch.slots.size());
  }
  if (exit.status().Is(Code::kNotFound) && record.ok()) {
    launch.info.state = running.ok() ? LaunchState::kRunning : LaunchState::kQueued;
    launch.accepted = launch.directory.ReadKeeper().ok();
    launch.info.slot_ids = JoinSlots(launch.slots);
    queue_.Take(launch.slots);
  } else {
    // One whose records cannot be read is not waited for; its shim, if it lives, is told to end.
    if (!exit.ok()) {
      const Status& damage = record.ok() ? exit.status() : record.status();
      LogError("launch " + id + ": " + damage.ToString());
      Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
          .IgnoreError("it may be what is damaged");
      exit = LaunchExit{.kind = ExitKind::kLost,
                        .message = damage.ToString(),
                        .time = options_.clock->WallNanos()};
    }
    launch.info.state = LaunchState::kEnded;
    launch.info.exit = *std::move(exit);
    launch.slots.clear();
  }
  launches_.emplace(id, std::move(launch));
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
    while (!closed_) {
      const auto next = queue_.Pop();
      if (!next.has_value()) break;
      const auto found = Find(next->id);
      if (!found.ok()) continue;
      Launch* launch = *found;
      launch->slots = next->slots;
      launch->info.slot_ids = JoinSlots(next->slots);
      LaunchSpec spec = std::move(launch->spec);
      std::vector<std::string> flags = *SlurmFlags(spec.resources);  // seen by Submit
      flags.emplace_back("--nodes=1");
      flags.push_back(fmt::format("--ntasks={}", spec.processes));
      flags.push_back(fmt::format("--signal=B:USR1@{}", options_.warning.count()));
      alike[std::move(flags)].push_back(std::move(spec));
    }
  }
  for (auto& [flags, specs] : alike) {
    for (std::size_t begin = 0; begin < specs.size(); begin += kLargestArray) {
      const auto from = std::next(specs.begin(), static_cast<std::ptrdiff_t>(begin));
      const auto to = std::next(
          from, static_cast<std::ptrdiff_t>(std::min(kLargestArray, specs.size() - begin)));
      auto batch = Prepare({std::make_move_iterator(from), std::make_move_iterator(to)}, flags);
      if (batch.ok() && !batch->ids.empty()) batches_.push_back(*std::move(batch));
    }
  }
}

Result<SlurmLauncher::Batch> SlurmLauncher::Prepare(std::vector<LaunchSpec> specs,
                                                    const std::vector<std::string>& flags) {
  Batch batch;
  const std::string unique = IdSource::System()->NewUuid().substr(0, 13);
  const bool array = specs.size() > 1;
  batch.name = fmt::format("{}.{}", array ? "cairn-array" : specs[0].id, unique);
  batch.flags = flags;
  for (const LaunchSpec& spec : specs) {
    LaunchRecord record;
    record.id = spec.id;
    record.key = IdSource::System()->NewUuid();
    record.argv = spec.argv;
    record.cwd = spec.cwd.empty() ? std::filesystem::current_path().string() : spec.cwd;
    record.processes = spec.processes;
    record.priority = spec.priority;
    record.limits = spec.limits;
    record.grace = spec.grace.count();
    record.outlive_owner = spec.outlive_owner;
    record.job = batch.name;
    record.job_index = array ? static_cast<std::int64_t>(batch.ids.size()) : -1;
    {
      MutexLock lock(&mu_);
      const auto found = Find(spec.id);
      if (!found.ok()) continue;
      record.slots = JoinSlots((*found)->slots);
      record.submitted = (*found)->info.submitted;
    }
    const LaunchDirectory directory(Path(spec.id));
    const Status made = directory.CreateShared(record, LaunchEnvironment(record.key, spec));
    MutexLock lock(&mu_);
    const auto found = Find(spec.id);
    if (!found.ok()) continue;
    Launch* launch = *found;
    if (!made.ok()) {
      End(launch, {.kind = ExitKind::kNotStarted, .message = std::string(made.message())});
      continue;
    }
    launch->key = record.key;
    launch->job = record.job;
    launch->index = static_cast<int>(record.job_index);
    batch.ids.push_back(spec.id);
    batch.tasks.push_back({.directory = directory.path(), .key = record.key});
  }
  // Alone because the others could not be made: still an array, whose name and places are written.
  batch.flags.push_back("--job-name=" + batch.name);
  const std::string output = fmt::format("{}/{}/{}", options_.directory, kOutputs, batch.name);
  batch.flags.push_back(array ? fmt::format("--output={}.%a", output) : "--output=" + output);
  if (array) batch.flags.push_back(fmt::format("--array=0-{}", batch.ids.size() - 1));
  return batch;
}

/// At most one call of each kind, as the budget allows: asking comes first when it is overdue,
/// because nothing else tells what was lost.
void SlurmLauncher::CallSlurm() {
  const Nanos now = options_.clock->Now();
  bool handed = false;
  std::vector<std::string> pending;
  std::vector<std::string> overdue;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    handed = AnyHanded();
    for (auto& [id, launch] : launches_) {
      if (!launch.handed() || launch.job_id.empty()) continue;  // squeue will tell it
      if (launch.cancel_pending) pending.push_back(id);
      if (launch.cancel_at.has_value() && now >= *launch.cancel_at) overdue.push_back(id);
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
    Batch batch = std::move(batches_[i]);
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(i));
    SubmitBatch(std::move(batch));
    TellListener();
  }
  if (!pending.empty() && budget_.Take(now)) CancelDue(pending, /*pending_only=*/true);
  if (!overdue.empty() && budget_.Take(now)) CancelDue(overdue, /*pending_only=*/false);
  ask();
}

void SlurmLauncher::SubmitBatch(Batch batch) {
  if (!batch.tried && AllStopped(batch)) return;
  batch.tried = true;
  const Status submitted = client_.Submit(batch.flags, SlurmScript(shim_, batch.tasks));
  MutexLock lock(&mu_);
  if (submitted.Is(Code::kUnavailable)) {
    if (trouble_.empty()) LogWarning("launcher: " + submitted.ToString());
    trouble_ = submitted.message();
    batch.look_first = true;
    batch.not_before = options_.clock->Now() + kRetry;
    batches_.push_back(std::move(batch));
    return;
  }
  for (const std::string& id : batch.ids) {
    const auto found = Find(id);
    if (!found.ok() || !(*found)->handed()) continue;
    (*found)->accepted = submitted.ok();
    (*found)->silent = 0;
    if (submitted.ok()) continue;
    const LaunchExit exit{.kind = ExitKind::kNotStarted,
                          .stopped = (*found)->stop_asked,
                          .message = std::string(submitted.message()),
                          .time = options_.clock->WallNanos()};
    (*found)->directory.Publish(exit).IgnoreError("no job knows of it");
    End(*found, exit);
  }
}

/// Ends launches that nobody wants any more before Slurm hears of them.
bool SlurmLauncher::AllStopped(const Batch& batch) {
  MutexLock lock(&mu_);
  const auto stopped = [this](const std::string& id) REQUIRES(mu_) {
    const auto found = Find(id);
    return !found.ok() || (*found)->stop_asked;
  };
  if (!std::all_of(batch.ids.begin(), batch.ids.end(), stopped)) return false;
  for (const std::string& id : batch.ids) {
    const auto found = Find(id);
    if (!found.ok()) continue;
    const LaunchExit exit{.kind = ExitKind::kNotStarted,
                          .stopped = true,
                          .message = "stopped before it was started",
                          .time = options_.clock->WallNanos()};
    (*found)->directory.Publish(exit).IgnoreError("no job knows of it");
    End(*found, exit);
  }
  return true;
}

void SlurmLauncher::AskForJobs() {
  asked_ = options_.clock->Now();
  const auto jobs = client_.Jobs();
  std::vector<std::pair<std::string, const SlurmJob*>> silent;
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
    for (Batch& batch : batches_) {
      // Not at once: a call that timed out may still be under way to the controller.
      if (!batch.look_first || asked_ < batch.not_before) continue;
      batch.look_first = false;
      const int first = batch.ids.size() > 1 || batch.flags.back().starts_with("--array") ? 0 : -1;
      if (!by_name.contains({batch.name, first})) continue;  // submitted again
      for (const std::string& id : batch.ids) {
        if (const auto found = Find(id); found.ok()) (*found)->accepted = true;
      }
      batch.ids.clear();
    }
    std::erase_if(batches_, [](const Batch& batch) { return batch.ids.empty(); });
    for (auto& [id, launch] : launches_) {
      if (!launch.handed()) continue;
      const auto found = by_name.find({launch.job, launch.index});
      const SlurmJob* job = found == by_name.end() ? nullptr : found->second;
      if (job != nullptr) {
        launch.accepted = true;
        launch.job_id = job->id;
        launch.waits_for = fmt::format("job {} waits in Slurm: {}", job->id, job->reason);
      }
      if (job != nullptr && !job->ended()) {
        launch.silent = 0;
        continue;
      }
      const bool ours = std::ranges::any_of(batches_, [&](const Batch& batch) {
        return std::ranges::find(batch.ids, id) != batch.ids.end();
      });
      if (ours) continue;  // not submitted yet
      ++launch.silent;
      // One that was never accepted was left by an owner who died before sbatch; one that we took
      // out of Slurm's queue has nothing more to say.
      const bool cancelled = launch.stop_asked && launch.info.state == LaunchState::kQueued;
      if (launch.silent >= kLooksBeforeLost || !launch.accepted || cancelled) {
        silent.emplace_back(id, job);
      }
    }
  }
  for (const auto& [id, job] : silent) Settle(id, job);
}

/// How a launch ended of which Slurm says that nothing is left.
void SlurmLauncher::Settle(const std::string& id, const SlurmJob* job) {
  const LaunchDirectory directory(Path(id));
  directory.Refresh();
  Result<LaunchExit> exit = directory.ReadExit();
  const bool begun = directory.ReadKeeper().ok();
  const std::string state = job == nullptr ? "unknown to it" : job->state;
  MutexLock lock(&mu_);
  const auto found = Find(id);
  if (!found.ok() || !(*found)->handed()) return;
  Launch* launch = *found;
  if (!exit.ok() && !begun && job == nullptr && !launch->accepted) {
    if (directory.Remove().ok()) {
      queue_.Release(launch->slots);
      launches_.erase(id);
    }
    return;
  }
  if (!exit.ok()) {
    LaunchExit lost;
    lost.kind = begun ? ExitKind::kLost : ExitKind::kNotStarted;
    if (begun && state == "TIMEOUT") lost.kind = ExitKind::kTimeLimit;
    // Taken from it, not failed by it.
    lost.stopped = launch->stop_asked || (!begun && job == nullptr) || state == "PREEMPTED" ||
                   state == "NODE_FAIL" || state == "BOOT_FAIL" || state == "CANCELLED" ||
                   state == "REVOKED";
    lost.message =
        fmt::format("Slurm's job {} is {}", launch->job_id.empty() ? launch->job : launch->job_id,
                    state) +
        (begun ? ": how the launch ended is not known" : ": it ended before the launch began");
    if (!begun) {
      std::ifstream output(OutputPath(*launch));
      std::string said((std::istreambuf_iterator<char>(output)), {});
      if (said.size() > 500) said.erase(0, said.size() - 500);
      if (!said.empty()) lost.message += ": " + said;
    }
    lost.time = options_.clock->WallNanos();
    // A shim on a node that Slurm gave up, and that lives, reads this.
    Tell(*launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
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
      const auto found = Find(id);
      if (!found.ok() || !(*found)->handed()) continue;
      jobs.push_back((*found)->job_id);
      (*found)->cancel_pending = false;
      if (!pending_only) (*found)->cancel_at = options_.clock->Now() + kCancelSlack;
    }
  }
  if (jobs.empty()) return;
  const Status cancelled = client_.Cancel(jobs, pending_only);
  if (cancelled.ok()) return;
  LogWarning("launcher: " + cancelled.ToString());
  MutexLock lock(&mu_);
  for (const std::string& id : ids) {
    if (const auto found = Find(id); found.ok() && pending_only) (*found)->cancel_pending = true;
  }
}

void SlurmLauncher::LookAtDirectories() {
  std::vector<std::pair<std::string, bool>> living;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, launch] : launches_) {
      if (launch.handed()) living.emplace_back(id, launch.info.state == LaunchState::kRunning);
    }
  }
  for (const auto& [id, runs] : living) {
    const LaunchDirectory directory(Path(id));
    auto exit = directory.ReadExit();
    const auto running = runs ? Result<RunningRecord>(RunningRecord{}) : directory.ReadRunning();
    if (!exit.ok() && (runs || !running.ok())) continue;
    MutexLock lock(&mu_);
    const auto found = Find(id);
    if (!found.ok() || !(*found)->handed()) continue;
    Launch* launch = *found;
    if (!runs && running.ok()) {
      launch->info.state = LaunchState::kRunning;
      launch->info.pids = running->pids;
      launch->info.started = running->time;
      launch->cancel_pending = false;
      if (!exit.ok()) told_.push_back(launch->info);
      changed_.NotifyAll();
    }
    if (exit.ok()) End(launch, *std::move(exit));
  }
}

/// Launches that must not outlive their owner see by this that it lives.
void SlurmLauncher::Beat() {
  const Nanos now = options_.clock->Now();
  if (now < beaten_ + kBeat) return;
  {
    MutexLock lock(&mu_);
    const bool wanted = std::ranges::any_of(launches_, [](const auto& entry) {
      return entry.second.handed() && !entry.second.outlive_owner;
    });
    if (!wanted) return;
  }
  beaten_ = now;
  const std::string path = options_.directory + "/" + kOwnerBeat;
  const std::string text = fmt::format("{} {}\n", getpid(), ++beats_);
  const OwnedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) != std::ssize(text)) {
    LogWarning(ErrnoStatus("write " + path, errno).ToString());
  }
}

void SlurmLauncher::TellListener() {
  std::vector<LaunchInfo> infos;
  {
    MutexLock lock(&mu_);
    infos.swap(told_);
  }
  if (!options_.listener) return;
  for (const LaunchInfo& info : infos) options_.listener(info);
}

}  // namespace

Status SlurmLauncherOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("directory must not be empty");
  if (slots < 0) return InvalidArgumentError("slots must not be negative");
  if (!(calls_per_second > 0)) return InvalidArgumentError("calls_per_second must be positive");
  if (poll.count() <= 0 || look.count() <= 0) {
    return InvalidArgumentError("poll and look must be positive");
  }
  return Status::Ok();
}

Result<std::unique_ptr<Launcher>> OpenSlurmLauncher(SlurmLauncherOptions options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(SlurmClient client, SlurmClient::Find(options.programs));
  ASSIGN_OR_RETURN(std::string shim, FindShim(options.shim));
  std::error_code error;
  shim = std::filesystem::absolute(shim, error).string();
  options.directory = std::filesystem::absolute(options.directory, error).string();
  std::filesystem::create_directories(options.directory + "/" + kOutputs, error);
  if (error) return UnavailableError("make " + options.directory + ": " + error.message());
  if (chmod(options.directory.c_str(), 0700) != 0) {  // environments hold tokens
    return ErrnoStatus("chmod " + options.directory, errno);
  }
  auto lock = LockFile(options.directory + "/.lock", options.clock, kLockPatience);
  if (!lock.ok()) {
    return lock.status().WithContext("launches in " + options.directory +
                                     " belong to another launcher");
  }
  auto launcher = std::make_unique<SlurmLauncher>(std::move(options), std::move(shim),
                                                  std::move(client), std::move(*lock));
  RETURN_IF_ERROR(launcher->Begin());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn

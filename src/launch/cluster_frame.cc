#include "launch/cluster_frame.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr Nanos kIdle = std::chrono::hours(1);
constexpr Nanos kLongestGrace = std::chrono::hours(24);
constexpr Nanos kStopSlack = std::chrono::seconds(60);
/// A shim takes its owner for gone after 5 s.
constexpr Nanos kBeat = std::chrono::milliseconds(500);

}  // namespace

ClusterFrame::ClusterFrame(ClusterOptions options, OwnedFd lock)
    : LaunchFrame({.directory = options.directory,
                   .slots = options.slots,
                   .stop_slack = kStopSlack,
                   .listener = options.listener,
                   .clock = options.clock},
                  std::move(lock)),
      budget_(options.calls_per_second),
      cluster_(std::move(options)),
      beat_path_(cluster_.directory + "/" + kOwnerBeat) {}

void ClusterFrame::OnAdopt(ClusterLaunch* /*launch*/, const LaunchRecord& /*record*/) {}
Status ClusterFrame::Furnish(const LaunchDirectory& /*directory*/) { return Status::Ok(); }
bool ClusterFrame::IsDoubtful(ClusterLaunch* /*launch*/) { return false; }
void ClusterFrame::Listen(const std::string& /*id*/) {}

ClusterFrame::ClusterLaunch* ClusterFrame::FindHanded(const std::string& id) {
  const auto found = Find(id);
  if (!found.ok()) return nullptr;
  auto* launch = static_cast<ClusterLaunch*>(*found);
  return launch->handed() ? launch : nullptr;
}

bool ClusterFrame::AnyHanded() const {
  return std::ranges::any_of(launches_,
                             [](const auto& entry) { return Of(entry.second)->handed(); });
}

void ClusterFrame::Wake() {
  woken_ = true;
  work_.NotifyAll();
  beat_.NotifyAll();
}

Status ClusterFrame::Send(Launch* launch) {
  // Sent when its directory is made.
  if (static_cast<ClusterLaunch*>(launch)->job.empty()) return Status::Ok();
  if (launch->unsent.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(const OwnedFd commands, launch->directory.OpenCommands());
  if (write(commands.get(), launch->unsent.data(), launch->unsent.size()) !=
      std::ssize(launch->unsent)) {
    return ErrnoStatus("tell launch " + launch->info.id, errno);
  }
  launch->unsent.clear();
  return Status::Ok();
}

void ClusterFrame::OnStop(Launch* launch, Nanos grace) {
  auto* stopped = static_cast<ClusterLaunch*>(launch);
  stopped->stop_asked = true;
  if (launch->info.state == LaunchState::kQueued) stopped->take_back = true;
  const Nanos at = clock()->Now() + std::min(grace, kLongestGrace) + kCancelSlack;
  stopped->cancel_at = std::min(stopped->cancel_at.value_or(at), at);
  Wake();
}

void ClusterFrame::OnLeave(Launch* launch, Nanos grace) {
  if (launch->outlive_owner) return;
  StopOne(launch, grace).IgnoreError("it notices that its owner is gone");
}

Status ClusterFrame::AfterAdopting() {
  {
    MutexLock lock(&mu_);
    if (!AnyHanded()) return Status::Ok();
  }
  AskForJobs();  // those that no job knows were never there
  return Status::Ok();
}

Status ClusterFrame::Adopt(const std::string& id) {
  MutexLock lock(&mu_);
  std::unique_ptr<Launch> made = NewLaunch(Path(id));
  auto* launch = static_cast<ClusterLaunch*>(made.get());
  launch->info.id = id;
  const auto record = launch->directory.ReadLaunch();
  if (record.status().Is(Code::kNotFound)) return launch->directory.Remove();  // no job knows of it
  auto exit = launch->directory.ReadExit();
  const bool running = NoteRunning(launch);
  if (record.ok()) {
    if (record->job.empty()) {
      return FailedPreconditionError("belongs to a launcher of this machine, not to one of " +
                                     cluster_.name);
    }
    Fill(launch, *record);
    launch->job = record->job;
    OnAdopt(launch, *record);
  }
  if (exit.status().Is(Code::kNotFound) && record.ok()) {
    launch->info.state = running ? LaunchState::kRunning : LaunchState::kQueued;
    launch->accepted = launch->directory.ReadKeeper().ok();
  } else {
    // One whose records cannot be read is not waited for; its shim, if it lives, is told to end.
    if (!exit.ok()) {
      const Status& damage = record.ok() ? exit.status() : record.status();
      LogError("launch " + id + ": " + damage.ToString());
      if (launch->job.empty()) launch->job = "unknown";  // reachable by its directory all the same
      Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 0})
          .IgnoreError("it may be what is damaged");
      exit = LaunchExit{
          .kind = ExitKind::kLost, .message = damage.ToString(), .time = clock()->WallNanos()};
    }
    launch->info.state = LaunchState::kEnded;
    launch->info.exit = *std::move(exit);
  }
  Put(std::move(made));
  return Status::Ok();
}

std::optional<LaunchRecord> ClusterFrame::NewRecord(const LaunchSpec& spec) {
  MutexLock lock(&mu_);
  const auto found = Find(spec.id);
  if (!found.ok()) return std::nullopt;
  LaunchRecord record = RecordOf(spec, **found);
  if (record.cwd.empty()) record.cwd = std::filesystem::current_path().string();
  return record;
}

bool ClusterFrame::MakeDirectory(const LaunchSpec& spec, const LaunchRecord& record) {
  const LaunchDirectory directory(Path(spec.id));
  Status made = directory.CreateShared(record, LaunchEnvironment(record.key, spec));
  if (made.ok()) made = Furnish(directory);
  MutexLock lock(&mu_);
  const auto found = Find(spec.id);
  if (!found.ok()) return false;
  auto* launch = static_cast<ClusterLaunch*>(*found);
  if (!made.ok()) {
    End(launch, {.kind = ExitKind::kNotStarted, .message = std::string(made.message())});
    return false;
  }
  launch->job = record.job;
  beat_.NotifyAll();  // it may be the first that must not outlive us
  if (const Status sent = Send(launch); !sent.ok()) LogWarning("launcher: " + sent.ToString());
  return true;
}

void ClusterFrame::Work() {
  const std::jthread beater([this] { BeatWhileOpen(); });
  for (;;) {
    CallCluster();
    LookAtDirectories();
    TellListener();
    MutexLock lock(&mu_);
    if (closed_) return;
    const bool busy = AnyHanded() || HasUnsubmitted();
    if (!woken_) work_.WaitFor(&mu_, busy ? cluster_.look : kIdle);
    woken_ = false;
  }
}

void ClusterFrame::LookAtDirectories() {
  struct Living {
    std::string id;
    bool runs;
    bool doubtful;
  };
  std::vector<Living> living;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, each] : launches_) {
      ClusterLaunch* launch = Of(each);
      if (!launch->handed()) continue;
      living.push_back({.id = id,
                        .runs = launch->info.state == LaunchState::kRunning,
                        .doubtful = IsDoubtful(launch)});
    }
  }
  for (const auto& [id, runs, doubtful] : living) {
    const LaunchDirectory directory(Path(id));
    auto exit = directory.ReadExit();
    const auto running = runs ? Result<RunningRecord>(RunningRecord{}) : directory.ReadRunning();
    if (!exit.ok() && doubtful) Listen(id);
    if (!exit.ok() && (runs || !running.ok())) continue;
    MutexLock lock(&mu_);
    ClusterLaunch* launch = FindHanded(id);
    if (launch == nullptr) continue;
    if (!runs && running.ok()) {
      launch->info.pids = running->pids;
      launch->info.started = running->time;
      launch->take_back = false;
      // Of one that has ended meanwhile, only the end is told.
      if (!exit.ok()) Running(launch);
    }
    if (exit.ok()) End(launch, *std::move(exit));
  }
}

void ClusterFrame::BeatWhileOpen() {
  for (std::uint64_t beat = 1;; ++beat) {
    {
      MutexLock lock(&mu_);
      const auto wanted = [this]() REQUIRES(mu_) {
        return std::ranges::any_of(launches_, [](const auto& entry) {
          return Of(entry.second)->handed() && !entry.second->outlive_owner;
        });
      };
      if (!closed_) beat_.WaitFor(&mu_, wanted() ? kBeat : kIdle);
      if (closed_) return;
      if (!wanted()) continue;
    }
    const std::string text = fmt::format("{} {}\n", getpid(), beat);
    const OwnedFd fd(open(beat_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid() || write(fd.get(), text.data(), text.size()) != std::ssize(text)) {
      LogWarning(ErrnoStatus("write " + beat_path_, errno).ToString());
    }
  }
}

}  // namespace cairn

#include "launch/local_launcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
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
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

/// A shim that holds the lock publishes who it is at once; on a machine that is that busy something
/// else is wrong.
constexpr Nanos kKeeperTimeout = std::chrono::seconds(20);
constexpr Nanos kLook = std::chrono::milliseconds(5);
/// Beyond the grace, for SIGKILL to work and records to be written.
constexpr Nanos kStopSlack = std::chrono::seconds(30);
constexpr std::uint64_t kWakeTag = 0;
constexpr int kLookAtBlindMillis = 100;

class LocalLauncher final : public Launcher {
 public:
  LocalLauncher(LocalLauncherOptions options, std::string shim, OwnedFd lock, OwnedFd epoll,
                OwnedFd wake)
      : options_(std::move(options)),
        shim_(std::move(shim)),
        lock_(std::move(lock)),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        queue_(options_.slots) {}

  ~LocalLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

  /// Takes up what earlier launchers left, then starts to work.
  Status Begin() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
      const std::string id = entry.path().filename().string();
      if (id.starts_with(kRemovedPrefix)) {
        std::error_code left_to_the_next_opening;
        std::filesystem::remove_all(entry.path(), left_to_the_next_opening);
        continue;
      }
      if (!entry.is_directory(error) || !IsLaunchId(id)) continue;  // not ours
      Status adopted = Adopt(id);
      if (adopted.Is(Code::kCorruption)) adopted = AdoptDamaged(id, adopted);
      RETURN_IF_ERROR(adopted.WithContext("launch " + id));
    }
    if (error) return UnavailableError("list " + options_.directory + ": " + error.message());
    watcher_ = std::jthread([this] { Watch(); });
    return Status::Ok();
  }

  Status Submit(LaunchSpec spec) override {
    RETURN_IF_ERROR(ValidateSpec(spec));
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    if (closing_) return FailedPreconditionError("the launcher is being closed");
    if (launches_.contains(spec.id)) return AlreadyExistsError("launch " + spec.id + " is known");
    if (spec.slots > options_.slots) {
      return ResourceExhaustedError("launch " + spec.id + " wants " + std::to_string(spec.slots) +
                                    " slots, and there are " + std::to_string(options_.slots));
    }
    Launch launch(Path(spec.id));
    launch.info.id = spec.id;
    launch.info.slots = spec.slots;
    launch.info.priority = spec.priority;
    launch.info.submitted = options_.clock->WallNanos();
    queue_.Push(spec.id, spec.slots, spec.priority);
    const std::string id = spec.id;
    launch.spec = std::move(spec);
    launches_.emplace(id, std::move(launch));
    Wake();
    return Status::Ok();
  }

  Result<LaunchInfo> Get(std::string_view id) override {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(Launch * launch, Find(id));
    return Describe(*launch);
  }

  Result<std::vector<LaunchInfo>> List() override {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    std::vector<LaunchInfo> infos;
    for (auto& [id, launch] : launches_) infos.push_back(Describe(launch));
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
    if (launch->info.state != LaunchState::kRunning) return Status::Ok();
    return Tell(launch, {.kind = ControlCommand::Kind::kSignal, .signal = signal, .grace = 0});
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
      ASSIGN_OR_RETURN(Launch * launch, Find(id));
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
      ASSIGN_OR_RETURN(Launch * launch, Find(id));
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
      if (mode == CloseMode::kStopAll) outcome = StopAll(grace);
      closed_ = true;
      changed_.NotifyAll();
      Wake();
    }
    if (watcher_.joinable()) watcher_.join();
    MutexLock lock(&mu_);
    launches_.clear();  // their descriptors: shims see that the owner is gone
    lock_.Reset();
    return outcome;
  }

 private:
  struct Launch {
    explicit Launch(std::string path) : directory(std::move(path)) {}

    LaunchDirectory directory;
    LaunchSpec spec;  // until it is started
    LaunchInfo info;
    std::string key;
    std::vector<int> slots;
    std::uint64_t tag = 0;  // in the epoll set: tag for the process, tag + 1 for the socket
    pid_t child = 0;        // the shim, when it is our child and not reaped
    OwnedFd process;        // the shim
    OwnedFd socket;
    OwnedFd control;
    std::string unsent;  // commands that came before the control pipe was open
    /// Its records cannot be read, and it lives: its end is seen by its lock.
    bool blind = false;
  };

  std::string Path(std::string_view id) const { return options_.directory + "/" + std::string(id); }

  Status CheckOpen() const REQUIRES(mu_) {
    return closed_ ? FailedPreconditionError("the launcher is closed") : Status::Ok();
  }

  Result<Launch*> Find(std::string_view id) REQUIRES(mu_) {
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError("no launch is called " + std::string(id));
    return &found->second;
  }

  LaunchInfo Describe(Launch& launch) REQUIRES(mu_) {
    if (launch.info.state == LaunchState::kRunning && launch.info.pids.empty()) {
      NoteRunning(&launch);  // one that was taken up while it started
    }
    LaunchInfo info = launch.info;
    if (info.state == LaunchState::kQueued) info.reason = queue_.Reason(info.id);
    return info;
  }

  void Wake() {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) LogError("launcher: the wake-up failed");
  }

  Status StopOne(Launch* launch, Nanos grace) REQUIRES(mu_) {
    if (launch->info.state == LaunchState::kQueued) {
      queue_.Remove(launch->info.id);
      LaunchExit exit;
      exit.kind = ExitKind::kNotStarted;
      exit.stopped = true;
      exit.message = "stopped before it was started";
      exit.time = options_.clock->WallNanos();
      End(launch, exit);
      Wake();
      return Status::Ok();
    }
    if (launch->info.state == LaunchState::kEnded) return Status::Ok();
    return Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = grace.count()});
  }

  Status StopAll(Nanos grace) REQUIRES(mu_) {
    Status outcome;  // one that cannot be told keeps no other from being told
    for (auto& [id, launch] : launches_) {
      const Status told = StopOne(&launch, grace);
      if (outcome.ok()) outcome = told.WithContext("launch " + id);
    }
    const Nanos deadline = options_.clock->Now() + grace + kStopSlack;
    const auto living = [this]() REQUIRES(mu_) {
      std::string names;
      for (const auto& [id, launch] : launches_) {
        if (launch.info.state != LaunchState::kEnded) names += " " + id;
      }
      return names;
    };
    std::string names;
    while (!(names = living()).empty()) {
      const Nanos left = deadline - options_.clock->Now();
      if (left.count() <= 0) {
        return outcome.ok() ? DeadlineExceededError("launches that do not end:" + names) : outcome;
      }
      changed_.WaitFor(&mu_, left);
    }
    return outcome;
  }

  Status Tell(Launch* launch, const ControlCommand& command) REQUIRES(mu_) {
    const std::string line = EncodeCommand(command);
    launch->unsent += line;
    const Status sent = Send(launch);
    // Whoever is told that it failed says it again: not twice.
    if (!sent.ok() && launch->unsent.ends_with(line)) {
      launch->unsent.resize(launch->unsent.size() - line.size());
    }
    return sent;
  }

  Status Send(Launch* launch) REQUIRES(mu_) {
    if (!launch->control.valid()) return Status::Ok();  // sent when it is started
    while (!launch->unsent.empty()) {
      const ssize_t wrote =
          write(launch->control.get(), launch->unsent.data(), launch->unsent.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno == EAGAIN) {
        return UnavailableError("launch " + launch->info.id + " does not take what it is told");
      }
      if (wrote < 0) return ErrnoStatus("tell launch " + launch->info.id, errno);
      launch->unsent.erase(0, static_cast<std::size_t>(wrote));
    }
    return Status::Ok();
  }

  void End(Launch* launch, const LaunchExit& exit) REQUIRES(mu_) {
    queue_.Release(launch->slots);
    launch->slots.clear();
    launch->info.state = LaunchState::kEnded;
    launch->info.slot_ids.clear();
    launch->info.exit = exit;
    launch->process.Reset();
    launch->socket.Reset();
    launch->control.Reset();
    told_.push_back(launch->info);
    changed_.NotifyAll();
  }

  void NoteRunning(Launch* launch) REQUIRES(mu_) {
    const auto running = launch->directory.ReadRunning();
    if (!running.ok()) return;
    launch->info.pids = running->pids;
    launch->info.started = running->time;
  }

  /// Waits for the shim's end through the epoll set.
  Status Follow(Launch* launch) REQUIRES(mu_) {
    launch->tag = next_tag_;
    next_tag_ += 2;
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = launch->tag}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, launch->process.get(), &event) != 0) {
      return ErrnoStatus("epoll_ctl", errno);
    }
    if (launch->socket.valid()) {
      event = {.events = EPOLLIN, .data = {.u64 = launch->tag + 1}};
      if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, launch->socket.get(), &event) != 0) {
        return ErrnoStatus("epoll_ctl", errno);
      }
    }
    return Status::Ok();
  }

  Status Adopt(const std::string& id);
  Status AdoptDamaged(const std::string& id, const Status& damage);
  /// How a launch ended whose records cannot be read. Unavailable while it lives.
  Result<LaunchExit> SettleBlind(const LaunchDirectory& directory);
  void LookAtBlind() EXCLUDES(mu_);
  Result<LaunchExit> Settle(const LaunchDirectory& directory, const std::string& key);
  void Watch();
  void StartNext(const LaunchQueue::Next& next) EXCLUDES(mu_);
  Status Spawn(const LaunchSpec& spec, const LaunchRecord& record) EXCLUDES(mu_);
  void OnShimEnd(std::uint64_t tag) EXCLUDES(mu_);
  void OnSocket(std::uint64_t tag) EXCLUDES(mu_);
  void TellListener() EXCLUDES(mu_);

  const LocalLauncherOptions options_;
  const std::string shim_;
  OwnedFd lock_;
  const OwnedFd epoll_;
  const OwnedFd wake_;

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, Launch, std::less<>> launches_ GUARDED_BY(mu_);
  LaunchQueue queue_ GUARDED_BY(mu_);
  std::vector<LaunchInfo> told_ GUARDED_BY(mu_);  // that the listener is still to be told
  std::uint64_t next_tag_ GUARDED_BY(mu_) = 2;
  int blind_ GUARDED_BY(mu_) = 0;         // launches that are
  bool closing_ GUARDED_BY(mu_) = false;  // nothing new is taken; what lives is being stopped
  bool closed_ GUARDED_BY(mu_) = false;

  std::jthread watcher_;  // last: it uses all of the above
};

/// How a launch ended whose shim is dead. The caller has seen that its lock is free, or holds it.
Result<LaunchExit> LocalLauncher::Settle(const LaunchDirectory& directory, const std::string& key) {
  ASSIGN_OR_RETURN(const OwnedFd lock, directory.Lock(options_.clock, kLockPatience));
  auto exit = directory.ReadExit();
  if (exit.ok() || !exit.status().Is(Code::kNotFound)) return exit;
  // The ranks died with the shim; what they had started did not.
  RETURN_IF_ERROR(KillByEnvironment(kLaunchKeyVariable, key));
  LaunchExit lost;
  lost.kind = ExitKind::kLost;
  lost.message = "its keeper was killed, or the machine restarted: how it ended is not known";
  lost.time = options_.clock->WallNanos();
  RETURN_IF_ERROR(directory.Publish(lost));
  return lost;
}

/// Takes up the launch in a directory that an earlier launcher left; before the watcher runs.
Status LocalLauncher::Adopt(const std::string& id) {
  const LaunchDirectory directory(Path(id));
  const Nanos deadline = options_.clock->Now() + kKeeperTimeout;
  MutexLock lock(&mu_);
  Launch launch(directory.path());
  launch.info.id = id;
  launch.info.state = LaunchState::kRunning;
  for (;;) {
    auto held = directory.Lock(options_.clock);
    if (!held.ok() && !held.status().Is(Code::kUnavailable)) return held.status();
    const auto keeper = directory.ReadKeeper();
    if (keeper.status().Is(Code::kCorruption)) return keeper.status();
    if (held.ok() && keeper.status().Is(Code::kNotFound) &&
        directory.ReadExit().status().Is(Code::kNotFound)) {
      // The owner died before the shim began. A shim that comes now finds nothing to keep.
      return directory.Remove();
    }
    ASSIGN_OR_RETURN(const LaunchRecord record, directory.ReadLaunch());
    launch.key = record.key;
    launch.info.submitted = record.submitted;
    launch.info.priority = static_cast<int>(record.priority);
    launch.slots = ParseSlots(record.slots);
    launch.info.slots = static_cast<int>(launch.slots.size());
    NoteRunning(&launch);
    if (held.ok()) {
      held->Reset();  // Settle takes it itself
      ASSIGN_OR_RETURN(launch.info.exit, Settle(directory, record.key));
      launch.info.state = LaunchState::kEnded;
      launch.slots.clear();
      launches_.emplace(id, std::move(launch));
      return Status::Ok();
    }
    if (keeper.ok()) {
      auto process = OpenProcess(*keeper);
      if (process.ok()) {
        launch.process = std::move(*process);
        break;
      }
    }
    // It holds the lock and has not said who it is, or it is just ending: look again.
    if (options_.clock->Now() > deadline) {
      return UnavailableError("its directory is locked by a process that is not its keeper");
    }
    options_.clock->Sleep(kLook);
  }
  ASSIGN_OR_RETURN(launch.control, directory.OpenControl());
  launch.info.slot_ids = JoinSlots(launch.slots);
  queue_.Take(launch.slots);
  const auto placed = launches_.emplace(id, std::move(launch)).first;
  return Follow(&placed->second);
}

Result<LaunchExit> LocalLauncher::SettleBlind(const LaunchDirectory& directory) {
  ASSIGN_OR_RETURN(const OwnedFd lock, directory.Lock(options_.clock));
  auto exit = directory.ReadExit();
  if (exit.ok()) return exit;
  // The key may be what cannot be read; the path of the launch is nobody else's either.
  RETURN_IF_ERROR(KillByEnvironment("CAIRN_CHIEF", "file:" + directory.chief_path()));
  LaunchExit lost;
  lost.kind = ExitKind::kLost;
  lost.message = "a record of it cannot be read: how it ended is not known";
  lost.time = options_.clock->WallNanos();
  return lost;
}

/// A record that cannot be read does not keep all others from being taken up. Whether the launch
/// lives is said by its lock, not by the record.
Status LocalLauncher::AdoptDamaged(const std::string& id, const Status& damage) {
  LogError("launch " + id + ": " + damage.ToString());
  MutexLock lock(&mu_);
  Launch launch(Path(id));
  launch.info.id = id;
  Result<LaunchExit> exit = SettleBlind(launch.directory);
  if (exit.ok()) {
    launch.info.state = LaunchState::kEnded;
    launch.info.exit = *std::move(exit);
    if (launch.info.exit->kind == ExitKind::kLost) launch.info.exit->message = damage.ToString();
  } else if (exit.status().Is(Code::kUnavailable)) {
    launch.info.state = LaunchState::kRunning;
    launch.blind = true;
    ++blind_;
    ASSIGN_OR_RETURN(launch.control, launch.directory.OpenControl());
    if (const auto record = launch.directory.ReadLaunch(); record.ok()) {
      launch.slots = ParseSlots(record->slots);
      launch.info.slots = static_cast<int>(launch.slots.size());
      launch.info.slot_ids = JoinSlots(launch.slots);
      queue_.Take(launch.slots);
    }
  } else {
    return exit.status();
  }
  launches_.emplace(id, std::move(launch));
  return Status::Ok();
}

void LocalLauncher::LookAtBlind() {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, launch] : launches_) {
      if (launch.blind) ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    const Result<LaunchExit> exit = SettleBlind(LaunchDirectory(Path(id)));
    if (!exit.ok()) continue;
    MutexLock lock(&mu_);
    if (const auto found = Find(id); found.ok()) {
      (*found)->blind = false;
      --blind_;
      End(*found, *exit);
    }
  }
}

Status LocalLauncher::Spawn(const LaunchSpec& spec, const LaunchRecord& record) {
  const LaunchDirectory directory(Path(spec.id));
  RETURN_IF_ERROR(directory.Create(record));
  ASSIGN_OR_RETURN(OwnedFd control, directory.OpenControl());
  ASSIGN_OR_RETURN(SpawnedShim shim, SpawnShim(shim_, directory.path(), record.key, spec));
  // Our child keeps its pid until we reap it, so the descriptor means the shim.
  auto identity = IdentityOf(shim.pid);
  OwnedFd process;
  if (identity.ok()) {
    if (auto opened = OpenProcess(*identity); opened.ok()) process = std::move(*opened);
  }
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Launch * launch, Find(spec.id));
  launch->child = shim.pid;
  launch->socket = std::move(shim.socket);
  launch->control = std::move(control);
  launch->process = std::move(process);
  if (!launch->process.valid()) return Status::Ok();  // it has ended already
  RETURN_IF_ERROR(Follow(launch));
  return Send(launch);
}

void LocalLauncher::StartNext(const LaunchQueue::Next& next) {
  LaunchSpec spec;
  LaunchRecord record;
  {
    MutexLock lock(&mu_);
    const auto found = Find(next.id);
    if (!found.ok()) return;
    Launch* launch = *found;
    spec = std::move(launch->spec);
    launch->slots = next.slots;
    launch->info.state = LaunchState::kRunning;
    launch->info.slot_ids = JoinSlots(next.slots);
    launch->key = IdSource::System()->NewUuid();
    record.id = spec.id;
    record.key = launch->key;
    record.submitted = launch->info.submitted;
  }
  record.argv = spec.argv;
  record.cwd = spec.cwd;
  record.processes = spec.processes;
  record.slots = JoinSlots(next.slots);
  record.priority = spec.priority;
  record.limits = spec.limits;
  record.grace = spec.grace.count();
  record.outlive_owner = spec.outlive_owner;
  const Status spawned = Spawn(spec, record);
  std::uint64_t tag = 0;
  {
    MutexLock lock(&mu_);
    const auto found = Find(next.id);
    if (!found.ok()) return;
    Launch* launch = *found;
    if (spawned.ok() && launch->process.valid()) return;
    if (!spawned.ok() && launch->child == 0) {
      LaunchExit exit;
      exit.kind = ExitKind::kNotStarted;
      exit.message = spawned.message();
      exit.time = options_.clock->WallNanos();
      launch->directory.Publish(exit).IgnoreError("the directory may be what could not be made");
      End(launch, exit);
      return;
    }
    if (!spawned.ok()) kill(launch->child, SIGKILL);  // it runs, and cannot be followed
    if (launch->tag == 0) {
      launch->tag = next_tag_;
      next_tag_ += 2;
    }
    tag = launch->tag;
  }
  OnShimEnd(tag);
}

void LocalLauncher::OnSocket(std::uint64_t tag) {
  MutexLock lock(&mu_);
  for (auto& [id, launch] : launches_) {
    if (launch.tag != tag || !launch.socket.valid()) continue;
    char byte = 0;
    if (read(launch.socket.get(), &byte, 1) == 1) {
      NoteRunning(&launch);
      told_.push_back(launch.info);
      changed_.NotifyAll();
      return;
    }
    // The shim has ended; its descriptor tells the rest. Out of the set, not closed.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, launch.socket.get(), nullptr);
  }
}

void LocalLauncher::OnShimEnd(std::uint64_t tag) {
  std::string id;
  std::string key;
  {
    MutexLock lock(&mu_);
    for (auto& [name, launch] : launches_) {
      if (launch.tag != tag || launch.info.state == LaunchState::kEnded) continue;
      id = name;
      key = launch.key;
      if (launch.process.valid()) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, launch.process.get(), nullptr);
      }
      if (launch.child != 0) waitpid(launch.child, nullptr, 0);
      launch.child = 0;
    }
  }
  if (id.empty()) return;
  Result<LaunchExit> exit = Settle(LaunchDirectory(Path(id)), key);
  if (!exit.ok()) {
    LogError("launch " + id + ": " + exit.status().ToString());
    LaunchExit lost;
    lost.kind = ExitKind::kLost;
    lost.message = exit.status().ToString();
    lost.time = options_.clock->WallNanos();
    exit = lost;
  }
  MutexLock lock(&mu_);
  if (const auto found = Find(id); found.ok()) {
    NoteRunning(*found);
    End(*found, *exit);
  }
}

void LocalLauncher::TellListener() {
  std::vector<LaunchInfo> infos;
  {
    MutexLock lock(&mu_);
    infos.swap(told_);
  }
  if (!options_.listener) return;
  for (const LaunchInfo& info : infos) options_.listener(info);
}

void LocalLauncher::Watch() {
  for (;;) {
    for (;;) {
      std::optional<LaunchQueue::Next> next;
      {
        MutexLock lock(&mu_);
        if (!closed_) next = queue_.Pop();
      }
      if (!next.has_value()) break;
      StartNext(*next);
      TellListener();
    }
    TellListener();
    bool blind = false;
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      blind = blind_ > 0;
    }
    std::array<epoll_event, 64> events{};
    const int count =
        epoll_wait(epoll_.get(), events.data(), events.size(), blind ? kLookAtBlindMillis : -1);
    if (blind) LookAtBlind();
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
      std::uint64_t ignored = 0;
      if (tag == kWakeTag) {
        if (read(wake_.get(), &ignored, sizeof(ignored)) < 0) continue;
      } else if (tag % 2 == 0) {
        OnShimEnd(tag);
      } else {
        OnSocket(tag - 1);
      }
    }
  }
}

}  // namespace

Status LocalLauncherOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("directory must not be empty");
  if (slots < 0) return InvalidArgumentError("slots must not be negative");
  return Status::Ok();
}

Result<std::unique_ptr<Launcher>> OpenLocalLauncher(LocalLauncherOptions options) {
  RETURN_IF_ERROR(options.Validate());
  std::error_code error;
  options.directory = std::filesystem::absolute(options.directory, error).string();
  std::filesystem::create_directories(options.directory, error);
  if (error) return UnavailableError("make " + options.directory + ": " + error.message());
  // Logs and command lines are nobody else's business.
  if (chmod(options.directory.c_str(), 0700) != 0) {
    return ErrnoStatus("chmod " + options.directory, errno);
  }
  ASSIGN_OR_RETURN(std::string shim, FindShim(options.shim));
  auto lock = LockFile(options.directory + "/.lock", options.clock, kLockPatience);
  if (!lock.ok()) {
    return lock.status().WithContext("launches in " + options.directory +
                                     " belong to another launcher");
  }
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoStatus("epoll", errno);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus("epoll_ctl", errno);
  }
  auto launcher = std::make_unique<LocalLauncher>(
      std::move(options), std::move(shim), std::move(*lock), std::move(epoll), std::move(wake));
  RETURN_IF_ERROR(launcher->Begin());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn

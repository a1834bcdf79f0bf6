#include "launch/local_launcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "launch/launch_directory.h"
#include "launch/launch_frame.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

/// A shim that holds the lock publishes who it is at once; on a machine that is that busy something
/// else is wrong.
constexpr std::chrono::nanoseconds kKeeperTimeout = std::chrono::seconds(20);
constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(5);
constexpr std::uint64_t kWakeTag = 0;
constexpr int kLookAgainMillis = 100;

class LocalLauncher final : public LaunchFrame {
 public:
  LocalLauncher(LocalLauncherOptions options, std::string shim, OwnedFd lock, OwnedFd epoll,
                OwnedFd wake)
      : LaunchFrame({.directory = options.directory,
                     .slots = options.slots,
                     .listener = options.listener,
                     .clock = options.clock},
                    std::move(lock)),
        shim_(std::move(shim)),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)) {}

  ~LocalLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

 private:
  struct LocalLaunch final : Launch {
    using Launch::Launch;

    std::uint64_t tag = 0;  // in the epoll set: tag for the process, tag + 1 for the socket
    pid_t child = 0;        // the shim, when it is our child and not reaped
    OwnedFd process;        // the shim
    OwnedFd socket;
    OwnedFd control;
    /// Its records cannot be read, and it lives: its end is seen by its lock.
    bool blind = false;
  };
  static LocalLaunch* Of(Launch* launch) { return static_cast<LocalLaunch*>(launch); }

  std::unique_ptr<Launch> NewLaunch(std::string path) override {
    return std::make_unique<LocalLaunch>(std::move(path));
  }

  void Wake() override {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) LogError("launcher: the wake-up failed");
  }

  void Refresh(Launch* launch) override REQUIRES(mu_) {
    // One that was taken up while it started.
    if (launch->info.state == LaunchState::kRunning && launch->info.pids.empty()) {
      NoteRunning(launch);
    }
  }

  Status Send(Launch* launch) override REQUIRES(mu_) {
    const OwnedFd& control = Of(launch)->control;
    if (!control.valid()) return Status::Ok();  // sent when it is started
    while (!launch->unsent.empty()) {
      const ssize_t wrote = write(control.get(), launch->unsent.data(), launch->unsent.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno == EAGAIN) {
        return UnavailableError("launch " + launch->info.id + " does not take what it is told");
      }
      if (wrote < 0) return ErrnoStatus("tell launch " + launch->info.id, errno);
      launch->unsent.erase(0, static_cast<std::size_t>(wrote));
    }
    return Status::Ok();
  }

  void OnEnd(Launch* launch) override REQUIRES(mu_) {
    LocalLaunch* local = Of(launch);
    local->process.Reset();
    local->socket.Reset();
    local->control.Reset();
  }

  /// Waits for the shim's end through the epoll set.
  Status Follow(LocalLaunch* launch) REQUIRES(mu_) {
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

  LaunchExit Lost(std::string message) const {
    return {.kind = ExitKind::kLost, .message = std::move(message), .time = clock()->WallNanos()};
  }

  Status Adopt(const std::string& id) override;
  Status AdoptWhole(const std::string& id);
  Status AdoptDamaged(const std::string& id, const Status& damage);
  /// How a launch ended whose records cannot be read. Unavailable while it lives.
  Result<LaunchExit> SettleBlind(const LaunchDirectory& directory);
  void LookAtBlind() EXCLUDES(mu_);
  Result<LaunchExit> Settle(const LaunchDirectory& directory, const std::string& key);
  void Work() override EXCLUDES(mu_);
  bool StartNext() EXCLUDES(mu_);
  Status Spawn(const LaunchSpec& spec, const LaunchRecord& record) EXCLUDES(mu_);
  void Resend() EXCLUDES(mu_);
  void OnShimEnd(std::uint64_t tag) EXCLUDES(mu_);
  void OnSocket(std::uint64_t tag) EXCLUDES(mu_);

  const std::string shim_;
  const OwnedFd epoll_;
  const OwnedFd wake_;
  std::uint64_t next_tag_ GUARDED_BY(mu_) = 2;
  int blind_ GUARDED_BY(mu_) = 0;        // launches that are
  bool resend_ GUARDED_BY(mu_) = false;  // one has not taken what it was told before it began
};

/// How a launch ended whose shim is dead. The caller has seen that its lock is free, or holds it.
Result<LaunchExit> LocalLauncher::Settle(const LaunchDirectory& directory, const std::string& key) {
  ASSIGN_OR_RETURN(const OwnedFd lock, directory.Lock(clock(), kLockPatience));
  auto exit = directory.ReadExit();
  if (exit.ok() || !exit.status().Is(Code::kNotFound)) return exit;
  // The ranks died with the shim; what they had started did not.
  RETURN_IF_ERROR(KillByEnvironment(kLaunchKeyVariable, key));
  LaunchExit lost =
      Lost("its keeper was killed, or the machine restarted: how it ended is not known");
  RETURN_IF_ERROR(directory.Publish(lost));
  return lost;
}

Status LocalLauncher::Adopt(const std::string& id) {
  Status adopted = AdoptWhole(id);
  return adopted.Is(Code::kCorruption) ? AdoptDamaged(id, adopted) : adopted;
}

Status LocalLauncher::AdoptWhole(const std::string& id) {
  const Nanos deadline = clock()->Now() + kKeeperTimeout;
  MutexLock lock(&mu_);
  auto launch = std::make_unique<LocalLaunch>(Path(id));
  const LaunchDirectory& directory = launch->directory;
  launch->info.id = id;
  launch->info.state = LaunchState::kRunning;
  for (;;) {
    auto held = directory.Lock(clock());
    if (!held.ok() && !held.status().Is(Code::kUnavailable)) return held.status();
    const auto keeper = directory.ReadKeeper();
    if (keeper.status().Is(Code::kCorruption)) return keeper.status();
    if (held.ok() && keeper.status().Is(Code::kNotFound) &&
        directory.ReadExit().status().Is(Code::kNotFound)) {
      // The owner died before the shim began. A shim that comes now finds nothing to keep.
      return directory.Remove();
    }
    ASSIGN_OR_RETURN(const LaunchRecord record, directory.ReadLaunch());
    Fill(launch.get(), record);
    NoteRunning(launch.get());
    if (held.ok()) {
      held->Reset();  // Settle takes it itself
      ASSIGN_OR_RETURN(launch->info.exit, Settle(directory, record.key));
      launch->info.state = LaunchState::kEnded;
      Put(std::move(launch));
      return Status::Ok();
    }
    if (keeper.ok()) {
      auto process = OpenProcess(*keeper);
      if (process.ok()) {
        launch->process = std::move(*process);
        break;
      }
    }
    // It holds the lock and has not said who it is, or it is just ending: look again.
    if (clock()->Now() > deadline) {
      return UnavailableError("its directory is locked by a process that is not its keeper");
    }
    clock()->Sleep(kLook);
  }
  ASSIGN_OR_RETURN(launch->control, directory.OpenControl());
  return Follow(Of(Put(std::move(launch))));
}

Result<LaunchExit> LocalLauncher::SettleBlind(const LaunchDirectory& directory) {
  ASSIGN_OR_RETURN(const OwnedFd lock, directory.Lock(clock()));
  auto exit = directory.ReadExit();
  if (exit.ok()) return exit;
  // The key may be what cannot be read; the path of the launch is nobody else's either.
  RETURN_IF_ERROR(KillByEnvironment("CAIRN_CHIEF", "file:" + directory.chief_path()));
  return Lost("a record of it cannot be read: how it ended is not known");
}

/// A record that cannot be read does not keep all others from being taken up. Whether the launch
/// lives is said by its lock, not by the record.
Status LocalLauncher::AdoptDamaged(const std::string& id, const Status& damage) {
  LogError("launch " + id + ": " + damage.ToString());
  MutexLock lock(&mu_);
  auto launch = std::make_unique<LocalLaunch>(Path(id));
  launch->info.id = id;
  Result<LaunchExit> exit = SettleBlind(launch->directory);
  if (exit.ok()) {
    launch->info.state = LaunchState::kEnded;
    launch->info.exit = *std::move(exit);
    if (launch->info.exit->kind == ExitKind::kLost) launch->info.exit->message = damage.ToString();
  } else if (exit.status().Is(Code::kUnavailable)) {
    launch->info.state = LaunchState::kRunning;
    launch->blind = true;
    ++blind_;
    ASSIGN_OR_RETURN(launch->control, launch->directory.OpenControl());
    if (const auto record = launch->directory.ReadLaunch(); record.ok()) {
      launch->slots = ParseSlots(record->slots);
      launch->info.slots = static_cast<int>(launch->slots.size());
    }
  } else {
    return exit.status();
  }
  Put(std::move(launch));
  return Status::Ok();
}

void LocalLauncher::LookAtBlind() {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, launch] : launches_) {
      if (Of(launch.get())->blind) ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    const Result<LaunchExit> exit = SettleBlind(LaunchDirectory(Path(id)));
    if (!exit.ok()) continue;
    MutexLock lock(&mu_);
    if (const auto found = Find(id); found.ok()) {
      Of(*found)->blind = false;
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
  ASSIGN_OR_RETURN(Launch * found, Find(spec.id));
  LocalLaunch* launch = Of(found);
  launch->child = shim.pid;
  launch->socket = std::move(shim.socket);
  launch->control = std::move(control);
  launch->process = std::move(process);
  if (!launch->process.valid()) return Status::Ok();  // it has ended already
  RETURN_IF_ERROR(Follow(launch));
  // What it was told while it was being started, it may not take at once.
  resend_ = resend_ || !Send(launch).ok();
  return Status::Ok();
}

void LocalLauncher::Resend() {
  MutexLock lock(&mu_);
  resend_ = false;
  for (const auto& [id, launch] : launches_) {
    if (launch->lives() && !launch->unsent.empty()) resend_ = !Send(launch.get()).ok() || resend_;
  }
}

/// Starts the next launch of the queue; false: there is none.
bool LocalLauncher::StartNext() {
  LaunchSpec spec;
  LaunchRecord record;
  {
    MutexLock lock(&mu_);
    Launch* launch = TakeNext();
    if (launch == nullptr) return false;
    launch->info.state = LaunchState::kRunning;
    spec = std::move(launch->spec);
    record = RecordOf(spec, *launch);
  }
  const Status spawned = Spawn(spec, record);
  std::uint64_t tag = 0;
  {
    MutexLock lock(&mu_);
    const auto found = Find(spec.id);
    if (!found.ok()) return true;
    LocalLaunch* launch = Of(*found);
    if (spawned.ok() && launch->process.valid()) return true;
    if (!spawned.ok() && launch->child == 0) {
      EndUnstarted(launch, /*stopped=*/false, std::string(spawned.message()));
      return true;
    }
    if (!spawned.ok()) kill(launch->child, SIGKILL);  // it runs, and cannot be followed
    if (launch->tag == 0) {
      launch->tag = next_tag_;
      next_tag_ += 2;
    }
    tag = launch->tag;
  }
  OnShimEnd(tag);
  return true;
}

void LocalLauncher::OnSocket(std::uint64_t tag) {
  MutexLock lock(&mu_);
  for (const auto& [id, each] : launches_) {
    LocalLaunch* launch = Of(each.get());
    if (launch->tag != tag || !launch->socket.valid()) continue;
    char byte = 0;
    if (read(launch->socket.get(), &byte, 1) == 1) {
      NoteRunning(launch);
      Running(launch);
      return;
    }
    // The shim has ended; its descriptor tells the rest. Out of the set, not closed.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, launch->socket.get(), nullptr);
  }
}

void LocalLauncher::OnShimEnd(std::uint64_t tag) {
  std::string id;
  std::string key;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, each] : launches_) {
      LocalLaunch* launch = Of(each.get());
      if (launch->tag != tag || launch->ended()) continue;
      id = name;
      key = launch->key;
      if (launch->process.valid()) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, launch->process.get(), nullptr);
      }
      if (launch->child != 0) waitpid(launch->child, nullptr, 0);
      launch->child = 0;
    }
  }
  if (id.empty()) return;
  Result<LaunchExit> exit = Settle(LaunchDirectory(Path(id)), key);
  if (!exit.ok()) {
    LogError("launch " + id + ": " + exit.status().ToString());
    exit = Lost(exit.status().ToString());
  }
  MutexLock lock(&mu_);
  if (const auto found = Find(id); found.ok()) {
    NoteRunning(*found);
    End(*found, *std::move(exit));
  }
}

void LocalLauncher::Work() {
  for (;;) {
    while (StartNext()) TellListener();
    TellListener();
    bool blind = false;
    bool resend = false;
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      blind = blind_ > 0;
      resend = resend_;
    }
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(),
                                 blind || resend ? kLookAgainMillis : -1);
    if (blind) LookAtBlind();
    if (resend) Resend();
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
  ASSIGN_OR_RETURN(std::string shim, FindShim(options.shim));
  ASSIGN_OR_RETURN(OwnedFd lock, LockLaunches(&options.directory, options.clock));
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoStatus("epoll", errno);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus("epoll_ctl", errno);
  }
  auto launcher = std::make_unique<LocalLauncher>(
      std::move(options), std::move(shim), std::move(lock), std::move(epoll), std::move(wake));
  RETURN_IF_ERROR(launcher->Begin());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn

#include "tune/pool_launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "format/json.h"
#include "launch/process_identity.h"
#include "tune/value_members.h"

extern char** environ;

namespace cairn::tune {
namespace {

constexpr int kControlFd = 3;
constexpr int kOwnerFd = 4;
/// Zygotes that may die one after the other without a launch ending in between: of themselves, and
/// by SIGKILL, which is somebody's or the kernel's doing. Those are replaced later and later.
constexpr int kMaxDeaths = 3;
constexpr int kMaxKills = 20;
constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLastPause = std::chrono::seconds(5);
constexpr auto kLongestWait = std::chrono::hours(1);
constexpr auto kEndPatience = std::chrono::seconds(5);

class PoolLauncher final : public Launcher {
 public:
  explicit PoolLauncher(PoolLauncherOptions options) : options_(std::move(options)) {}
  ~PoolLauncher() override { End(); }

  Status Open() {
    wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (wake_.get() < 0) return ErrnoStatus("eventfd", errno);
    {
      MutexLock hold(&mu_);
      at_once_ = options_.spawn_at_once;
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
    return Status::Ok();
  }

  Status Submit(LaunchSpec spec) override {
    if (spec.id.empty()) return InvalidArgumentError("launch: the id is empty");
    MutexLock hold(&mu_);
    if (closed_) return FailedPreconditionError("the launcher is closed");
    if (launches_.contains(spec.id)) return AlreadyExistsError("launch " + spec.id + " exists");
    Launch& launch = launches_[spec.id];
    living_.insert(spec.id);
    launch.info.id = spec.id;
    launch.info.state = LaunchState::kRunning;
    launch.info.slots = spec.slots;
    launch.info.submitted = options_.clock->WallNanos();
    Value::Object env;
    for (const auto& [name, value] : spec.env) env[name] = value;
    launch.order =
        EncodeJson(Value::Object{{"op", "start"}, {"id", spec.id}, {"env", std::move(env)}});
    if (!broken_.empty()) {
      Refuse(spec.id);
    } else if (spawned_) {
      Send(launch.order);
    }
    Wake();
    return Status::Ok();
  }

  Result<LaunchInfo> Get(std::string_view id) override {
    MutexLock hold(&mu_);
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError(fmt::format("no launch {}", id));
    return found->second.info;
  }

  Result<std::vector<LaunchInfo>> List() override {
    MutexLock hold(&mu_);
    std::vector<LaunchInfo> all;
    for (const auto& [id, launch] : launches_) all.push_back(launch.info);
    return all;
  }

  Status Signal(std::string_view id, int signal) override {
    MutexLock hold(&mu_);
    return Tell(id, signal);
  }

  Status Stop(std::string_view id, std::chrono::nanoseconds grace) override {
    MutexLock hold(&mu_);
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError(fmt::format("no launch {}", id));
    Launch& launch = found->second;
    if (launch.info.state == LaunchState::kEnded) return Status::Ok();
    launch.stopped = true;
    const Clock::Duration when = options_.clock->Now() + grace;
    if (!launch.kill_at || when < *launch.kill_at) launch.kill_at = when;
    if (grace > std::chrono::nanoseconds(0)) RETURN_IF_ERROR(Tell(id, SIGTERM));
    Wake();
    return Status::Ok();
  }

  Result<LaunchInfo> Wait(std::string_view id, std::chrono::nanoseconds timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    MutexLock hold(&mu_);
    for (;;) {
      const auto found = launches_.find(id);
      if (found == launches_.end()) return NotFoundError(fmt::format("no launch {}", id));
      if (found->second.info.state == LaunchState::kEnded) return found->second.info;
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) {
        return DeadlineExceededError(fmt::format("launch {} still runs", id));
      }
      changed_.WaitFor(&mu_, left);
    }
  }

  Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t, std::uint64_t) override {
    ASSIGN_OR_RETURN(const LaunchInfo info, Get(id));
    return LaunchLogPage{.end = info.state == LaunchState::kEnded};
  }

  Status Forget(std::string_view id) override {
    MutexLock hold(&mu_);
    const auto found = launches_.find(id);
    if (found == launches_.end()) return Status::Ok();
    if (found->second.info.state != LaunchState::kEnded) {
      return FailedPreconditionError(fmt::format("launch {} still runs", id));
    }
    launches_.erase(found);
    return Status::Ok();
  }

  /// Both modes end everything: nothing here outlives its launcher.
  Status Close(CloseMode, std::chrono::nanoseconds) override {
    End();
    return Status::Ok();
  }

 private:
  struct Launch {
    LaunchInfo info;
    std::string order;
    bool stopped = false;
    std::optional<Clock::Duration> kill_at;
  };
  struct News {
    std::string id;
    LaunchExit exit;
  };

  Status Spawn() {
    int ends[2];
    int pipe_ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus("socketpair", errno);
    }
    OwnedFd ours(ends[0]);
    const OwnedFd theirs(ends[1]);
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
    const OwnedFd reading(pipe_ends[0]);
    OwnedFd writing(pipe_ends[1]);
    // Above the numbers that they are given in the child: no dup2 runs over another.
    const OwnedFd their_high(fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10));
    const OwnedFd reading_high(fcntl(reading.get(), F_DUPFD_CLOEXEC, 10));
    if (their_high.get() < 0 || reading_high.get() < 0) return ErrnoStatus("fcntl", errno);
    fcntl(ours.get(), F_SETFL, O_NONBLOCK);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, their_high.get(), kControlFd);
    posix_spawn_file_actions_adddup2(&actions, reading_high.get(), kOwnerFd);
    posix_spawn_file_actions_addclosefrom_np(&actions, kOwnerFd + 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    // A group of its own: Ctrl-C is for the tuner, which then tells the workers.
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    std::vector<std::string> words = options_.argv;
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) return ErrnoStatus("start " + words[0], error);
    pid_ = pid;
    socket_ = std::move(ours);
    owner_ = std::move(writing);
    input_.clear();
    ready_ = false;
    MutexLock hold(&mu_);
    spawned_ = true;
    greeting_ =
        EncodeJson(Value::Object{{"op", "hello"}, {"bytes", options_.payload.size()}}) + "\n";
    greeted_ = 0;
    output_.clear();
    for (const std::string& id : living_) Send(launches_[id].order);
    return Status::Ok();
  }

  void Send(std::string_view line) REQUIRES(mu_) {
    output_.append(line);
    output_.push_back('\n');
  }

  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
  }

  Status Tell(std::string_view id, int signal) REQUIRES(mu_) {
    const auto found = launches_.find(id);
    if (found == launches_.end()) return NotFoundError(fmt::format("no launch {}", id));
    if (found->second.info.state == LaunchState::kEnded) return Status::Ok();
    Send(EncodeJson(Value::Object{{"op", "signal"}, {"id", id}, {"signal", signal}}));
    Wake();
    return Status::Ok();
  }

  LaunchExit NotStarted() REQUIRES(mu_) {
    return {.kind = ExitKind::kNotStarted, .message = broken_};
  }

  static Clock::Duration PauseAfter(int times) {
    return std::min<Clock::Duration>(kFirstPause * (1 << std::min(times, 10)), kLastPause);
  }

  /// Nothing can be started any more. A trial that is tried again without end, because its owner
  /// wants that, is told so later and later.
  void Refuse(const std::string& id) REQUIRES(mu_) {
    const int before = refusals_[id.substr(0, id.rfind('.'))]++;
    if (before == 0) {
      news_.push_back({id, NotStarted()});
    } else {
      later_.emplace(options_.clock->Now() + PauseAfter(before), News{id, NotStarted()});
    }
  }

  /// Takes up what was put off; how long until the next of it.
  Clock::Duration TakeUpLater() REQUIRES(mu_) {
    const Clock::Duration now = options_.clock->Now();
    while (!later_.empty() && later_.begin()->first <= now) {
      news_.push_back(std::move(later_.begin()->second));
      later_.erase(later_.begin());
    }
    return later_.empty() ? kLongestWait : later_.begin()->first - now;
  }

  /// Kills what is over its time; how long until the next one is.
  Clock::Duration KillLate() REQUIRES(mu_) {
    Clock::Duration next = kLongestWait;
    for (const std::string& id : living_) {
      Launch& launch = launches_[id];
      if (!launch.kill_at) continue;
      const Clock::Duration left = *launch.kill_at - options_.clock->Now();
      if (left > Clock::Duration::zero()) {
        next = std::min(next, left);
        continue;
      }
      launch.kill_at.reset();
      Tell(id, SIGKILL).IgnoreError("it lives, as was just seen");
    }
    return next;
  }

  void Loop(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Clock::Duration wait{};
      bool writes = false;
      SpawnIfWanted();
      {
        MutexLock hold(&mu_);
        wait = std::min(KillLate(), TakeUpLater());
        const Clock::Duration left = spawn_at_ - options_.clock->Now();
        if (!spawned_ && left > Clock::Duration::zero()) wait = std::min(wait, left);
        writes = !Unsent().empty() && socket_.get() >= 0;
        if (!news_.empty()) wait = Clock::Duration::zero();
      }
      pollfd fds[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                       {.fd = socket_.get(),
                        .events = static_cast<short>(POLLIN | (writes ? POLLOUT : 0)),
                        .revents = 0}};
      const auto millis = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
      poll(fds, 2, static_cast<int>(millis));
      if (stop.stop_requested()) return;
      if ((fds[0].revents & POLLIN) != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto drained = read(wake_.get(), &count, sizeof count);
      }
      if ((fds[1].revents & POLLOUT) != 0) Flush();
      if ((fds[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !Receive()) ZygoteDied();
      Announce();
    }
  }

  /// Without being asked to begin at once: the first launch has the zygote started.
  void SpawnIfWanted() {
    {
      MutexLock hold(&mu_);
      if (spawned_ || !broken_.empty() || (living_.empty() && !at_once_)) return;
      if (options_.clock->Now() < spawn_at_) return;
      at_once_ = false;
    }
    if (const Status spawned = Spawn(); !spawned.ok()) {
      MutexLock hold(&mu_);
      Break(spawned.ToString());
    }
  }

  /// What the zygote is to be sent next: the greeting, the payload, then orders. The payload may be
  /// large (data that is bound to a trainable): it is sent from where it is, and what is left of it
  /// is not moved for each piece.
  std::string_view Unsent() const REQUIRES(mu_) {
    const std::size_t before = greeting_.size();
    if (greeted_ < before) return std::string_view(greeting_).substr(greeted_);
    if (greeted_ < before + options_.payload.size()) {
      return std::string_view(options_.payload).substr(greeted_ - before);
    }
    return output_;
  }

  void Flush() {
    MutexLock hold(&mu_);
    const std::string_view next = Unsent();
    const ssize_t sent = send(socket_.get(), next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    if (next.data() == output_.data()) {
      output_.erase(0, static_cast<std::size_t>(sent));
    } else {
      greeted_ += static_cast<std::size_t>(sent);
    }
  }

  /// False when the other end is gone.
  bool Receive() {
    char buffer[1 << 16];
    for (;;) {
      const ssize_t got = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (got < 0) break;
      input_.append(buffer, static_cast<std::size_t>(got));
    }
    for (;;) {
      const std::size_t end = input_.find('\n');
      if (end == std::string::npos) return true;
      const auto message = DecodeJson(std::string_view(input_).substr(0, end));
      input_.erase(0, end + 1);
      if (message.ok()) Handle(*message);
    }
  }

  void Handle(const Value& message) {
    const std::string op = TextOf(message, "op");
    const std::string id = TextOf(message, "id");
    MutexLock hold(&mu_);
    if (op == "ready") {
      ready_ = true;
    } else if (op == "failed") {
      Break(TextOf(message, "error"));
    } else if (op == "started") {
      const auto found = launches_.find(id);
      if (found == launches_.end()) return;
      found->second.info.started = options_.clock->WallNanos();
      found->second.info.pids = {IntOf(message, "pid")};
      started_.push_back(found->second.info);
    } else if (op == "ended") {
      deaths_ = 0;
      if (message.Find("stays") != nullptr) workers_stay_ = true;
      LaunchExit exit{.message = TextOf(message, "message")};
      exit.signal = static_cast<int>(IntOf(message, "signal"));
      exit.code = static_cast<int>(IntOf(message, "code"));
      exit.kind = exit.signal != 0 ? ExitKind::kSignaled : ExitKind::kExited;
      if (exit.kind == ExitKind::kSignaled && exit.message.empty()) {
        exit.message = fmt::format("the process died of signal {} ({})", exit.signal,
                                   sigdescr_np(exit.signal));
      } else if (exit.code != 0 && exit.message.empty()) {
        exit.message = fmt::format("the process ended with code {}", exit.code);
      }
      news_.push_back({id, std::move(exit)});
    }
  }

  void Break(std::string why) REQUIRES(mu_) {
    broken_ = std::move(why);
    for (const std::string& id : living_) news_.push_back({id, NotStarted()});
  }

  void ZygoteDied() {
    const bool killed = Reap(kEndPatience);
    socket_ = OwnedFd();
    owner_ = OwnedFd();
    bool again = false;
    {
      MutexLock hold(&mu_);
      greeting_.clear();
      greeted_ = options_.payload.size();
      output_.clear();
      spawned_ = false;
      if (!broken_.empty()) return;
      // Its workers ended with it. Whoever wants them again submits them again.
      for (const std::string& id : living_) {
        news_.push_back({id,
                         {.kind = ExitKind::kLost,
                          .stopped = true,
                          .message = "the process that workers are forked from was killed"}});
      }
      ++deaths_;
      again = killed ? deaths_ <= kMaxKills : ready_ && deaths_ <= kMaxDeaths;
      if (killed) spawn_at_ = options_.clock->Now() + PauseAfter(deaths_ - 1);
      if (!again) {
        Break(ready_ || killed
                  ? "the process that workers are forked from dies again and again"
                  : "the process that workers are forked from ended before it had begun");
      }
    }
    Announce();  // before a new one is told of living launches
    if (again) LogWarning("tuner: the process that workers are forked from died");
  }

  /// Tells the listener, without the lock.
  void Announce() {
    for (;;) {
      std::vector<LaunchInfo> told;
      {
        MutexLock hold(&mu_);
        told.swap(started_);
        for (News& item : news_) {
          const auto found = launches_.find(item.id);
          if (found == launches_.end()) continue;
          Launch& launch = found->second;
          if (launch.info.state == LaunchState::kEnded) continue;
          item.exit.stopped |= launch.stopped;
          item.exit.time = options_.clock->WallNanos();
          launch.info.state = LaunchState::kEnded;
          launch.info.exit = std::move(item.exit);
          launch.order.clear();
          living_.erase(item.id);
          told.push_back(launch.info);
        }
        news_.clear();
        changed_.NotifyAll();
      }
      if (told.empty()) return;
      for (const LaunchInfo& info : told) {
        if (options_.listener) options_.listener(info);
      }
    }
  }

  /// True: it was killed, by somebody else.
  bool Reap(std::chrono::nanoseconds patience) {
    if (pid_ <= 0) return false;
    const auto until = std::chrono::steady_clock::now() + patience;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= until) {
        kill(pid_, SIGKILL);
        waitpid(pid_, &status, 0);
        status = 0;
        break;
      }
      // The exit of a child that has closed its socket: there is nothing else to wait on.
      poll(nullptr, 0, 1);
    }
    pid_ = 0;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  void End() {
    {
      MutexLock hold(&mu_);
      if (closed_) return;
      closed_ = true;
    }
    thread_.request_stop();
    Wake();
    if (thread_.joinable()) thread_.join();
    bool stays = false;
    {
      MutexLock hold(&mu_);
      stays = workers_stay_;
      // It has nobody to wait for.
      if (pid_ > 0 && living_.empty() && !stays) kill(pid_, SIGKILL);
    }
    socket_ = OwnedFd();            // the zygote ends its workers, waits for them, and exits
    if (stays) Reap(kEndPatience);  // workers that wait for a run clean up
    owner_ = OwnedFd();
    Reap(kEndPatience);
    MutexLock hold(&mu_);
    for (const std::string& id : living_) {
      LaunchInfo& info = launches_[id].info;
      info.state = LaunchState::kEnded;
      info.exit = LaunchExit{.kind = ExitKind::kLost, .stopped = true};
    }
    living_.clear();
    changed_.NotifyAll();
  }

  const PoolLauncherOptions options_;
  OwnedFd wake_;

  // Of the launcher's thread (and of Open and End, before and after it).
  OwnedFd socket_;
  OwnedFd owner_;  // the end that ties the zygote and all workers to this process
  pid_t pid_ = 0;
  std::string input_;
  bool ready_ = false;

  Mutex mu_;
  CondVar changed_;
  bool closed_ GUARDED_BY(mu_) = false;
  std::string broken_ GUARDED_BY(mu_);  // why nothing can be started
  int deaths_ GUARDED_BY(mu_) = 0;
  Clock::Duration spawn_at_ GUARDED_BY(mu_){0};                 // no new zygote before
  std::map<std::string, int> refusals_ GUARDED_BY(mu_);         // by trial, since it is broken
  std::multimap<Clock::Duration, News> later_ GUARDED_BY(mu_);  // told when it is time
  bool spawned_ GUARDED_BY(mu_) = false;
  std::string greeting_ GUARDED_BY(mu_);
  std::size_t greeted_ GUARDED_BY(mu_) = 0;  // bytes of greeting_ and of the payload that were sent
  std::string output_ GUARDED_BY(mu_);       // orders, after that
  bool at_once_ GUARDED_BY(mu_) = false;     // a zygote is wanted before there is a launch
  std::map<std::string, Launch, std::less<>> launches_ GUARDED_BY(mu_);
  std::set<std::string> living_ GUARDED_BY(mu_);  // those that have not ended: few of many
  std::vector<LaunchInfo> started_ GUARDED_BY(mu_);
  std::vector<News> news_ GUARDED_BY(mu_);
  bool workers_stay_ GUARDED_BY(mu_) = false;  // after their launches ended: for others

  std::jthread thread_;
};

}  // namespace

Status PoolLauncherOptions::Validate() const {
  if (argv.empty()) return InvalidArgumentError("pool launcher: argv is empty");
  if (clock == nullptr) return InvalidArgumentError("pool launcher: there is no clock");
  return Status::Ok();
}

Result<std::unique_ptr<Launcher>> OpenPoolLauncher(PoolLauncherOptions options) {
  RETURN_IF_ERROR(options.Validate());
  auto launcher = std::make_unique<PoolLauncher>(std::move(options));
  RETURN_IF_ERROR(launcher->Open());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn::tune

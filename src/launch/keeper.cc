#include "launch/keeper.h"

// The order of things, and why:
//   1. Lock, for as long as this process lives: a launcher that opens the directory later knows by
//      the lock, and not by a pid, whether anybody keeps the launch.
//   2. keeper.json, create-only, before any process: if it is there already, another shim was here
//      and died, and the launch may have run. It is not started a second time.
//   3. The ranks; running.json with their pids.
//   4. Output to the log, commands from the control pipe, ends of ranks. As the reaper of orphans
//      this process is the parent of whatever a rank leaves behind, so that nothing escapes.
//   5. When no rank lives: what they left behind is killed, the rest of the output is written,
//      and exit.json is published, durably. After that nothing of the launch is left. A disk that
//      is full is waited for: until then the launch has not ended, for all that anybody can know.
// Killed between any two of these, the ranks die with this process (PR_SET_PDEATHSIG), the lock is
// free, and the launcher finds what is left by its environment and says that the launch was lost.

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "launch/launch_directory.h"
#include "launch/log_line.h"
#include "launch/rank_process.h"

extern char** environ;

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

/// How long output is still waited for when every process is dead: somebody outside may hold a
/// pipe.
constexpr Nanos kDrainTime = std::chrono::seconds(1);
constexpr std::size_t kReadBytes = 64u << 10;
constexpr Nanos kFirstRetry = std::chrono::milliseconds(50);
constexpr Nanos kLastRetry = std::chrono::seconds(2);
/// How often a shim that no pipe reaches looks for commands and for its owner.
constexpr Nanos kRemoteLook = std::chrono::milliseconds(100);
/// How long after a rank's failure the scheduler's signal is still waited for.
constexpr Nanos kWarningTime = std::chrono::milliseconds(300);
/// An owner that was silent so long is dead. A launcher beats ten times as often.
constexpr Nanos kOwnerPatience = std::chrono::seconds(5);

/// The log file, up to its limit.
class LogWriter {
 public:
  LogWriter(OwnedFd fd, std::uint64_t limit, Clock* clock)
      : fd_(std::move(fd)), limit_(limit), clock_(clock) {}

  void Add(int rank, bool from_stderr, std::string_view text, bool unfinished) {
    LaunchLogLine line;
    line.time = clock_->WallNanos();
    line.rank = rank;
    line.from_stderr = from_stderr;
    line.level = GuessLevel(text);
    line.unfinished = unfinished;
    line.text = text;
    const std::size_t before = buffer_.size();
    AppendLogLine(line, &buffer_);
    if (written_ + buffer_.size() <= limit_) return;
    buffer_.resize(before);
    ++dropped_;
  }

  /// A disk that is full must not stop the ranks: lines that cannot be written are counted.
  void Flush() {
    std::string_view rest(buffer_);
    while (!rest.empty()) {
      const ssize_t wrote = write(fd_.get(), rest.data(), rest.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        dropped_ += std::count(rest.begin(), rest.end(), '\n');
        break;
      }
      written_ += static_cast<std::uint64_t>(wrote);
      rest.remove_prefix(static_cast<std::size_t>(wrote));
    }
    buffer_.clear();
  }

  void Finish() {
    if (dropped_ > 0) {
      limit_ = ~std::uint64_t{0};
      Add(-1, true, fmt::format("WARNING {} lines were dropped: the log is full", dropped_), false);
    }
    Flush();
    fdatasync(fd_.get());
  }

 private:
  OwnedFd fd_;
  std::uint64_t limit_;
  Clock* clock_;
  std::string buffer_;
  std::uint64_t written_ = 0;
  std::int64_t dropped_ = 0;
};

class Keeper {
 public:
  Keeper(const KeeperOptions& options, LaunchRecord launch, OwnedFd control, OwnedFd signals,
         OwnedFd log)
      : directory_(options.directory),
        launch_(std::move(launch)),
        clock_(options.clock),
        owner_(options.owner),
        remote_(options.remote),
        control_(std::move(control)),
        signals_(std::move(signals)),
        log_(std::move(log), launch_.limits.log_bytes, options.clock) {}

  LaunchExit Run() {
    const Status started = StartAll();
    if (!started.ok()) {
      KillDescendants();
      Drain();
      exit_.kind = ExitKind::kNotStarted;
      exit_.message = started.message();
    } else {
      while (AnyLives()) Turn();
      KillDescendants();
      Drain();
    }
    if (remote_ && exit_.rank >= 0) AwaitWarning();
    log_.Finish();
    exit_.stopped = stopped_;
    exit_.time = clock_->WallNanos();
    return exit_;
  }

 private:
  Status StartAll() {
    if (remote_) {  // somebody may have thought better of it while the job waited
      commands_ += directory_.ReadCommands(&commands_read_);
      ObeyCommands();
      if (stopped_) return CancelledError("stopped before it was started");
    }
    for (int rank = 0; rank < launch_.processes; ++rank) {
      const std::map<std::string, std::string> variables = {
          {"CAIRN_LAUNCH_ID", launch_.id},
          {kLaunchKeyVariable, launch_.key},
          {"CAIRN_RANK", std::to_string(rank)},
          {"CAIRN_LOCAL_RANK", std::to_string(rank)},
          {"CAIRN_WORLD_SIZE", std::to_string(launch_.processes)},
          {"CAIRN_LOCAL_SIZE", std::to_string(launch_.processes)},
          {"CAIRN_SLOTS", launch_.slots},
          {"CAIRN_CHIEF", "file:" + directory_.chief_path()},
      };
      ASSIGN_OR_RETURN(RankProcess process, StartRank(launch_, rank, variables));
      ranks_.push_back(std::move(process));
    }
    begun_ = clock_->Now();
    looked_ = heard_ = begun_;
    RunningRecord running;
    running.time = clock_->WallNanos();
    for (const RankProcess& rank : ranks_) running.pids.push_back(rank.pid);
    RETURN_IF_ERROR(directory_.Publish(running));
    if (owner_ >= 0 && send(owner_, "r", 1, MSG_NOSIGNAL) < 0 && errno != EPIPE) {
      log_.Add(-1, true, "WARNING the launcher could not be told that the launch runs", false);
    }
    return Status::Ok();
  }

  bool AnyLives() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& r) { return !r.ended; });
  }

  /// Waits for whatever happens next and deals with it.
  void Turn() {
    std::vector<pollfd> waits = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = control_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = owner_, .events = 0, .revents = 0}};
    AddStreams(&waits);
    poll(waits.data(), waits.size(), PollTimeout());
    ReadStreams();
    if (waits[0].revents != 0) ReadSignals();
    if (waits[1].revents != 0) ReadControl();
    if (waits[2].revents != 0) OwnerIsGone();
    if (remote_) LookAround();
    CheckTimes();
    log_.Flush();
  }

  void AddStreams(std::vector<pollfd>* waits) const {
    for (const RankProcess& rank : ranks_) {
      for (const RankStream* stream : {&rank.out, &rank.err}) {
        if (!stream->fd.valid()) continue;
        waits->push_back({.fd = stream->fd.get(), .events = POLLIN, .revents = 0});
      }
    }
  }

  /// Milliseconds to the next thing that is due; -1: nothing is.
  int PollTimeout() const {
    std::optional<Nanos> due = kill_at_;
    if (remote_) due = std::min(due.value_or(looked_ + kRemoteLook), looked_ + kRemoteLook);
    if (launch_.limits.wall_time.count() > 0 && !over_time_) {
      const Nanos limit = begun_ + launch_.limits.wall_time;
      due = due.has_value() ? std::min(*due, limit) : limit;
    }
    if (!due.has_value()) return -1;
    const Nanos left = std::max(*due - clock_->Now(), Nanos(0));
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return static_cast<int>(std::min<std::int64_t>(millis, 60'000));
  }

  /// Reads once from each stream that has something, so that none starves the others. True when any
  /// had.
  bool ReadStreams() {
    bool any = false;
    for (RankProcess& rank : ranks_) {
      for (RankStream* stream : {&rank.out, &rank.err}) {
        if (!stream->fd.valid()) continue;
        char block[kReadBytes];
        const ssize_t got = read(stream->fd.get(), block, sizeof(block));
        const auto sink = [&](std::string_view text, bool unfinished) {
          log_.Add(rank.rank, stream->is_stderr, text, unfinished);
        };
        if (got > 0) {
          stream->cutter.Feed(std::string_view(block, static_cast<std::size_t>(got)), sink);
          any = true;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
          stream->cutter.Finish(sink);
          stream->fd.Reset();
        }
      }
    }
    return any;
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo == SIGCHLD) continue;  // below: several may have been merged into one
      if (remote_) {
        Warned(static_cast<int>(info.ssi_signo));
      } else {
        BeginStop(Nanos(launch_.grace));  // SIGTERM: somebody stops the shim itself
      }
    }
    Reap();
  }

  void Reap() {
    for (;;) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) return;
      for (RankProcess& rank : ranks_) {
        if (rank.pid != pid || rank.ended) continue;
        rank.ended = true;
        rank.status = status;
        NoteEnd(rank);
      }
    }
  }

  /// The first rank that failed says how the launch ended, and the others are stopped: they would
  /// wait for it.
  void NoteEnd(const RankProcess& rank) {
    const bool failed = WIFSIGNALED(rank.status) || WEXITSTATUS(rank.status) != 0;
    if (!failed || exit_.rank >= 0) return;
    exit_.rank = rank.rank;
    if (WIFSIGNALED(rank.status)) {
      exit_.signal = WTERMSIG(rank.status);
      if (!over_time_) exit_.kind = ExitKind::kSignaled;
      exit_.message = fmt::format("rank {} died of signal {} ({})", rank.rank, exit_.signal,
                                  strsignal(exit_.signal));
    } else {
      exit_.code = WEXITSTATUS(rank.status);
      exit_.message = fmt::format("rank {} ended with code {}", rank.rank, exit_.code);
    }
    if (AnyLives()) BeginStop(Nanos(launch_.grace));
  }

  /// The scheduler takes the machine back: its own time for that counts, not the launch's grace.
  /// Several warnings (of the time limit, then of the end) are one.
  void Warned(int signal) {
    stopped_ = true;
    if (warned_) return;
    warned_ = true;
    log_.Add(-1, true, fmt::format("WARNING the scheduler asks it to end ({})", strsignal(signal)),
             false);
    SignalRanks(SIGTERM);
  }

  /// A scheduler signals all processes of a job, one after the other: a rank may have died of that
  /// before this process hears of it.
  void AwaitWarning() {
    pollfd wait = {.fd = signals_.get(), .events = POLLIN, .revents = 0};
    const Nanos deadline = clock_->Now() + kWarningTime;
    while (!stopped_ && clock_->Now() < deadline && poll(&wait, 1, 50) >= 0) {
      signalfd_siginfo info;
      while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
        if (info.ssi_signo != SIGCHLD) Warned(static_cast<int>(info.ssi_signo));
      }
    }
  }

  void LookAround() {
    const Nanos now = clock_->Now();
    if (now < looked_ + kRemoteLook) return;
    looked_ = now;
    commands_ += directory_.ReadCommands(&commands_read_);
    ObeyCommands();
    if (launch_.outlive_owner || stopped_) return;
    // Whatever it says, it is another beat than the last one; no clock is compared.
    if (std::string beat = directory_.ReadOwnerBeat(); beat != beat_) {
      beat_ = std::move(beat);
      heard_ = now;
    }
    if (now >= heard_ + kOwnerPatience) OwnerIsGone();
  }

  void ReadControl() {
    char block[512];
    for (;;) {
      const ssize_t got = read(control_.get(), block, sizeof(block));
      if (got <= 0) break;
      commands_.append(block, static_cast<std::size_t>(got));
    }
    ObeyCommands();
  }

  void ObeyCommands() {
    for (std::size_t newline; (newline = commands_.find('\n')) != std::string::npos;) {
      const auto command = ParseCommand(std::string_view(commands_).substr(0, newline));
      commands_.erase(0, newline + 1);
      if (!command.has_value()) continue;  // of a later version
      if (command->kind == ControlCommand::Kind::kStop) {
        stopped_ = true;
        BeginStop(Nanos(command->grace));
      } else {
        SignalRanks(command->signal);
      }
    }
  }

  void OwnerIsGone() {
    owner_ = -1;
    if (launch_.outlive_owner) return;
    stopped_ = true;
    BeginStop(Nanos(launch_.grace));
  }

  void SignalRanks(int signal) {
    // A rank that was not reaped keeps its pid: nobody else can have it.
    for (const RankProcess& rank : ranks_) {
      if (!rank.ended) kill(rank.pid, signal);
    }
  }

  void BeginStop(Nanos grace) {
    // An absurd grace must not overflow the clock.
    const Nanos at = clock_->Now() + std::min<Nanos>(grace, std::chrono::hours(24 * 365));
    if (!kill_at_.has_value() && grace.count() > 0) SignalRanks(SIGTERM);
    kill_at_ = kill_at_.has_value() ? std::min(*kill_at_, at) : at;
    CheckTimes();
  }

  void CheckTimes() {
    const Nanos now = clock_->Now();
    const Nanos limit = launch_.limits.wall_time;
    if (limit.count() > 0 && !over_time_ && now >= begun_ + limit) {
      over_time_ = true;
      exit_.kind = ExitKind::kTimeLimit;
      log_.Add(-1, true, "WARNING stopped: its time is over", false);
      BeginStop(Nanos(launch_.grace));
    }
    if (kill_at_.has_value() && now >= *kill_at_) {
      SignalRanks(SIGKILL);
      kill_at_ = now + std::chrono::seconds(1);
    }
  }

  /// Until nothing is left of all that the ranks ever started: orphans become children of this
  /// process, and children keep their pids until they are reaped here.
  void KillDescendants() {
    for (;;) {
      Reap();
      siginfo_t any = {};
      if (waitid(P_ALL, 0, &any, WEXITED | WNOWAIT | WNOHANG) != 0 && errno == ECHILD) return;
      for (const pid_t child : ChildrenOf(getpid())) kill(child, SIGKILL);
      // Their ends, or the arrival of what they leave behind, wake this up.
      pollfd wait = {.fd = signals_.get(), .events = POLLIN, .revents = 0};
      ReadStreams();
      log_.Flush();
      poll(&wait, 1, 20);
      signalfd_siginfo info;
      while (read(signals_.get(), &info, sizeof(info)) > 0) {
        if (remote_ && info.ssi_signo != SIGCHLD) Warned(static_cast<int>(info.ssi_signo));
      }
    }
  }

  void Drain() {
    const Nanos deadline = clock_->Now() + kDrainTime;
    for (;;) {
      while (ReadStreams()) log_.Flush();
      std::vector<pollfd> waits;
      AddStreams(&waits);
      if (waits.empty() || clock_->Now() >= deadline) break;
      poll(waits.data(), waits.size(), 50);
    }
    for (RankProcess& rank : ranks_) {
      for (RankStream* stream : {&rank.out, &rank.err}) {
        stream->cutter.Finish([&](std::string_view text, bool unfinished) {
          log_.Add(rank.rank, stream->is_stderr, text, unfinished);
        });
      }
    }
  }

  const LaunchDirectory directory_;
  const LaunchRecord launch_;
  Clock* const clock_;
  int owner_;
  const bool remote_;
  OwnedFd control_;
  OwnedFd signals_;
  LogWriter log_;
  std::vector<RankProcess> ranks_;
  std::string commands_;
  Nanos begun_{0};
  std::optional<Nanos> kill_at_;
  bool over_time_ = false;
  bool stopped_ = false;
  LaunchExit exit_;

  // Of a remote one.
  bool warned_ = false;
  std::uint64_t commands_read_ = 0;
  std::string beat_;
  Nanos looked_{0};
  Nanos heard_{0};
};

Result<OwnedFd> ListenForSignals(bool remote) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigaddset(&watched, SIGTERM);
  if (remote) {
    sigaddset(&watched, SIGUSR1);
    sigaddset(&watched, SIGUSR2);
  }
  // A terminal's signals are for the launcher, which decides what becomes of its launches.
  for (const int ignored : {SIGINT, SIGHUP, SIGPIPE, SIGQUIT}) std::signal(ignored, SIG_IGN);
  if (sigprocmask(SIG_SETMASK, &watched, nullptr) != 0) return ErrnoStatus("sigprocmask", errno);
  OwnedFd fd(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus("signalfd", errno);
  return fd;
}

/// The environment that the launcher asked for becomes this process's, which ranks inherit; but
/// what the scheduler says about its job, and which devices it may use, is the scheduler's to say.
void TakeUp(const std::vector<std::string>& entries) {
  constexpr std::string_view kDevices[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                           "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"};
  const auto of_scheduler = [&](std::string_view entry) {
    const std::string_view name = entry.substr(0, entry.find('='));
    return name.starts_with("SLURM") || std::ranges::find(kDevices, name) != std::end(kDevices);
  };
  std::map<std::string, std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!of_scheduler(text) || text.find('=') == std::string_view::npos) continue;
    kept.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  clearenv();
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    // A launcher that is in a job itself has that job's variables: not ours.
    if (equals == std::string::npos) continue;
    if (entry.starts_with("SLURM_") && !entry.starts_with("SLURM_CONF=")) continue;
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  for (const auto& [name, value] : kept) setenv(name.c_str(), value.c_str(), 1);
}

/// Until it is recorded, or nobody is left to record it for.
Status PublishExit(const LaunchDirectory& directory, const LaunchExit& exit, Clock* clock) {
  for (Nanos pause = kFirstRetry;; pause = std::min(pause * 2, kLastRetry)) {
    Status published = directory.Publish(exit);
    if (published.ok() || published.Is(Code::kAlreadyExists) || published.Is(Code::kNotFound)) {
      return published;
    }
    clock->Sleep(pause);
  }
}

}  // namespace

Status KeepLaunch(const KeeperOptions& options) {
  const LaunchDirectory directory(options.directory);
  OwnedFd lock;
  // File systems of clusters need not have locks; there the scheduler knows whether this lives.
  if (!options.remote) {
    ASSIGN_OR_RETURN(lock, directory.Lock(options.clock));
  }
  ASSIGN_OR_RETURN(LaunchRecord launch, directory.ReadLaunch());
  if (options.remote && launch.key != options.key) {
    return AbortedError("launch " + launch.id + " is another one by now");
  }
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoStatus("prctl", errno);
  ASSIGN_OR_RETURN(OwnedFd signals, ListenForSignals(options.remote));
  OwnedFd control;
  if (!options.remote) {
    ASSIGN_OR_RETURN(control, directory.OpenControl());
  }
  OwnedFd log(open(directory.log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus("open " + directory.log_path(), errno);
  ASSIGN_OR_RETURN(const KeeperRecord self, IdentityOf(getpid()));
  const Status claimed = directory.Publish(self);
  if (claimed.Is(Code::kAlreadyExists)) return AbortedError("launch " + launch.id + " ran before");
  RETURN_IF_ERROR(claimed);
  if (options.remote) {
    ASSIGN_OR_RETURN(const std::vector<std::string> entries, directory.TakeEnvironment());
    TakeUp(entries);
  }
  Keeper keeper(options, std::move(launch), std::move(control), std::move(signals), std::move(log));
  return PublishExit(directory, keeper.Run(), options.clock);
}

}  // namespace cairn

#include "launch/rank_keeper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "launch/launch_directory.h"
#include "launch/log_writer.h"
#include "launch/longest_wait.h"
#include "launch/node_links.h"
#include "launch/rank_process.h"
#include "launch/rendezvous.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

/// How long output is still waited for when every process is dead: somebody outside may hold a
/// pipe.
constexpr Nanos kDrainTime = std::chrono::seconds(1);
constexpr std::size_t kReadBytes = 64u << 10;
/// How often a shim that no pipe reaches looks for commands and for its owner.
constexpr Nanos kRemoteLook = std::chrono::milliseconds(100);
/// How long after a rank's failure the scheduler's signal is still waited for.
constexpr Nanos kWarningTime = std::chrono::milliseconds(300);
/// How often a shim says that it lives, to a launcher that asks for it.
constexpr Nanos kPulse = std::chrono::seconds(1);
/// An owner that was silent so long is dead. A launcher beats ten times as often.
constexpr Nanos kOwnerPatience = std::chrono::seconds(5);
/// After the end of a stop's grace: shims of other nodes that have not ended by then are killed.
constexpr Nanos kNodePatience = std::chrono::seconds(5);
/// How a launch ended that reached its wall time.
constexpr std::string_view kOverTime = "its time was over";
/// A starter finds out meanwhile whether a node that it lost is gone.
constexpr Nanos kStarterPatience = std::chrono::seconds(45);

class Keeper {
 public:
  Keeper(const KeeperOptions& options, LaunchRecord launch, KeeperChannels channels)
      : directory_(options.directory),
        launch_(std::move(launch)),
        clock_(options.clock),
        owner_(options.owner),
        remote_(options.remote),
        linked_(options.linked),
        node_(options.node),
        each_(static_cast<int>(launch_.processes / launch_.nodes)),
        local_(linked_ || launch_.starter.empty() ? each_ : 0),
        srun_(std::move(channels.srun)),
        control_(std::move(channels.control)),
        signals_(std::move(channels.signals)),
        log_(std::move(channels.log), launch_.limits.log_bytes, options.clock) {}

  LaunchExit Run() {
    const Status started = StartAll();
    if (!started.ok()) {
      KillDescendants();
      Drain();
      exit_.kind = ExitKind::kNotStarted;
      exit_.message = started.message();
      if (linked_) log_.AddMessage(NodeFailed(exit_.message));
    } else {
      while (AnyLives()) Turn();
      KillDescendants();
      Drain();
    }
    if (remote_ && !linked_ && exit_.rank >= 0) AwaitWarning();
    if (linked_ && started.ok()) log_.AddMessage(kNodeDone);
    log_.Finish();
    exit_.stopped = stopped_;
    exit_.time = clock_->WallNanos();
    return exit_;
  }

 private:
  Status StartAll() {
    if (remote_ && !linked_) {  // somebody may have thought better of it while the job waited
      commands_ += directory_.ReadCommands(&commands_read_);
      ObeyCommands();
      if (stopped_) return CancelledError("stopped before it was started");
    }
    if (launch_.nodes > 1 && !linked_ && local_ > 0) RETURN_IF_ERROR(OfferRendezvous());
    for (int local = 0; local < local_; ++local) {
      const int rank = node_ * each_ + local;
      const std::map<std::string, std::string> variables = {
          {"CAIRN_LAUNCH_ID", launch_.id},
          {kLaunchKeyVariable, launch_.key},
          {"CAIRN_RANK", std::to_string(rank)},
          {"CAIRN_LOCAL_RANK", std::to_string(local)},
          {"CAIRN_WORLD_SIZE", std::to_string(launch_.processes)},
          {"CAIRN_LOCAL_SIZE", std::to_string(each_)},
          {"CAIRN_NODE", std::to_string(node_)},
          {"CAIRN_NODES", std::to_string(launch_.nodes)},
          {"CAIRN_SLOTS", launch_.slots},
          {"CAIRN_CHIEF", "file:" + directory_.chief_path()},
      };
      ASSIGN_OR_RETURN(RankProcess process, StartRank(launch_, rank, variables));
      ranks_.push_back(std::move(process));
    }
    begun_ = clock_->Now();
    looked_ = heard_ = begun_;
    if (linked_) {
      log_.AddMessage(kNodeRunning);
      log_.Flush();
      return Status::Ok();
    }
    if (launch_.nodes == 1) return TellThatItRuns();
    std::error_code error;
    const auto shim = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return UnavailableError("cannot find this program: " + error.message());
    return links_.Start(srun_, shim.string(), directory_, launch_);
  }

  /// Every rank was started.
  Status TellThatItRuns() {
    told_ = true;
    RunningRecord running;
    running.time = clock_->WallNanos();
    for (const RankProcess& rank : ranks_) running.pids.push_back(rank.pid);
    running.pids.resize(static_cast<std::size_t>(launch_.processes));  // 0: on other nodes
    RETURN_IF_ERROR(directory_.Publish(running));
    if (owner_ >= 0 && send(owner_, "r", 1, MSG_NOSIGNAL) < 0 && errno != EPIPE) {
      log_.Add(-1, true, "WARNING the launcher could not be told that the launch runs", false);
    }
    return Status::Ok();
  }

  /// Where ranks of all nodes meet, in the environment of all of them. A free port: somebody may
  /// take it before rank 0 does, who then fails and is started again.
  static Status OfferRendezvous() {
    ASSIGN_OR_RETURN(const Rendezvous place, FreeRendezvous());
    setenv("MASTER_ADDR", place.host.c_str(), 0);
    setenv("MASTER_PORT", std::to_string(place.port).c_str(), 0);
    return Status::Ok();
  }

  /// The time of the launch counts.
  bool Runs() const { return local_ > 0 || told_; }
  bool AnyLives() const { return AnyRankLives() || links_.any_lives(); }
  bool AnyRankLives() const {
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
    if (links_.any()) FollowNodes();
    if (remote_ && !linked_) LookAround();
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
    links_.AddTo(waits);
  }

  NodeLinks::Events NodeEvents() {
    return {.log = [this](std::string_view line) { log_.AddWhole(line); },
            .rank_ended = [this](int rank, int status) { NoteEnd(rank, status); },
            .failed =
                [this](std::string why) {
                  if (exit_.rank >= 0 || exit_.kind != ExitKind::kExited) return;
                  exit_.kind = ExitKind::kNotStarted;
                  exit_.message = std::move(why);
                  BeginStop(Nanos(0));
                },
            .lost =
                [this](int rank, std::string why) {
                  if (exit_.rank >= 0 || exit_.kind != ExitKind::kExited) return;
                  exit_.kind = ExitKind::kLost;
                  exit_.rank = rank;
                  exit_.message = std::move(why);
                  if (AnyLives()) BeginStop(Nanos(launch_.grace));
                },
            .vanished = [this] { stopped_ = true; }};
  }

  void FollowNodes() {
    links_.Read(NodeEvents());
    if (told_ || !links_.all_run()) return;
    if (local_ == 0) begun_ = clock_->Now();  // until now nodes were waited for
    if (const Status told = TellThatItRuns(); !told.ok()) {
      log_.Add(-1, true, "WARNING " + told.ToString(), false);
    }
  }

  /// Milliseconds to the next thing that is due; -1: nothing is.
  int PollTimeout() const {
    std::optional<Nanos> due = kill_at_;
    if (remote_ && !linked_)
      due = std::min(due.value_or(looked_ + kRemoteLook), looked_ + kRemoteLook);
    if (launch_.limits.wall_time.count() > 0 && !over_time_ && Runs()) {
      due = due.has_value() ? std::min(*due, TimeIsOver()) : TimeIsOver();
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
      if (links_.any() && links_.Reaped(pid, status, NodeEvents())) continue;
      for (RankProcess& rank : ranks_) {
        if (rank.pid != pid || rank.ended) continue;
        rank.ended = true;
        rank.status = status;
        NoteEnd(rank.rank, status);
      }
    }
  }

  /// The first rank that failed says how the launch ended, and the others are stopped: they would
  /// wait for it.
  void NoteEnd(int rank, int status) {
    if (linked_) log_.AddMessage(NodeRankEnded(rank, status));
    const bool failed = WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
    if (!failed || exit_.rank >= 0) return;
    exit_.rank = rank;
    if (WIFSIGNALED(status)) {
      exit_.signal = WTERMSIG(status);
      if (!over_time_) exit_.kind = ExitKind::kSignaled;
      exit_.message = fmt::format("rank {} died of signal {} ({})", rank, exit_.signal,
                                  strsignal(exit_.signal));
    } else {
      exit_.code = WEXITSTATUS(status);
      exit_.message = fmt::format("rank {} ended with code {}", rank, exit_.code);
    }
    if (over_time_) exit_.message = fmt::format("{}; {}", kOverTime, exit_.message);
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
    if (now >= pulsed_ + kPulse) {
      pulsed_ = now;
      directory_.Pulse(++pulses_);
    }
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
      if (got == 0 && linked_) {  // the shim that keeps the launch is gone
        control_.Reset();
        BeginStop(Nanos(0));
      }
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
    SignalHere(signal);
    links_.Tell(
        EncodeCommand({.kind = ControlCommand::Kind::kSignal, .signal = signal, .grace = 0}));
  }

  void SignalHere(int signal) {
    // A rank that was not reaped keeps its pid: nobody else can have it.
    for (const RankProcess& rank : ranks_) {
      if (!rank.ended) kill(rank.pid, signal);
    }
  }

  void BeginStop(Nanos grace) {
    const Nanos at = clock_->Now() + std::min(grace, kLongestLaunchWait);
    if (!kill_at_.has_value() && grace.count() > 0) SignalHere(SIGTERM);
    links_.Tell(
        EncodeCommand({.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = grace.count()}));
    const Nanos last = at + (launch_.starter.empty() ? kNodePatience : kStarterPatience);
    kill_nodes_at_ = std::min(kill_nodes_at_.value_or(last), last);
    kill_at_ = kill_at_.has_value() ? std::min(*kill_at_, at) : at;
    CheckTimes();
  }

  /// Of a launch with a limit.
  Nanos TimeIsOver() const {
    return begun_ + std::min(launch_.limits.wall_time, kLongestLaunchWait);
  }

  void CheckTimes() {
    const Nanos now = clock_->Now();
    if (launch_.limits.wall_time.count() > 0 && !over_time_ && Runs() && now >= TimeIsOver()) {
      over_time_ = true;
      exit_.kind = ExitKind::kTimeLimit;
      exit_.message = kOverTime;
      log_.Add(-1, true, "WARNING stopped: its time is over", false);
      BeginStop(Nanos(launch_.grace));
    }
    if (kill_at_.has_value() && now >= *kill_at_) {
      SignalHere(SIGKILL);
      if (now >= *kill_nodes_at_) links_.Kill();
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
  const bool linked_;
  const int node_;
  const int each_;   // ranks of a node
  const int local_;  // ranks that this process starts
  const std::string srun_;
  OwnedFd control_;
  OwnedFd signals_;
  LogWriter log_;
  std::vector<RankProcess> ranks_;  // on this node
  NodeLinks links_;                 // to the other nodes
  bool told_ = false;               // that all ranks were started
  std::string commands_;
  Nanos begun_{0};
  std::optional<Nanos> kill_at_;
  std::optional<Nanos> kill_nodes_at_;
  bool over_time_ = false;
  bool stopped_ = false;
  LaunchExit exit_;

  // Of a remote one.
  bool warned_ = false;
  std::uint64_t commands_read_ = 0;
  std::string beat_;
  Nanos looked_{0};
  Nanos heard_{0};
  Nanos pulsed_{0};
  std::uint64_t pulses_ = 0;
};

}  // namespace

LaunchExit KeepRanks(const KeeperOptions& options, LaunchRecord launch, KeeperChannels channels) {
  return Keeper(options, std::move(launch), std::move(channels)).Run();
}

}  // namespace cairn

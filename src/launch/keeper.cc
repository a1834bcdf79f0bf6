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
// A launch over several nodes has such a process on each. One of them, that of the first node or
// one without ranks beside them, does all of this; the others do 3 and 4 for it and write nothing
// but what they tell it. Killed between any two of these, the ranks die with this process
// (PR_SET_PDEATHSIG), the lock is free, and the launcher finds what is left by its environment and
// says that the launch was lost.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "launch/launch_directory.h"
#include "launch/rank_keeper.h"
#include "launch/run_command.h"

extern char** environ;

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr Nanos kFirstRetry = std::chrono::milliseconds(50);
constexpr Nanos kLastRetry = std::chrono::seconds(2);

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
    return name.starts_with("SLURM") || name.starts_with("RAY_") ||
           std::ranges::find(kDevices, name) != std::end(kDevices);
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

/// For the shim that keeps the launch: what there is to say goes to the output, what there is to do
/// comes from the input.
Status KeepForAnother(const KeeperOptions& options, LaunchRecord launch, OwnedFd signals) {
  if (options.node < 0 || options.node >= launch.nodes) {
    return AbortedError("there is no such node");
  }
  KeeperChannels channels;
  channels.signals = std::move(signals);
  channels.control = OwnedFd(fcntl(0, F_DUPFD_CLOEXEC, 3));
  channels.log = OwnedFd(fcntl(1, F_DUPFD_CLOEXEC, 3));
  if (!channels.control.valid() || !channels.log.valid()) return ErrnoStatus("dup", errno);
  fcntl(channels.control.get(), F_SETFL, O_NONBLOCK);
  launch.limits.log_bytes = ~std::uint64_t{0};  // the other counts
  KeepRanks(options, std::move(launch), std::move(channels));
  return Status::Ok();
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
  if (options.linked) return KeepForAnother(options, std::move(launch), std::move(signals));
  KeeperChannels channels;
  channels.signals = std::move(signals);
  if (!options.remote) {
    ASSIGN_OR_RETURN(channels.control, directory.OpenControl());
  }
  channels.log =
      OwnedFd(open(directory.log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!channels.log.valid()) return ErrnoStatus("open " + directory.log_path(), errno);
  ASSIGN_OR_RETURN(const KeeperRecord self, IdentityOf(getpid()));
  const Status claimed = directory.Publish(self);
  if (claimed.Is(Code::kAlreadyExists)) return AbortedError("launch " + launch.id + " ran before");
  RETURN_IF_ERROR(claimed);
  if (launch.nodes > 1 && launch.starter.empty()) {
    // On the PATH of the job, which need not be that of the launch.
    auto srun = FindProgram("srun");
    channels.srun = srun.ok() ? *std::move(srun) : "srun";
  }
  if (options.remote) {
    ASSIGN_OR_RETURN(const std::vector<std::string> entries, directory.TakeEnvironment());
    TakeUp(entries);
  }
  return PublishExit(directory, KeepRanks(options, std::move(launch), std::move(channels)),
                     options.clock);
}

}  // namespace cairn

#include "paramserver/supervisor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "paramserver/child_process.h"
#include "paramserver/observer.h"

namespace cairn::ps {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr milliseconds kTurn{100};
constexpr seconds kLivedLong{60};
constexpr seconds kLastSave{60};
constexpr seconds kGrace{5};

/// A free port of this machine. Another process may take it before ours does; then the server says
/// so and is started again.
Result<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool ok = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  if (!ok) return UnavailableError("no free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}

  Result<JobReport> Run() {
    RETURN_IF_ERROR(Prepare());
    for (Role& role : roles_) RETURN_IF_ERROR(Start(&role));
    for (bool again = true; again;) {
      again = false;
      while (!TrainersDone() && !report_.interrupted) {
        report_.interrupted = options_.interrupted && options_.interrupted();
        if (report_.interrupted && options_.on_interrupted) options_.on_interrupted();
        RETURN_IF_ERROR(Turn(kTurn));
        if (SomeTrainerDone()) ReviveTrainers(StateOf(0));
      }
      RETURN_IF_ERROR(LastCheckpoint(&again));
    }
    CountLosses();
    StopAll();
    return report_;
  }

 private:
  struct Role {
    bool server = true;
    int index = 0;
    std::string name;
    std::vector<std::string> argv;
    std::map<std::string, std::string> env;
    std::optional<ChildProcess> process;
    bool done = false;
    int losses = 0;  // in a row
    SteadyClock::time_point start_at;
  };

  Status Prepare() {
    if (options_.command.empty()) {
      return InvalidArgumentError("give the trainers' command after --");
    }
    const ServerOptions& server = options_.server;
    std::string addresses;
    for (int i = 0; i < server.servers; ++i) {
      ASSIGN_OR_RETURN(const int port, FreePort());
      addresses_.push_back("127.0.0.1:" + std::to_string(port));
      addresses += (i == 0 ? "" : ",") + addresses_.back();
      Role role{.server = true, .index = i, .name = "ps_" + std::to_string(i)};
      role.argv = ServerCommand(i);
      role.env["CAIRN_PS_TOKEN"] = server.security.token;
      roles_.push_back(std::move(role));
    }
    for (int i = 0; i < server.trainers; ++i) {
      Role role{.server = false, .index = i, .name = "trainer_" + std::to_string(i)};
      role.argv = options_.command;
      role.env = {{"CAIRN_PS_SERVERS", addresses},
                  {"CAIRN_TRAINER_ID", std::to_string(i)},
                  {"CAIRN_NUM_TRAINERS", std::to_string(server.trainers)},
                  {"CAIRN_CHECKPOINT_DIR", server.directory},
                  {"CAIRN_PS_TOKEN", server.security.token}};
      roles_.push_back(std::move(role));
    }
    return Status::Ok();
  }

  std::vector<std::string> ServerCommand(int index) const {
    const ServerOptions& server = options_.server;
    std::vector<std::string> argv = {options_.program,
                                     "pserver",
                                     "--listen",
                                     addresses_[static_cast<std::size_t>(index)],
                                     "--dir",
                                     server.directory,
                                     "--index",
                                     std::to_string(index),
                                     "--servers",
                                     std::to_string(server.servers),
                                     "--trainers",
                                     std::to_string(server.trainers),
                                     "--mode",
                                     server.mode == Mode::kSync ? "sync" : "async",
                                     "--full-secs",
                                     fmt::format("{}", server.full_secs.value_or(0)),
                                     "--incremental-secs",
                                     fmt::format("{}", server.incremental_secs.value_or(0)),
                                     "--full-steps",
                                     std::to_string(server.full_steps.value_or(0)),
                                     "--incremental-steps",
                                     std::to_string(server.incremental_steps.value_or(0))};
    if (!server.load.empty()) argv.insert(argv.end(), {"--load", server.load});
    if (server.recovery != Recovery::kExact) {
      argv.insert(argv.end(),
                  {"--recovery", server.recovery == Recovery::kLog ? "log" : "partial"});
    }
    if (server.recovery == Recovery::kLog) {
      argv.insert(argv.end(),
                  {"--log-level", server.log_level == LogLevel::kSynced ? "synced" : "written"});
      if (!server.log_directory.empty()) {
        argv.insert(argv.end(), {"--log-dir", server.log_directory});
      }
    }
    return argv;
  }

  Status Start(Role* role) {
    ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(role->argv, role->env));
    role->process.emplace(std::move(process));
    return Status::Ok();
  }

  bool TrainersDone() const {
    return std::all_of(roles_.begin(), roles_.end(),
                       [](const Role& role) { return role.server || role.done; });
  }

  bool SomeTrainerDone() const {
    return std::any_of(roles_.begin(), roles_.end(),
                       [](const Role& role) { return !role.server && role.done; });
  }

  /// A trainer that had ended is wanted again when the job went back to a step before its end: the
  /// others cannot repeat that without it. True when there was one.
  bool ReviveTrainers(const Result<Observer::State>& lead) {
    if (!lead.ok() || !lead->serving) return false;
    const Value* trainers = lead->value.Find("trainers");
    if (trainers == nullptr || trainers->if_list() == nullptr) return false;
    bool any = false;
    for (Role& role : roles_) {
      const auto index = static_cast<std::size_t>(role.index);
      if (role.server || !role.done || index >= trainers->if_list()->size()) continue;
      const Value& state = (*trainers->if_list())[index];
      if (*state.Find("present") == Value(true)) continue;
      Say(role, "the job went back: started again", true);
      role.done = false;
      role.start_at = SteadyClock::now();
      any = true;
    }
    return any;
  }

  void Say(const Role& role, std::string_view line, bool error) {
    std::FILE* to = error ? stderr : stdout;
    const std::string text = "[" + role.name + "] " + std::string(line) + "\n";
    std::fwrite(text.data(), 1, text.size(), to);
    std::fflush(to);
  }

  void Forward(Role* role) {
    for (const bool error : {false, true}) {
      for (const std::string& line : role->process->ReadLines(error)) Say(*role, line, error);
    }
  }

  /// Passes output on, notices ends, starts what is due. At most `wait` long.
  Status Turn(milliseconds wait) {
    std::vector<pollfd> fds;
    for (const Role& role : roles_) {
      if (!role.process) continue;
      for (const int fd : {role.process->exit_event(), role.process->out(), role.process->err()}) {
        fds.push_back({fd, POLLIN, 0});
      }
    }
    poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
    for (Role& role : roles_) {
      if (role.process) {
        Forward(&role);
        pollfd ended{role.process->exit_event(), POLLIN, 0};
        if (poll(&ended, 1, 0) == 1) RETURN_IF_ERROR(Ended(&role));
      } else if (!role.done && !stopping_ && SteadyClock::now() >= role.start_at) {
        RETURN_IF_ERROR(Start(&role));
      }
    }
    return Status::Ok();
  }

  Status Ended(Role* role) {
    const int status = role->process->Reap();
    Forward(role);
    const bool lived_long = SteadyClock::now() - role->process->started() > kLivedLong;
    role->process.reset();
    if (stopping_ || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
      role->done = true;
      return Status::Ok();
    }
    role->losses = lived_long ? 1 : role->losses + 1;
    if (role->losses > options_.max_restarts) {
      return ResourceExhaustedError(fmt::format("{} was lost {} times in a row ({}): the job ends",
                                                role->name, role->losses, DescribeExit(status)));
    }
    auto pause = kFirstPause;
    for (int i = 1; i < role->losses && pause < kLongestPause; ++i) pause *= 2;
    pause = std::min(pause, kLongestPause);
    role->start_at = SteadyClock::now() + pause;
    ++(role->server ? report_.server_restarts : report_.trainer_restarts);
    Say(*role, fmt::format("lost: {}; started again in {} ms", DescribeExit(status), pause.count()),
        true);
    return Status::Ok();
  }

  Result<Observer::State> StateOf(int server) {
    ASSIGN_OR_RETURN(Observer observer,
                     Observer::Connect(addresses_[static_cast<std::size_t>(server)],
                                       options_.server.security, milliseconds(500)));
    return observer.Status();
  }

  static std::int64_t NumberIn(const Value& value, std::string_view name) {
    const Value* member = value.Find(name);
    return member == nullptr ? -1 : member->AsInt(-1);
  }

  /// Trainers at work carry the markers of a cut; when all have left the servers are told one by
  /// one.
  Status BeginLastCheckpoint(const Observer::State& lead) {
    const bool trainers_left = TrainersDone();
    for (int i = 0; i < options_.server.servers; ++i) {
      ASSIGN_OR_RETURN(Observer observer,
                       Observer::Connect(addresses_[static_cast<std::size_t>(i)],
                                         options_.server.security, milliseconds(500)));
      if (!trainers_left) return observer.RequestSave(lead.generation, false);
      const Marker marker{static_cast<std::uint64_t>(NumberIn(lead.value, "cut")) + 1,
                          NumberIn(lead.value, "global_step"), true};
      RETURN_IF_ERROR(observer.Cut(lead.generation, marker));
    }
    return Status::Ok();
  }

  /// `*again`: the job went back, and trainers are at work again.
  Status LastCheckpoint(bool* again) {
    const auto deadline = SteadyClock::now() + kLastSave;
    std::uint64_t begun_in = 0;  // the generation
    bool begun_ended = false;    // whether the trainers had ended then
    std::int64_t saves_before = 0;
    while (SteadyClock::now() < deadline) {
      RETURN_IF_ERROR(Turn(milliseconds(20)));
      auto lead = StateOf(0);
      if (!lead.ok() || !lead->serving) continue;
      if (!report_.interrupted && ReviveTrainers(lead)) {
        *again = true;
        return Status::Ok();
      }
      const std::int64_t saved = NumberIn(lead->value, "saved_step");
      const std::int64_t saves = NumberIn(lead->value, "saves");
      const bool saving = *lead->value.Find("saving") == Value(true);
      if (saved >= 0) {
        report_.saved = true;
        report_.step = saved;
      }
      if (saving) continue;
      // Trainers may end while they are asked: then nobody carries the marker, and the servers are
      // told themselves.
      const bool ended = TrainersDone();
      if (ended ? saved == NumberIn(lead->value, "global_step")
                : begun_in == lead->generation && saves > saves_before) {
        return Status::Ok();
      }
      if (begun_in == lead->generation && begun_ended == ended) continue;
      saves_before = saves;
      if (!BeginLastCheckpoint(*lead).ok()) continue;
      begun_in = lead->generation;
      begun_ended = ended;
    }
    std::fprintf(stderr, "the last checkpoint did not come about within %d s\n",
                 static_cast<int>(kLastSave.count()));
    return Status::Ok();
  }

  void CountLosses() {
    if (options_.server.recovery != Recovery::kPartial) return;
    for (int i = 0; i < options_.server.servers; ++i) {
      const auto state = StateOf(i);
      if (!state.ok()) continue;  // what it had lost before it was lost itself is in its output
      const std::int64_t lost = NumberIn(state->value, "lost_changes");
      if (lost > 0) report_.lost_changes += static_cast<std::uint64_t>(lost);
    }
  }

  void StopAll() {
    stopping_ = true;
    for (const int signal : {SIGTERM, SIGKILL}) {
      for (Role& role : roles_) {
        if (role.process) role.process->Signal(signal);
      }
      const auto deadline = SteadyClock::now() + kGrace;
      while (SteadyClock::now() < deadline &&
             std::any_of(roles_.begin(), roles_.end(),
                         [](const Role& role) { return role.process.has_value(); })) {
        Turn(kTurn).IgnoreError("everything is being stopped");
      }
    }
  }

  const JobOptions& options_;
  std::vector<std::string> addresses_;
  std::vector<Role> roles_;
  bool stopping_ = false;
  JobReport report_;
};

}  // namespace

Result<JobReport> RunJob(const JobOptions& options) {
  RETURN_IF_ERROR(options.server.Validate());
  return Job(options).Run();
}

}  // namespace cairn::ps

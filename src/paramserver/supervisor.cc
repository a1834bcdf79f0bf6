#include "paramserver/supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <optional>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "net/held_port.h"
#include "paramserver/observer.h"
#include "paramserver/registry.h"
#include "storage/open_store.h"

namespace cairn::ps {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr milliseconds kTurn{100};
constexpr milliseconds kQuestion{500};
constexpr seconds kLivedLong{60};
constexpr seconds kLastSave{60};
constexpr seconds kGrace{5};
/// A reader that found damage makes the next one choose an older checkpoint: one more try may do.
constexpr int kMaxRefusals = 3;

constexpr std::size_t Index(int number) { return static_cast<std::size_t>(number); }

/// "killed by signal 9", "exit code 3".
std::string DescribeExit(const LaunchExit& exit) {
  switch (exit.kind) {
    case ExitKind::kSignaled:
      return "killed by signal " + std::to_string(exit.signal);
    case ExitKind::kExited:
      return "exit code " + std::to_string(exit.code);
    default:
      return exit.message;
  }
}

milliseconds PauseAfter(int losses) {
  milliseconds pause = kFirstPause;
  for (int i = 1; i < losses && pause < kLongestPause; ++i) pause *= 2;
  return std::min(pause, kLongestPause);
}

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}
  ~Job() {
    if (launcher_ == nullptr) return;
    launcher_->Close(Launcher::CloseMode::kStopAll, seconds(0))
        .IgnoreError("what lives sees that this process is gone");
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Result<JobReport> Run() {
    RETURN_IF_ERROR(Prepare());
    for (Role& role : roles_) RETURN_IF_ERROR(Start(&role));
    for (bool again = true; again;) {
      again = false;
      while (!TrainersDone() && !report_.interrupted) {
        report_.interrupted = options_.interrupted && options_.interrupted();
        if (report_.interrupted && options_.on_interrupted) options_.on_interrupted();
        RETURN_IF_ERROR(Turn(kTurn));
        if (!SomeTrainerDone() && AllJoined()) continue;
        const auto lead = StateOf(0);
        NoteJoined(lead);  // at once: later it may have ended, and the servers gone back
        if (SomeTrainerDone()) RETURN_IF_ERROR(SettleEnded(lead).status());
      }
      RETURN_IF_ERROR(LastCheckpoint(&again));
    }
    CountLosses();
    RETURN_IF_ERROR(StopAll());
    return report_;
  }

 private:
  struct Role {
    bool server = true;
    int index = 0;
    std::string name;
    std::vector<std::string> argv;
    std::map<std::string, std::string> env;
    std::string launch;         // the id of the one that lives; "": none does
    std::uint64_t read = 0;     // of its log
    std::string unfinished[2];  // lines that its output and its errors are in the middle of
    std::string waits_for;      // as it was last said
    bool done = false;
    bool joined = false;  // seen by the servers
    int losses = 0;       // in a row
    int refusals = 0;     // in a row: ended with kNoUseAgain, or could not be started
    bool ran = false;     // it could be started, once at least
    std::string words;    // its last error
    SteadyClock::time_point start_at;
  };

  Status Prepare() {
    if (options_.command.empty()) {
      return InvalidArgumentError("give the trainers' command after --");
    }
    const ServerOptions& server = options_.server;
    std::string addresses;
    for (int i = 0; i < server.servers; ++i) {
      if (options_.remote) {
        // Nobody's, until it has registered.
        addresses_.push_back(fmt::format("ps-{}.invalid:1", i));
      } else {
        const int port = ports_.emplace_back().number();
        if (port == 0) return UnavailableError("no free port on 127.0.0.1");
        addresses_.push_back("127.0.0.1:" + std::to_string(port));
      }
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
    ASSIGN_OR_RETURN(launcher_, options_.open_launcher([this](const LaunchInfo&) {
      MutexLock lock(&mu_);
      news_ = true;
      changed_.NotifyAll();
    }));
    return TidyUp();
  }

  /// What an earlier life of the job left has ended, or is ending: it must not meet the new one.
  Status TidyUp() {
    ASSIGN_OR_RETURN(const std::vector<LaunchInfo> left, launcher_->List());
    for (const LaunchInfo& info : left) RETURN_IF_ERROR(launcher_->Kill(info.id));
    for (const LaunchInfo& info : left) {
      RETURN_IF_ERROR(launcher_->Wait(info.id, kLastSave).status());
      RETURN_IF_ERROR(launcher_->Forget(info.id));
    }
    return Status::Ok();
  }

  /// Each server at a port of its own, behind the one that was given. It was looked at before.
  std::string MetricsOf(int index) const {
    const std::string& given = options_.server.metrics;
    const std::size_t host = given.rfind(':') + 1;  // 0: there is none
    const int port = std::stoi(given.substr(host));
    return given.substr(0, host) + std::to_string(port == 0 ? 0 : port + index);
  }

  std::vector<std::string> ServerCommand(int index) const {
    const ServerOptions& server = options_.server;
    std::vector<std::string> argv = {options_.program,
                                     "pserver",
                                     "--listen",
                                     options_.remote ? "0.0.0.0:0" : addresses_[Index(index)],
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
    if (server.quantize) argv.push_back("--quantize");
    if (options_.remote) argv.insert(argv.end(), {"--address", "auto"});
    if (!server.load.empty()) argv.insert(argv.end(), {"--load", server.load});
    if (!server.metrics.empty()) argv.insert(argv.end(), {"--metrics", MetricsOf(index)});
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
    LaunchSpec spec;
    // Not that of any other life: one that is taken for lost may still be there.
    spec.id = fmt::format("{}.{}.{}", role->name, life_, ++launches_);
    spec.argv = role->argv;
    spec.env = role->env;
    spec.slots = 0;
    spec.resources = options_.resources;
    spec.grace = seconds(0);
    spec.outlive_owner = false;
    RETURN_IF_ERROR(launcher_->Submit(spec));
    role->launch = spec.id;
    role->read = 0;
    role->waits_for.clear();
    role->words.clear();
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

  bool AnyLives() const {
    return std::any_of(roles_.begin(), roles_.end(),
                       [](const Role& role) { return !role.launch.empty(); });
  }

  bool AllJoined() const {
    return std::all_of(roles_.begin(), roles_.end(),
                       [](const Role& role) { return role.server || role.joined; });
  }

  void NoteJoined(const Result<Observer::State>& lead) {
    if (!lead.ok()) return;
    for (Role& role : roles_) {
      if (!role.server && lead->TrainerIs(Index(role.index), "present")) role.joined = true;
    }
  }

  /// What becomes of trainers whose processes ended well. One that did not say so to all servers
  /// leaves; one that none of them knows is wanted again: the job went back to a step before its
  /// end, which the others cannot repeat without it. True when there was such a one.
  Result<bool> SettleEnded(const Result<Observer::State>& lead) {
    if (!lead.ok() || !lead->serving || lead->generation == settled_in_) return false;
    // A server that was lost may know less than the lead, or more when the lead was.
    std::vector<Observer::State> states{*lead};
    for (int i = 1; i < options_.server.servers; ++i) {
      const auto state = StateOf(i);
      if (!state.ok() || state->generation != lead->generation) return false;  // on its way
      states.push_back(*state);
    }
    bool any = false;
    bool settled = true;
    for (Role& role : roles_) {
      if (role.server) continue;
      const auto is = [index = Index(role.index)](const char* what) {
        return [index, what](const Observer::State& state) { return state.TrainerIs(index, what); };
      };
      const bool present = std::any_of(states.begin(), states.end(), is("present"));
      if (!role.done || std::all_of(states.begin(), states.end(), is("left"))) continue;
      settled = false;
      if (present) {
        LeaveFor(role, lead->generation).IgnoreError("tried again at the next turn");
        continue;
      }
      if (!role.joined && ++role.losses > options_.max_restarts) {
        return FailedPreconditionError(
            role.name + " ended " + std::to_string(role.losses) +
            " times without having joined the job: its command has to make a client "
            "(cairn.ps.Client)");
      }
      Say(role,
          role.joined ? "the job went back: started again"
                      : "ended without having joined the job, for which it has to make a client "
                        "(cairn.ps.Client): started again",
          true);
      role.done = false;
      role.start_at = SteadyClock::now() + PauseAfter(role.losses);
      any = true;
    }
    if (settled) settled_in_ = lead->generation;
    return any;
  }

  /// The lead hears it last: as long as it has not, the others are told again.
  Status LeaveFor(const Role& role, std::uint64_t generation) {
    for (int i = options_.server.servers - 1; i >= 0; --i) {
      ASSIGN_OR_RETURN(Observer observer, Ask(i));
      RETURN_IF_ERROR(observer.TrainerEnded(generation, static_cast<std::uint32_t>(role.index)));
    }
    return Status::Ok();
  }

  void Say(const Role& role, std::string_view line, bool error) {
    std::FILE* to = error ? stderr : stdout;
    const std::string text = "[" + role.name + "] " + std::string(line) + "\n";
    std::fwrite(text.data(), 1, text.size(), to);
    std::fflush(to);
  }

  /// Keeps the error that a server ends with: a line, and further ones that are indented.
  static void NoteWords(Role* role, std::string_view line) {
    constexpr std::string_view kError = "cairn: ";
    if (line.starts_with(kError)) {
      role->words = line.substr(kError.size());
    } else if (line.starts_with("  ") && !role->words.empty()) {
      role->words += "\n";
      role->words += line;
    }
  }

  /// Passes on what came since the last time; with `ended` the last of it.
  void Forward(Role* role, bool ended) {
    for (;;) {
      const auto page = launcher_->ReadLog(role->launch, role->read);
      if (!page.ok() || page->next == role->read) break;
      role->read = page->next;
      for (const LaunchLogLine& line : page->lines) {
        std::string& text = role->unfinished[line.from_stderr ? 1 : 0];
        text += line.text;
        if (line.unfinished) continue;
        Say(*role, text, line.from_stderr);
        if (line.from_stderr) NoteWords(role, text);
        text.clear();
      }
    }
    for (const bool error : {false, true}) {
      std::string& text = role->unfinished[error ? 1 : 0];
      if (ended && !text.empty()) Say(*role, text, error);
      if (ended) text.clear();
    }
  }

  /// Passes output on, notices ends, starts what is due. At most `wait` long, and a moment more.
  Status Turn(milliseconds wait) {
    {
      MutexLock lock(&mu_);
      if (!news_) changed_.WaitFor(&mu_, wait);
      news_ = false;
    }
    for (Role& role : roles_) {
      if (role.launch.empty()) {
        if (!role.done && !stopping_ && SteadyClock::now() >= role.start_at) {
          RETURN_IF_ERROR(Start(&role));
        }
        continue;
      }
      ASSIGN_OR_RETURN(const LaunchInfo info, launcher_->Get(role.launch));
      if (options_.remote && info.reason != role.waits_for) {
        role.waits_for = info.reason;
        if (!info.reason.empty()) Say(role, info.reason, true);
      }
      Forward(&role, info.exit.has_value());
      if (info.exit.has_value()) RETURN_IF_ERROR(Ended(&role, info));
    }
    return Status::Ok();
  }

  /// A trainer that ends while a server is away has not failed by itself.
  bool ServersRun() {
    return std::all_of(roles_.begin(), roles_.end(), [&](const Role& role) {
      if (!role.server) return true;
      const auto info = launcher_->Get(role.launch);
      return info.ok() && info->state == LaunchState::kRunning;
    });
  }

  Status Ended(Role* role, const LaunchInfo& info) {
    const LaunchExit& exit = *info.exit;
    const auto lived = std::chrono::nanoseconds(info.started > 0 ? exit.time - info.started : 0);
    RETURN_IF_ERROR(launcher_->Forget(role->launch));
    role->launch.clear();
    if (stopping_ || (exit.succeeded() && !exit.stopped)) {
      role->done = true;
      settled_in_ = 0;
      return Status::Ok();
    }
    // A command that is misspelt stays so. One that ran may be missing for a while.
    const bool misspelt = !options_.remote && !role->ran && exit.kind == ExitKind::kNotStarted;
    role->ran |= exit.kind != ExitKind::kNotStarted;
    const bool refused = role->server && exit.kind == ExitKind::kExited && exit.code == kNoUseAgain;
    role->refusals = refused || misspelt ? role->refusals + 1 : 0;
    if (role->refusals >= kMaxRefusals) {
      return FailedPreconditionError(
          misspelt ? role->name + " cannot be started: " + DescribeExit(exit)
                   : role->name + " cannot serve, however often it is started: " + role->words);
    }
    const bool counted = !exit.stopped && (role->server || !options_.remote || ServersRun());
    if (counted) role->losses = lived > kLivedLong ? 1 : role->losses + 1;
    if (role->losses > options_.max_restarts) {
      return ResourceExhaustedError(fmt::format("{} was lost {} times in a row ({}): the job ends",
                                                role->name, role->losses, DescribeExit(exit)));
    }
    const milliseconds pause = PauseAfter(role->losses);
    role->start_at = SteadyClock::now() + pause;
    ++(role->server ? report_.server_restarts : report_.trainer_restarts);
    Say(*role, fmt::format("lost: {}; started again in {} ms", DescribeExit(exit), pause.count()),
        true);
    return Status::Ok();
  }

  /// A connection to a server; its address is what it registered last.
  Result<Observer> Ask(int server) {
    std::string address = addresses_[Index(server)];
    if (options_.remote) {
      if (store_ == nullptr) {
        ASSIGN_OR_RETURN(store_, OpenStore(options_.server.directory, {.create = false}));
      }
      ASSIGN_OR_RETURN(const ServerAddress found, FindServer(store_.get(), server));
      address = found.address;
    }
    return Observer::Connect(address, options_.server.security, kQuestion);
  }

  Result<Observer::State> StateOf(int server) {
    ASSIGN_OR_RETURN(Observer observer, Ask(server));
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
      ASSIGN_OR_RETURN(Observer observer, Ask(i));
      if (!trainers_left) return observer.RequestSave(lead.generation, false);
      const Marker marker{static_cast<std::uint64_t>(NumberIn(lead.value, "cut")) + 1,
                          NumberIn(lead.value, "global_step"), true};
      RETURN_IF_ERROR(observer.Cut(lead.generation, marker));
    }
    return Status::Ok();
  }

  /// Steps alone do not tell: asynchronous pushes, and rows that are assigned or erased, change
  /// what the servers have without ending one.
  bool AllIsSaved(const Observer::State& lead) {
    if (NumberIn(lead.value, "saved_step") != NumberIn(lead.value, "global_step")) return false;
    if (NumberIn(lead.value, "unsaved_changes") != 0) return false;
    for (int i = 1; i < options_.server.servers; ++i) {
      const auto state = StateOf(i);
      if (!state.ok() || state->generation != lead.generation) return false;
      if (NumberIn(state->value, "unsaved_changes") != 0) return false;
    }
    return true;
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
      if (!report_.interrupted) {
        ASSIGN_OR_RETURN(*again, SettleEnded(lead));
        if (*again) return Status::Ok();
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
      if (ended ? AllIsSaved(*lead) : begun_in == lead->generation && saves > saves_before) {
        return Status::Ok();
      }
      if (begun_in == lead->generation && begun_ended == ended) continue;
      saves_before = saves;
      if (!BeginLastCheckpoint(*lead).ok()) continue;
      begun_in = lead->generation;
      begun_ended = ended;
    }
    report_.unsaved = true;
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

  Status StopAll() {
    stopping_ = true;
    for (const Role& role : roles_) {
      if (role.launch.empty()) continue;
      launcher_->Stop(role.launch, kGrace).IgnoreError("it may end just now; see below");
    }
    const auto deadline = SteadyClock::now() + 2 * kGrace;
    while (AnyLives() && SteadyClock::now() < deadline) {
      Turn(kTurn).IgnoreError("everything is being stopped");
    }
    return launcher_->Close(Launcher::CloseMode::kStopAll, kGrace);
  }

  const JobOptions& options_;
  const std::string life_ = IdSource::System()->NewUuid().substr(0, 8);
  std::vector<std::string> addresses_;  // of the servers, unless they are registered
  std::deque<HeldPort> ports_;          // theirs, also while they are started again
  std::vector<Role> roles_;
  std::uint64_t launches_ = 0;
  std::uint64_t settled_in_ = 0;  // the generation whose servers all know who has left
  bool stopping_ = false;
  JobReport report_;
  std::unique_ptr<Store> store_;  // where servers are registered

  Mutex mu_;
  CondVar changed_;
  bool news_ GUARDED_BY(mu_) = false;  // a launch began or ended

  std::unique_ptr<Launcher> launcher_;  // last: it calls back; what lives ends with it
};

}  // namespace

bool IsLasting(const Status& status) {
  return status.Is(Code::kFailedPrecondition) || status.Is(Code::kInvalidArgument) ||
         status.Is(Code::kNotFound) || status.Is(Code::kCorruption);
}

Result<JobReport> RunJob(const JobOptions& options) {
  RETURN_IF_ERROR(options.server.Validate());
  return Job(options).Run();
}

}  // namespace cairn::ps

// The engine and its trials as real processes, killed with SIGKILL at random moments: the engine
// (also while it opens), a trial, both, the shim that keeps a trial; trials are paused and
// activated in between. At the end, from the engine's log and the trials' own ledgers: no
// acknowledged report or checkpoint is lost, no step is counted twice, no two processes of one
// trial lived, ids are as they were. CAIRN_TORTURE_SECONDS makes it run that long instead of a few
// kills; the seed and what the kills hit are printed.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "storage/local/local_store.h"
#include "tests/kill/harness.h"
#include "trial/event_log.h"
#include "trial/trial_record.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::string BinDir() {
  const char* bin = std::getenv("CAIRN_BIN_DIR");
  return bin == nullptr ? "build/dev/bin" : bin;
}

/// The engine's process, with a pipe to and from it. All its lives listen at a socket in the
/// directory, which nobody else takes: trials find back.
class Host {
 public:
  /// `kill_at`: where it is to end by itself (trial/kill_point.h); "": nowhere.
  Host(const std::filesystem::path& directory, int trials, int steps, std::string kill_at = "") {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    const std::string program = BinDir() + "/trial_engine_host";
    const std::vector<std::string> args = {program,
                                           directory.string(),
                                           fmt::format("unix:{}/socket", directory.string()),
                                           "2",
                                           std::to_string(trials),
                                           BinDir() + "/trial_fault_worker",
                                           (directory / "ledger").string(),
                                           std::to_string(steps)};
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      if (!kill_at.empty()) setenv("CAIRN_KILL_AT", kill_at.c_str(), 1);
      if (steps == 0) setenv("CAIRN_TEST_PREEMPTION_MS", "2000", 1);
      std::vector<char*> argv;
      for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Host() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    Reap();
  }
  /// Whether it has ended, by a SIGKILL of its own.
  bool Died() {
    int status = 0;
    if (pid_ == 0) return true;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = 0;
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    return true;
  }
  /// Closes its standard input: it stops everything and exits.
  int Stop() {
    close(in_);
    in_ = -1;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    Reap();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// The next line, or "" when it died or `timeout` passed.
  std::string ReadLine(milliseconds timeout = seconds(60)) {
    const auto until = steady_clock::now() + timeout;
    while (buffer_.find('\n') == std::string::npos) {
      pollfd fd{.fd = out_, .events = POLLIN, .revents = 0};
      const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
      if (left.count() <= 0 || ::poll(&fd, 1, static_cast<int>(left.count())) <= 0) return "";
      char bytes[4096];
      const ssize_t got = read(out_, bytes, sizeof bytes);
      if (got <= 0) return "";
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
    const std::string line = buffer_.substr(0, buffer_.find('\n'));
    buffer_.erase(0, line.size() + 1);
    return line;
  }
  std::string Ask(const std::string& command) {
    const std::string text = command + "\n";
    if (write(in_, text.data(), text.size()) < 0) return "";
    return ReadLine();
  }
  std::map<std::string, std::string> States() {
    std::istringstream words(Ask("states"));
    std::map<std::string, std::string> states;
    for (std::string id, state; words >> id >> state;) states[id] = state;
    return states;
  }

 private:
  void Reap() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
    if (in_ >= 0) close(in_);
    if (out_ >= 0) close(out_);
    in_ = out_ = -1;
  }
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
  std::string buffer_;
};

struct Ledger {
  struct Reported {
    std::uint64_t run = 0;
    std::uint64_t sequence = 0;
    std::int64_t steps = 0;
  };
  std::vector<Reported> reports;
  std::map<std::string, std::int64_t> checkpoints;
  std::vector<pid_t> pids;
  bool doubled = false;

  static Ledger Read(const std::filesystem::path& path) {
    Ledger ledger;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      if (kind == "report") {
        Reported one;
        words >> one.run >> one.sequence >> one.steps;
        ledger.reports.push_back(one);
      } else if (kind == "checkpoint") {
        std::string id;
        std::int64_t steps = 0;
        words >> id >> steps;
        ledger.checkpoints[id] = steps;
      } else if (kind == "pid") {
        pid_t pid = 0;
        words >> pid;
        ledger.pids.push_back(pid);
      } else if (kind == "double") {
        ledger.doubled = true;
      }
    }
    return ledger;
  }
};

/// Whether the process is a worker of this test: pids are reused.
bool IsWorker(pid_t pid, const std::filesystem::path& directory) {
  std::ifstream in(fmt::format("/proc/{}/cmdline", pid));
  const std::string line((std::istreambuf_iterator<char>(in)), {});
  return line.find("trial_fault_worker") != std::string::npos &&
         line.find(directory.string()) != std::string::npos;
}

void CheckAll(const std::filesystem::path& directory, int trials, int steps) {
  auto store = OpenLocalStore((directory / "engine").string()).value();
  auto log = JournalEventLog::Open({.store = store.get(), .prefix = "events"}).value();
  TrialRecords records;
  const Status replayed = log->Replay(1, [&](const Event& event) { return records.Apply(event); });
  ASSERT_TRUE(replayed.ok()) << replayed.ToString();
  ASSERT_EQ(records.trials().size(), static_cast<std::size_t>(trials));
  for (int i = 1; i <= trials; ++i) {
    const std::string id = fmt::format("t{}", i);
    SCOPED_TRACE(id);
    const TrialRecord* trial = records.Find(id);
    ASSERT_NE(trial, nullptr);
    const Ledger ledger = Ledger::Read(directory / "ledger" / (id + ".ledger"));
    EXPECT_FALSE(ledger.doubled) << "two processes of one trial lived";
    std::set<std::tuple<std::uint64_t, std::uint64_t, std::int64_t>> reported;
    std::map<std::int64_t, int> counted;
    for (const MetricPoint& point : trial->reports) {
      EXPECT_TRUE(reported.emplace(point.run, point.sequence, point.steps).second);
      EXPECT_EQ(point.values.Find("x")->AsInt(), point.steps);
      if (!point.archived) ++counted[point.steps];
    }
    for (const auto& one : ledger.reports) {
      EXPECT_TRUE(reported.contains({one.run, one.sequence, one.steps}))
          << "lost: run " << one.run << " report " << one.sequence;
    }
    for (const auto& [checkpoint, at] : ledger.checkpoints) {
      const CheckpointRecord* record = trial->Find(checkpoint);
      ASSERT_NE(record, nullptr) << "lost: checkpoint " << checkpoint;
      EXPECT_EQ(record->state, CheckpointState::kCompleted);
      EXPECT_EQ(record->steps, at);
    }
    EXPECT_EQ(trial->core.state, TrialState::kCompleted) << trial->message;
    EXPECT_EQ(counted.size(), static_cast<std::size_t>(steps));
    for (const auto& [step, times] : counted) EXPECT_EQ(times, 1) << "step " << step;
    EXPECT_EQ(trial->Newest()->steps, steps);
  }
}

/// The shim that started a worker: nobody else is a worker's parent.
pid_t KeeperOf(pid_t worker) {
  std::ifstream in(fmt::format("/proc/{}/stat", worker));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(text.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  std::ifstream command(fmt::format("/proc/{}/cmdline", parent));
  const std::string line((std::istreambuf_iterator<char>(command)), {});
  return line.find("cairn-shim") == std::string::npos ? 0 : parent;
}

std::string PhaseOfEngine(const std::filesystem::path& directory) {
  std::string phase;
  std::getline(std::ifstream(directory / "phase") >> std::ws, phase);
  while (phase.ends_with(' ')) phase.pop_back();
  return phase;
}

/// The kind of the last event that a killed engine left. Only a copy is opened: what is to be
/// mended is the next engine's business.
std::string LastEvent(const std::filesystem::path& directory) {
  kill::TempDir copy;
  std::filesystem::copy(directory / "engine", copy.path() / "engine",
                        std::filesystem::copy_options::recursive);
  auto store = OpenLocalStore((copy.path() / "engine").string()).value();
  auto log = JournalEventLog::Open({.store = store.get(), .prefix = "events"}).value();
  std::string last;
  const Status read = log->Replay(1, [&](const Event& event) {
    last = EventKindName(event.kind);
    return Status::Ok();
  });
  EXPECT_TRUE(read.ok()) << read.ToString();
  return last;
}

/// Peace until all trials are done.
void Finish(Host* host) {
  const auto until = steady_clock::now() + seconds(120);
  for (bool done = false; !done;) {
    done = true;
    for (const auto& [id, state] : host->States()) {
      if (state == "PAUSED" || state == "PAUSING" || state == "CANCELED") {
        host->Ask("activate " + id);
      }
      done = done && state == "COMPLETED";
    }
    ASSERT_LT(steady_clock::now(), until) << host->Ask("states");
    if (!done) std::this_thread::sleep_for(milliseconds(20));
  }
}

/// Stops it in good order, and looks whether everything is as it should be.
void CheckEnd(Host* host, const std::filesystem::path& directory, int trials, int steps) {
  EXPECT_EQ(host->Stop(), 0);
  for (int i = 1; i <= trials; ++i) {
    for (const pid_t pid : Ledger::Read(directory / "ledger" / fmt::format("t{}.ledger", i)).pids) {
      EXPECT_FALSE(IsWorker(pid, directory)) << "left behind: " << pid;
    }
  }
  CheckAll(directory, trials, steps);
}

/// One world: trials that take a while, `kills` disturbances, then peace until all are done.
void RunWorld(std::uint64_t seed, int kills, std::map<std::string, int>* hits) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  constexpr int kTrials = 2;
  const int steps = 20 + kills * 6;
  kill::TempDir directory;
  std::filesystem::create_directories(directory.path() / "ledger");
  std::mt19937_64 random(seed);
  auto host = std::make_unique<Host>(directory.path(), kTrials, steps);
  ASSERT_EQ(host->ReadLine(), "ready");
  const auto kill_trial = [&](const std::string& id, bool keeper = false) {
    const Ledger ledger = Ledger::Read(directory.path() / "ledger" / (id + ".ledger"));
    if (ledger.pids.empty() || !IsWorker(ledger.pids.back(), directory.path())) return false;
    const pid_t victim = keeper ? KeeperOf(ledger.pids.back()) : ledger.pids.back();
    char phase = '?';
    std::ifstream(directory.path() / "ledger" / (id + ".phase")).get(phase);
    if (victim == 0 || ::kill(victim, SIGKILL) != 0) return false;
    ++(*hits)[fmt::format("{} in phase {}", keeper ? "shim of a trial" : "trial", phase)];
    return true;
  };
  const auto kill_engine = [&](bool with_trial) {
    const std::string phase = PhaseOfEngine(directory.path());
    host->Kill();
    ++(*hits)[fmt::format("{}, {}", with_trial ? "engine with a trial" : "engine", phase)];
    host = std::make_unique<Host>(directory.path(), kTrials, steps);
  };
  for (int i = 0; i < kills;) {
    std::this_thread::sleep_for(milliseconds(random() % 120));
    const std::string id = fmt::format("t{}", 1 + random() % kTrials);
    const std::uint64_t what = random() % 10;
    if (what < 4) {
      if (!kill_trial(id, /*keeper=*/what == 3)) ++(*hits)["no process to kill"];
    } else if (what < 8) {
      kill_engine(/*with_trial=*/what >= 6 && kill_trial(id));
      while (random() % 3 == 0) {  // while it opens, too
        std::this_thread::sleep_for(milliseconds(random() % 25));
        kill_engine(/*with_trial=*/false);
      }
      ASSERT_EQ(host->ReadLine(), "ready");
    } else {
      const std::string answer = host->Ask((what == 8 ? "pause " : "activate ") + id);
      ++(*hits)[what == 8 ? "pause" : "activate"];
      ASSERT_FALSE(answer.empty());
    }
    ++i;
  }
  ASSERT_NO_FATAL_FAILURE(Finish(host.get()));
  CheckEnd(host.get(), directory.path(), kTrials, steps);
}

TEST(TrialFault, NothingAcknowledgedIsLostWhateverIsKilled) {
  kill::Record record = kill::Record::Load();
  std::map<std::string, int> hits;
  const auto until = steady_clock::now() + kill::TortureTime();
  int worlds = 0;
  do {
    RunWorld(record.seed, 15, &hits);
    if (HasFailure()) break;
    record.cycles += 15;
    record.Save();
    ++record.seed;
  } while (++worlds < 3 || steady_clock::now() < until);
  std::cout << record.cycles << " disturbances so far, next seed " << record.seed << "\n";
  for (const auto& [what, count] : hits) std::cout << "  " << what << ": " << count << "\n";
  if (worlds < 100) return;  // too few to hit everything
  for (const char phase : std::string("srpbwc")) {
    EXPECT_GT(hits[fmt::format("trial in phase {}", phase)], 0) << phase;
  }
  for (const std::string_view phase : {"opens", "taken: report", "durable: report"}) {
    EXPECT_GT(hits[fmt::format("engine, {}", phase)], 0) << phase;
  }
}

/// An engine that is about to end by itself: everything is done to its trials until it does.
void DisturbUntilItDies(Host* host, const std::function<bool(const std::string&)>& kill_trial) {
  const auto until = steady_clock::now() + seconds(120);
  const std::vector<std::string> words = {"pause",    "activate", "cancel",
                                          "activate", "kill",     "activate"};
  for (std::size_t i = 0; !host->Died(); ++i) {
    ASSERT_LT(steady_clock::now(), until) << "it does not come to that";
    if (i % 4 == 3) kill_trial("t2");
    host->Ask(fmt::format("{} t1", words[i % words.size()]));
    // A pause is to be seen and acknowledged before the next word.
    for (int looks = 0; looks < 10 && !host->Died(); ++looks) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}

/// The same where trials do not hear that they are to stop, and are ended when their time is over.
void PauseUntilItDies(Host* host) {
  const auto until = steady_clock::now() + seconds(120);
  for (int i = 0; !host->Died(); ++i) {
    ASSERT_LT(steady_clock::now(), until) << "it does not come to that";
    host->Ask(i % 2 == 0 ? "activate t2" : "pause t2");
    for (int looks = 0; looks < (i % 2 == 0 ? 30 : 400) && !host->Died(); ++looks) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}

// Kills that land in idle time prove nothing: each step is aimed at, and must be hit.
TEST(TrialFault, NothingIsLostAtAnyStepOfTheEngineOrATrial) {
  signal(SIGPIPE, SIG_IGN);  // the engine dies while it is spoken to
  constexpr int kTrials = 2;
  constexpr int kForEver = 0;
  kill::TempDir directory;
  const auto ledgers = directory.path() / "ledger";
  std::filesystem::create_directories(ledgers);
  const auto kill_trial = [&](const std::string& id) {
    const Ledger ledger = Ledger::Read(ledgers / (id + ".ledger"));
    return !ledger.pids.empty() && IsWorker(ledger.pids.back(), directory.path()) &&
           ::kill(ledger.pids.back(), SIGKILL) == 0;
  };
  std::map<std::string, int> hits;
  for (const std::string kind :
       {"trial_created", "run_started", "run_ready", "report", "checkpoint_started",
        "checkpoint_completed", "pause_requested", "preempt_acknowledged", "run_exited",
        "activated", "cancel_requested", "kill_requested", "signalled"}) {
    for (const std::string when : {"taken", "durable", "told"}) {
      SCOPED_TRACE(when + " " + kind);
      Host host(directory.path(), kTrials, kForEver, fmt::format("{}:{}:1", when, kind));
      host.ReadLine();  // "ready", unless what it is to die of comes before
      if (kind == "signalled") {
        std::ofstream(ledgers / "deaf") << "";
        ASSERT_NO_FATAL_FAILURE(PauseUntilItDies(&host));
      } else {
        ASSERT_NO_FATAL_FAILURE(DisturbUntilItDies(&host, kill_trial));
      }
      if (when != "taken") {
        EXPECT_EQ(LastEvent(directory.path()), kind);
      }
      ++hits[fmt::format("engine, {}: {}", when, kind)];
    }
  }
  std::filesystem::remove(ledgers / "deaf");
  Host host(directory.path(), kTrials, kForEver);
  ASSERT_EQ(host.ReadLine(), "ready");
  const auto end = steady_clock::now() + seconds(240);
  for (const char phase : std::string("srpbwcae")) {
    const auto order = ledgers / "t1.kill";
    std::ofstream(order) << phase;
    for (int i = 0; std::filesystem::exists(order); ++i) {
      ASSERT_LT(steady_clock::now(), end) << phase;
      host.Ask(i % 2 == 0 ? "pause t1" : "activate t1");
      std::this_thread::sleep_for(milliseconds(50));
    }
    ++hits[fmt::format("trial in phase {}", phase)];
  }
  std::int64_t steps = 0;
  for (const std::string id : {"t1", "t2"}) {
    for (const auto& report : Ledger::Read(ledgers / (id + ".ledger")).reports) {
      steps = std::max(steps, report.steps);
    }
  }
  steps += 100;  // they go on while this is written
  std::ofstream(ledgers / "steps") << steps;
  ASSERT_NO_FATAL_FAILURE(Finish(&host));
  CheckEnd(&host, directory.path(), kTrials, static_cast<int>(steps));
  for (const auto& [what, count] : hits) std::cout << "  " << what << ": " << count << "\n";
  EXPECT_EQ(hits.size(), 3u * 13 + 8);
}

TEST(TrialFault, AnOrderlyStopLeavesNoProcess) {
  kill::TempDir directory;
  std::filesystem::create_directories(directory.path() / "ledger");
  Host host(directory.path(), 2, 1000000);
  ASSERT_EQ(host.ReadLine(), "ready");
  const auto path = directory.path() / "ledger" / "t1.ledger";
  const auto until = steady_clock::now() + seconds(60);
  while (Ledger::Read(path).reports.empty()) {
    ASSERT_LT(steady_clock::now(), until);
    std::this_thread::sleep_for(milliseconds(10));
  }
  const pid_t pid = Ledger::Read(path).pids.back();
  EXPECT_TRUE(IsWorker(pid, directory.path()));
  EXPECT_EQ(host.Stop(), 0);
  EXPECT_FALSE(IsWorker(pid, directory.path()));
  // They were stopped in good order: queued, to be started again, and nothing counts as a failure.
  auto store = OpenLocalStore((directory.path() / "engine").string()).value();
  auto log = JournalEventLog::Open({.store = store.get(), .prefix = "events"}).value();
  TrialRecords records;
  ASSERT_TRUE(log->Replay(1, [&](const Event& event) { return records.Apply(event); }).ok());
  for (const auto& [id, trial] : records.trials()) EXPECT_EQ(trial.core.restarts, 0u) << id;
}

}  // namespace
}  // namespace cairn

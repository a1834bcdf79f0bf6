#include "launch/conformance.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <ostream>
#include <thread>
#include <utility>

#include "base/ids.h"
#include "launch/process_identity.h"

namespace cairn {

void PrintTo(const LauncherFactory& factory, std::ostream* out) { *out << factory.name; }

namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kMarkVariable[] = "CAIRN_TEST_MARK";
constexpr std::chrono::milliseconds kLook{2};

}  // namespace

std::string LauncherConformance::Name(const ::testing::TestParamInfo<LauncherFactory>& info) {
  return info.param.name;
}

void LauncherConformance::SetUp() {
  mark_ = IdSource::System()->NewUuid();
  under_test_ = GetParam().make();
}

void LauncherConformance::TearDown() {
  if (launcher_ != nullptr) {
    const Status closed = launcher_->Close(Launcher::CloseMode::kStopAll, std::chrono::seconds(0));
    EXPECT_TRUE(closed.ok()) << closed.ToString();
  }
  launcher_.reset();
  // Whatever a failed test left behind must not disturb the next one.
  EXPECT_EQ(Living(), 0u) << "processes are left behind";
  EXPECT_TRUE(KillByEnvironment(kMarkVariable, mark_).ok());
}

void LauncherConformance::Open(LaunchListener listener) {
  auto opened = under_test_.open(std::move(listener));
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  launcher_ = std::move(*opened);
}

pid_t LauncherConformance::ForkOwner(const std::function<void(Launcher&)>& body) {
  EXPECT_EQ(launcher_, nullptr) << "a process with threads must not fork";
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    auto opened = under_test_.open({});
    if (opened.ok()) body(**opened);
    const char said = opened.ok() && !::testing::Test::HasFailure() ? 'k' : 'x';
    if (write(ends[1], &said, 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ends[1]);
  char said = 0;
  EXPECT_EQ(read(ends[0], &said, 1), 1);
  EXPECT_EQ(said, 'k') << "the owner could not do its part";
  close(ends[0]);
  return pid;
}

void LauncherConformance::KillOwner(pid_t owner) {
  ASSERT_EQ(kill(owner, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(owner, &status, 0), owner);
  ASSERT_TRUE(WIFSIGNALED(status));
}

LaunchSpec LauncherConformance::Script(const std::string& id, const std::string& text) const {
  LaunchSpec spec;
  spec.id = id;
  spec.argv = {"/bin/sh", "-c", text};
  spec.env = {{kMarkVariable, mark_}};
  spec.slots = 1;
  return spec;
}

void LauncherConformance::Submit(const LaunchSpec& spec) {
  const Status submitted = launcher().Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.ToString();
}

LaunchInfo LauncherConformance::End(const std::string& id) {
  auto info = launcher().Wait(id, under_test_.patience);
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  if (!info.ok()) return {};
  EXPECT_EQ(info->state, LaunchState::kEnded);
  EXPECT_TRUE(info->exit.has_value());
  return *info;
}

void LauncherConformance::Until(const std::string& what, const std::function<bool()>& predicate) {
  const auto deadline = std::chrono::steady_clock::now() + under_test_.patience;
  while (!predicate()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "in vain: " << what;
    std::this_thread::sleep_for(kLook);
  }
}

std::vector<LaunchLogLine> LauncherConformance::Lines(const std::string& id) {
  std::vector<LaunchLogLine> lines;
  std::uint64_t offset = 0;
  for (;;) {
    auto page = launcher().ReadLog(id, offset, 1u << 16);
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    if (!page.ok() || page->next == offset) return lines;
    offset = page->next;
    for (LaunchLogLine& line : page->lines) lines.push_back(std::move(line));
  }
}

std::vector<std::string> LauncherConformance::Texts(const std::string& id, bool from_stderr) {
  std::vector<std::string> texts;
  for (const LaunchLogLine& line : Lines(id)) {
    if (line.from_stderr == from_stderr && line.rank >= 0) texts.push_back(line.text);
  }
  return texts;
}

void LauncherConformance::UntilLine(const std::string& id, const std::string& text) {
  Until("line " + text, [&] {
    for (const LaunchLogLine& line : Lines(id)) {
      if (line.text == text) return true;
    }
    return false;
  });
}

std::size_t LauncherConformance::Living() const {
  return ProcessesWith(kMarkVariable, mark_).size();
}

TEST_P(LauncherConformance, RunsACommandAndSaysThatItSucceeded) {
  Open();
  Submit(Script("a", "echo hello; echo trouble >&2"));
  const LaunchInfo info = End("a");
  EXPECT_TRUE(info.exit->succeeded()) << info.exit->message;
  EXPECT_FALSE(info.exit->stopped);
  EXPECT_GT(info.exit->time, 0);
  EXPECT_GE(info.exit->time, info.started);
  EXPECT_THAT(Texts("a"), ElementsAre("hello"));
  EXPECT_THAT(Texts("a", true), ElementsAre("trouble"));
}

TEST_P(LauncherConformance, GivesEnvironmentAndWorkingDirectory) {
  Open();
  LaunchSpec spec = Script("a",
                           "echo \"$GREETING|$CAIRN_LAUNCH_ID|$CAIRN_RANK/$CAIRN_WORLD_SIZE|"
                           "$CAIRN_LOCAL_RANK/$CAIRN_LOCAL_SIZE|$HOME\"; pwd");
  spec.env["GREETING"] = "two words = \"one\"";
  spec.env["PATH"] = "/usr/bin:/bin";
  spec.inherit_env = false;
  spec.cwd = "/usr";
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_THAT(Texts("a"), ElementsAre("two words = \"one\"|a|0/1|0/1|", "/usr"));
}

TEST_P(LauncherConformance, FindsTheProgramOnThePathOfTheLaunch) {
  Open();
  LaunchSpec spec = Script("a", "");
  spec.argv = {"echo", "found"};
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_THAT(Texts("a"), ElementsAre("found"));
}

TEST_P(LauncherConformance, TellsTheExitCode) {
  Open();
  Submit(Script("a", "exit 7"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kExited);
  EXPECT_EQ(info.exit->code, 7);
  EXPECT_EQ(info.exit->rank, 0);
  EXPECT_FALSE(info.exit->succeeded());
}

TEST_P(LauncherConformance, TellsTheSignalItDiedOf) {
  Open();
  Submit(Script("a", "kill -SEGV $$"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kSignaled);
  EXPECT_EQ(info.exit->signal, SIGSEGV);
}

TEST_P(LauncherConformance, ACommandThatCannotStartEndsWithTheReason) {
  Open();
  LaunchSpec missing = Script("missing", "");
  missing.argv = {"/no/such/program"};
  LaunchSpec nowhere = Script("nowhere", "true");
  nowhere.cwd = "/no/such/directory";
  Submit(missing);
  Submit(nowhere);
  EXPECT_EQ(End("missing").exit->kind, ExitKind::kNotStarted);
  EXPECT_THAT(End("missing").exit->message, HasSubstr("/no/such/program"));
  EXPECT_EQ(End("nowhere").exit->kind, ExitKind::kNotStarted);
  EXPECT_THAT(End("nowhere").exit->message, HasSubstr("/no/such/directory"));
}

TEST_P(LauncherConformance, RefusesWhatNoLauncherCanDo) {
  Open();
  LaunchSpec spec = Script("../up", "true");
  EXPECT_EQ(launcher().Submit(spec).code(), Code::kInvalidArgument);
  spec.id = "a";
  spec.argv.clear();
  EXPECT_EQ(launcher().Submit(spec).code(), Code::kInvalidArgument);
  spec = Script("a", "true");
  spec.processes = 0;
  EXPECT_EQ(launcher().Submit(spec).code(), Code::kInvalidArgument);
  spec.processes = 1;
  spec.env["A=B"] = "c";
  EXPECT_EQ(launcher().Submit(spec).code(), Code::kInvalidArgument);
  spec = Script("a", "true");
  spec.slots = under_test_.slots + 1;
  EXPECT_EQ(launcher().Submit(spec).code(), Code::kResourceExhausted);
  EXPECT_EQ(launcher().Get("a").status().code(), Code::kNotFound);
  EXPECT_EQ(launcher().Stop("a", {}).code(), Code::kNotFound);
  EXPECT_EQ(launcher().Signal("a", SIGTERM).code(), Code::kNotFound);
  EXPECT_EQ(launcher().Signal("a", 0).code(), Code::kInvalidArgument);
}

TEST_P(LauncherConformance, ManyThatEndAtOnceAreAllSeen) {
  Open();
  for (int i = 0; i < 40; ++i) {
    LaunchSpec spec = Script("fast" + std::to_string(i), "");
    spec.argv = {"true"};
    spec.slots = 0;
    Submit(spec);
  }
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(End("fast" + std::to_string(i)).exit->succeeded());
  EXPECT_THAT(*launcher().List(), SizeIs(40));
}

TEST_P(LauncherConformance, KeepsEveryLineOfMuchOutputInOrder) {
  Open();
  Submit(Script("a", "seq 1 200000"));
  EXPECT_TRUE(End("a").exit->succeeded());
  const std::vector<std::string> texts = Texts("a");
  ASSERT_THAT(texts, SizeIs(200000));
  for (std::size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(texts[i], std::to_string(i + 1));
}

TEST_P(LauncherConformance, KeepsALineWithoutNewlineAndLinesOfAnyLength) {
  Open();
  Submit(
      Script("a", "head -c 100000 /dev/zero | tr '\\0' x; echo; printf 'a\\rb\\377c'; printf end"));
  EXPECT_TRUE(End("a").exit->succeeded());
  std::string whole;
  const std::vector<LaunchLogLine> lines = Lines("a");
  for (const LaunchLogLine& line : lines) {
    whole += line.text;
    if (!line.unfinished) whole += '\n';
  }
  EXPECT_EQ(whole, std::string(100000, 'x') + "\na\rb\377cend");
  EXPECT_TRUE(lines.back().unfinished);
}

TEST_P(LauncherConformance, PagesOfTheLogFitTogether) {
  Open();
  Submit(Script("a", "seq 1 30000"));
  std::uint64_t offset = 0;
  int count = 0;
  bool end = false;
  Until("the whole log", [&] {
    auto page = launcher().ReadLog("a", offset, 100);
    EXPECT_TRUE(page.ok());
    for (const LaunchLogLine& line : page->lines) EXPECT_EQ(line.text, std::to_string(++count));
    offset = page->next;
    end = page->end;
    return end;
  });
  EXPECT_EQ(count, 30000);
}

TEST_P(LauncherConformance, SignalsReachTheRankAndNotItsChildren) {
  Open();
  // The child would die of SIGUSR1; its end is waited for and told.
  Submit(
      Script("a",
             "trap 'got=1' USR1; (while [ ! -e /proc/$$/gone ]; do sleep 0.05; done) & child=$!; "
             "echo ready; while [ -z \"$got\" ]; do sleep 0.05; done; "
             "kill -0 $child && echo child lives; kill $child; exit 5"));
  UntilLine("a", "ready");
  ASSERT_TRUE(launcher().Signal("a", SIGUSR1).ok());
  EXPECT_EQ(End("a").exit->code, 5);
  EXPECT_THAT(Texts("a"), ElementsAre("ready", "child lives"));
  EXPECT_TRUE(launcher().Signal("a", SIGUSR1).ok()) << "nobody is there to be told";
}

TEST_P(LauncherConformance, StopLetsItEndByItself) {
  Open();
  Submit(Script("a", "trap 'echo saving; exit 4' TERM; echo ready; while :; do sleep 0.05; done"));
  UntilLine("a", "ready");
  ASSERT_TRUE(launcher().Stop("a", std::chrono::seconds(20)).ok());
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->code, 4);
  EXPECT_TRUE(info.exit->stopped);
  EXPECT_THAT(Texts("a"), ElementsAre("ready", "saving"));
  EXPECT_TRUE(launcher().Stop("a", {}).ok());
}

TEST_P(LauncherConformance, StopKillsWhatDoesNotEndByItself) {
  Open();
  Submit(Script("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done"));
  UntilLine("a", "ready");
  ASSERT_TRUE(launcher().Stop("a", std::chrono::milliseconds(100)).ok());
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kSignaled);
  EXPECT_EQ(info.exit->signal, SIGKILL);
  EXPECT_TRUE(info.exit->stopped);
}

TEST_P(LauncherConformance, AShorterGraceCounts) {
  Open();
  Submit(Script("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done"));
  UntilLine("a", "ready");
  ASSERT_TRUE(launcher().Stop("a", std::chrono::hours(1)).ok());
  ASSERT_TRUE(launcher().Kill("a").ok());
  EXPECT_EQ(End("a").exit->signal, SIGKILL);
}

TEST_P(LauncherConformance, AStopRightAfterTheSubmissionIsNotLost) {
  Open();
  for (int i = 0; i < 5; ++i) {
    const std::string id = "a" + std::to_string(i);
    LaunchSpec spec = Script(id, "while :; do sleep 1; done");
    spec.slots = 0;
    Submit(spec);
    ASSERT_TRUE(launcher().Kill(id).ok());
    EXPECT_TRUE(End(id).exit->stopped);
  }
}

TEST_P(LauncherConformance, NothingIsLeftOfALaunchThatEnded) {
  Open();
  // A child in the background, one in a session of its own, and a daemon whose parent is gone.
  Submit(Script("a",
                "sleep 1000 & setsid sleep 1000 & "
                "setsid sh -c '(trap \"\" TERM HUP; echo daemon; sleep 1000) &' ; sleep 0.1; "
                "echo ready"));
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_THAT(Texts("a"), Contains("ready"));
  EXPECT_EQ(Living(), 0u);
}

TEST_P(LauncherConformance, TimeIsOver) {
  Open();
  LaunchSpec spec = Script("a", "while :; do sleep 0.05; done");
  spec.limits.wall_time = std::chrono::milliseconds(300);
  spec.grace = std::chrono::milliseconds(100);
  Submit(spec);
  const LaunchInfo ended = End("a");
  EXPECT_EQ(ended.exit->kind, ExitKind::kTimeLimit);
  EXPECT_THAT(ended.exit->message, HasSubstr("its time was over"));
  EXPECT_EQ(Living(), 0u);
}

TEST_P(LauncherConformance, TimesWithoutEndAreNotOver) {
  constexpr auto kNever = std::chrono::nanoseconds::max();
  Open();
  LaunchSpec spec = Script("a", "sleep 0.2; echo done");
  spec.limits.wall_time = spec.grace = kNever;
  Submit(spec);
  const auto info = launcher_->Wait("a", kNever);
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_TRUE(info->exit->succeeded()) << info->exit->message;
  EXPECT_THAT(Texts("a"), ElementsAre("done"));
  Submit(Script("b", "trap 'exit 0' TERM; while :; do sleep 0.05; done"));
  EXPECT_TRUE(launcher_->Close(Launcher::CloseMode::kStopAll, kNever).ok());
  EXPECT_EQ(Living(), 0u);
}

TEST_P(LauncherConformance, LimitsHoldForEachProcess) {
  Open();
  LaunchSpec spec = Script("a", "ulimit -n; ulimit -c; nice");
  spec.limits.open_files = 77;
  spec.limits.nice = 3;
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  const std::vector<std::string> texts = Texts("a");
  ASSERT_THAT(texts, SizeIs(3));
  EXPECT_EQ(texts[0], "77");
  EXPECT_EQ(texts[1], "0");
  // Added to the launcher's own, which may be below 0 here.
  EXPECT_GE(std::stoi(texts[2]), std::min(0, getpriority(PRIO_PROCESS, 0)) + 3);
}

TEST_P(LauncherConformance, ALogThatIsFullEndsWithTheNumberOfDroppedLines) {
  Open();
  LaunchSpec spec = Script("a", "seq 1 10000");
  spec.limits.log_bytes = 4000;
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  const std::vector<LaunchLogLine> lines = Lines("a");
  ASSERT_GT(lines.size(), 10u);
  EXPECT_EQ(lines.back().rank, -1);
  EXPECT_THAT(lines.back().text,
              HasSubstr(std::to_string(10000 - (lines.size() - 1)) + " lines were dropped"));
}

TEST_P(LauncherConformance, SlotsAreSharedByPriorityThenInOrder) {
  Open();
  LaunchSpec all = Script("all", "echo ready; while :; do sleep 0.05; done");
  all.slots = under_test_.slots;
  Submit(all);
  UntilLine("all", "ready");
  const auto next = [&](const std::string& id, int priority) {
    LaunchSpec spec = Script(id, "date +%s%N; sleep 0.1");
    spec.slots = under_test_.slots;
    spec.priority = priority;
    Submit(spec);
  };
  next("first", 0);
  next("second", 0);
  next("urgent", 5);
  LaunchSpec beside = Script("beside", "true");
  beside.slots = 0;
  Submit(beside);
  EXPECT_TRUE(End("beside").exit->succeeded()) << "it takes no slot and waits for none";
  EXPECT_EQ(launcher().Get("urgent")->state, LaunchState::kQueued);
  EXPECT_THAT(launcher().Get("urgent")->reason, HasSubstr("slot"));
  EXPECT_THAT(launcher().Get("first")->reason, HasSubstr("behind"));
  ASSERT_TRUE(launcher().Kill("all").ok());
  const auto began = [&](const std::string& id) {
    EXPECT_TRUE(End(id).exit->succeeded());
    return std::stoll(Texts(id).at(0));
  };
  EXPECT_LT(began("urgent"), began("first"));
  EXPECT_LT(began("first"), began("second"));
}

TEST_P(LauncherConformance, LaunchesAtTheSameTimeHaveDifferentSlots) {
  if (under_test_.slots < 2) FAIL() << "the suite wants a launcher with two slots";
  Open();
  Submit(Script("a", "echo $CAIRN_SLOTS; while :; do sleep 0.05; done"));
  Submit(Script("b", "echo $CAIRN_SLOTS; while :; do sleep 0.05; done"));
  Until("both run", [&] { return !Texts("a").empty() && !Texts("b").empty(); });
  EXPECT_NE(Texts("a"), Texts("b"));
  EXPECT_EQ(launcher().Get("a")->slot_ids, Texts("a")[0]);
}

TEST_P(LauncherConformance, AStoppedLaunchLeavesTheQueue) {
  Open();
  LaunchSpec all = Script("all", "while :; do sleep 0.05; done");
  all.slots = under_test_.slots;
  Submit(all);
  Submit(Script("waits", "echo no"));
  ASSERT_TRUE(launcher().Stop("waits", std::chrono::seconds(5)).ok());
  const LaunchInfo info = End("waits");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_TRUE(info.exit->stopped);
  EXPECT_THAT(Texts("waits"), IsEmpty());
}

TEST_P(LauncherConformance, TheListenerIsToldOfStartAndEnd) {
  std::mutex mu;
  std::vector<std::string> told;
  Open([&](const LaunchInfo& info) {
    const std::lock_guard<std::mutex> lock(mu);
    told.push_back(info.id + (info.state == LaunchState::kRunning ? " runs" : " ended"));
  });
  Submit(Script("a", "while :; do sleep 0.05; done"));
  Until("a runs", [&] {
    const std::lock_guard<std::mutex> lock(mu);
    return !told.empty();
  });
  EXPECT_THAT(launcher().Get("a")->pids, SizeIs(1));
  ASSERT_TRUE(launcher().Kill("a").ok());
  Until("a ended", [&] {
    const std::lock_guard<std::mutex> lock(mu);
    return told.size() == 2;
  });
  EXPECT_THAT(told, ElementsAre("a runs", "a ended"));
}

TEST_P(LauncherConformance, WaitGivesUpInTime) {
  Open();
  Submit(Script("a", "while :; do sleep 0.05; done"));
  EXPECT_EQ(launcher().Wait("a", std::chrono::milliseconds(50)).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(launcher().Wait("b", std::chrono::milliseconds(50)).status().code(), Code::kNotFound);
}

}  // namespace cairn

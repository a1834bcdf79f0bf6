// Launches over several nodes, without a cluster: a stand-in for srun starts the shims of other
// nodes on this machine. The same on a real Slurm: slurm_launcher_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/ids.h"
#include "launch/launch_directory.h"
#include "launch/launcher_fixture.h"
#include "launch/local_launcher.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using ::testing::UnorderedElementsAre;

class SeveralNodesTest : public LauncherFixture {
 protected:
  void SetUp() override {
    const auto programs = temp_.path() / "programs";
    std::filesystem::create_directory(programs);
    std::ofstream(programs / "srun")
        << "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\"\n";
    std::filesystem::permissions(programs / "srun", std::filesystem::perms::owner_all);
    path_ = programs.string() + ":/usr/bin:/bin";
    Use(OpenLocalLauncher({.directory = (temp_.path() / "launches").string(), .slots = 4}));
  }

  /// Starts the shim of the first of two nodes, as a job's script would.
  void Start(const std::string& text, int processes = 2) {
    LaunchRecord record;
    record.id = "a";
    record.key = IdSource::System()->NewUuid();
    record.argv = {"/bin/sh", "-c", text};
    record.processes = processes;
    record.grace = std::chrono::nanoseconds(5s).count();
    record.job = "a.1";
    record.nodes = 2;
    record.starter = starter_;
    const Status made =
        At().CreateShared(record, {"PATH=/usr/bin:/bin", "CAIRN_TEST_MARK=" + mark_});
    ASSERT_TRUE(made.ok()) << made.ToString();
    LaunchSpec shim = Script("shim", "");
    shim.argv = {*FindShim(""), At().path(), "remote:" + record.key};
    shim.env["PATH"] = path_;
    Submit(shim);
  }

  LaunchExit Ended() {
    End("shim");
    auto exit = At().ReadExit();
    EXPECT_TRUE(exit.ok()) << exit.status().ToString();
    return exit.ok() ? *exit : LaunchExit{};
  }

  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    const auto page = At().ReadLog(0, 1u << 20, true);
    for (const LaunchLogLine& line : page->lines) {
      if (line.rank >= 0) texts.push_back(line.text);
    }
    return texts;
  }

  void Tell(const ControlCommand& command) const {
    const std::string line = EncodeCommand(command);
    const auto commands = At().OpenCommands();
    ASSERT_EQ(write(commands->get(), line.data(), line.size()), std::ssize(line));
  }

  /// The shim of the second node.
  pid_t Second() const {
    for (const pid_t pid : ProcessesWith("CAIRN_TEST_MARK", mark_)) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      std::stringstream words;
      words << file.rdbuf();
      if (words.str().find("node:") != std::string::npos) return pid;
    }
    return 0;
  }

  LaunchDirectory At() const { return LaunchDirectory((temp_.path() / "a").string()); }

  std::string path_;
  std::vector<std::string> starter_;
};

TEST_F(SeveralNodesTest, TheFirstShimWritesDownWhatAllRanksSay) {
  Start("echo $CAIRN_RANK/$CAIRN_WORLD_SIZE $CAIRN_LOCAL_RANK $CAIRN_NODE/$CAIRN_NODES", 4);
  const LaunchExit exit = Ended();
  EXPECT_TRUE(exit.succeeded()) << exit.message;
  EXPECT_THAT(Texts(), UnorderedElementsAre("0/4 0 0/2", "1/4 1 0/2", "2/4 0 1/2", "3/4 1 1/2"));
  EXPECT_THAT(At().ReadRunning()->pids, ::testing::SizeIs(4));
}

/// A program that starts the shims of all nodes, here two, and says what both say.
class StarterTest : public SeveralNodesTest {
 protected:
  void StartBy(const std::string& program, const std::string& text) {
    const auto path = temp_.path() / "starter";
    std::ofstream(path) << "#!/bin/sh\n" << program;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    starter_ = {path.string(), "a word of its own"};
    Start(text);
  }
};

TEST_F(StarterTest, StartsAllNodesAndTheKeeperHasNoRanks) {
  StartBy(
      "[ \"$1 $5 $6\" = \"a word of its own 2 1\" ] || exit 9\n"
      "for node in 0 1; do \"$2\" \"$3\" node:$4:$node; done | grep -v '^@[rd]'\n"
      "echo @running; echo @done\n",
      "echo $CAIRN_RANK/$CAIRN_WORLD_SIZE $CAIRN_NODE/$CAIRN_NODES");
  const LaunchExit exit = Ended();
  EXPECT_TRUE(exit.succeeded()) << exit.message;
  EXPECT_THAT(Texts(), UnorderedElementsAre("0/2 0/2", "1/2 1/2"));
}

TEST_F(StarterTest, SaysWhatCouldNotBeStarted) {
  StartBy("echo '@failed no nodes are free'; exit 1", "true");
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.kind, ExitKind::kNotStarted);
  EXPECT_EQ(exit.message, "no nodes are free");
}

TEST_F(StarterTest, TellsOfANodeThatIsGone) {
  StartBy("echo @running; echo '@lost 1 the cable was pulled'; read command; echo @done", "true");
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.kind, ExitKind::kLost);
  EXPECT_FALSE(exit.stopped);
  EXPECT_EQ(exit.rank, 1);
  EXPECT_EQ(exit.message, "the cable was pulled");
}

TEST_F(StarterTest, TellsOfANodeThatWasTakenAway) {
  StartBy("echo @running; echo '@lost 1 gone'; read command; echo @vanished", "true");
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.kind, ExitKind::kLost);
  EXPECT_TRUE(exit.stopped) << "nobody's failure";
}

TEST_F(StarterTest, ThatEndsWithoutAWordIsAllNodesLost) {
  StartBy("echo trouble >&2; exit 3", "true");
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.kind, ExitKind::kLost);
  EXPECT_THAT(exit.message, ::testing::HasSubstr("ended with code 3: trouble"));
}

TEST_F(SeveralNodesTest, LongLinesComeWhole) {
  Start("[ $CAIRN_NODE = 0 ] || { head -c 40000 /dev/zero | tr '\\0' x; echo; }");
  EXPECT_TRUE(Ended().succeeded());
  std::string whole;
  for (const std::string& text : Texts()) whole += text;
  EXPECT_EQ(whole, std::string(40000, 'x'));
}

TEST_F(SeveralNodesTest, ARankThatFailsElsewhereEndsAll) {
  Start("[ $CAIRN_RANK = 1 ] && exit 7; trap 'exit 0' TERM; while :; do sleep 0.02; done");
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.code, 7) << exit.message;
  EXPECT_EQ(exit.rank, 1);
}

TEST_F(SeveralNodesTest, ANodeThatIsLostEndsAll) {
  Start("echo ready; while :; do sleep 0.02; done");
  Until("both run", [&] { return Texts().size() == 2; });
  ASSERT_GT(Second(), 1);
  ASSERT_EQ(::kill(Second(), SIGKILL), 0);
  const LaunchExit exit = Ended();
  EXPECT_EQ(exit.kind, ExitKind::kLost) << exit.message;
  EXPECT_EQ(exit.rank, 1);
  Until("nothing is left", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
}

TEST_F(SeveralNodesTest, TheFirstNodesDeathIsTheOthersEnd) {
  Start("trap '' TERM; echo ready; while :; do sleep 0.02; done");
  Until("both run", [&] { return Texts().size() == 2; });
  const auto keeper = At().ReadKeeper();
  ASSERT_TRUE(keeper.ok());
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGKILL), 0);
  Until("nothing is left", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
}

TEST_F(SeveralNodesTest, AStopReachesAllRanks) {
  Start("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done");
  Until("both run", [&] { return Texts().size() == 2; });
  Tell({.kind = ControlCommand::Kind::kStop, .grace = std::chrono::nanoseconds(20s).count()});
  const LaunchExit exit = Ended();
  EXPECT_TRUE(exit.succeeded()) << exit.message;
  EXPECT_TRUE(exit.stopped);
  EXPECT_THAT(Texts(), UnorderedElementsAre("ready", "ready", "saved", "saved"));
}

}  // namespace
}  // namespace cairn

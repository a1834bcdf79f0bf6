// What goes wrong around jobs: nodes taken back, cancelled jobs, killed daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "launch/launch_directory.h"
#include "launch/slurm_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class SlurmFaultTest : public SlurmLauncherTest {};

TEST_F(SlurmFaultTest, ARankIsToldBeforeItsNodeIsTakenByAnUrgentJob) {
  TestSlurm::Get().UntilIdle();
  Open();
  LaunchSpec spec = Script("a",
                           "trap 'echo saving; exit 5' TERM; echo ready; "
                           "while :; do sleep 0.05; done");
  spec.resources = {{"partition", "low"}, {"extra", "--exclusive --nodelist=n1"}};
  Submit(spec);
  UntilSaid("a");
  TestSlurm::Get().Shell("sbatch -p high --exclusive --nodelist=n1 -o /dev/null --wrap 'sleep 1'");
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kExited);
  EXPECT_EQ(info.exit->code, 5);
  EXPECT_TRUE(info.exit->stopped) << "nobody's failure";
}

TEST_F(SlurmFaultTest, AJobThatIsCancelledByOthersHasEndedThroughNoFaultOfItsOwn) {
  Open();
  Submit(Script("a", "echo ready; while :; do sleep 0.05; done"));
  UntilSaid("a");
  TestSlurm::Get().Shell("scancel --me");
  const LaunchInfo info = End("a");
  EXPECT_TRUE(info.exit->stopped);
  EXPECT_FALSE(info.exit->succeeded());
}

TEST_F(SlurmFaultTest, AJobThatIsRequeuedByForceEndsAndIsTakenOutOfTheQueue) {
  TestSlurm::Get().UntilIdle();
  Open();
  Submit(Script("saves", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"));
  Submit(Script("stays", "trap '' TERM; echo ready; while :; do sleep 0.05; done"));
  UntilSaid("saves");
  UntilSaid("stays");
  std::string jobs = TestSlurm::Get().Shell("squeue -h -r -o %i | paste -sd,");
  jobs.pop_back();
  TestSlurm::Get().Shell(
      "for job in $(squeue -h -r -o %i); do"
      " scontrol update JobId=$job Requeue=1; scontrol requeue $job; done");
  const LaunchInfo saves = End("saves");
  EXPECT_EQ(saves.exit->kind, ExitKind::kExited) << saves.exit->message;
  EXPECT_EQ(saves.exit->code, 5);
  EXPECT_TRUE(saves.exit->stopped) << "nobody's failure";
  const LaunchInfo stays = End("stays");
  EXPECT_NE(stays.exit->kind, ExitKind::kExited) << stays.exit->message;
  EXPECT_TRUE(stays.exit->stopped) << "nobody's failure";
  Until("its ranks are gone", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
  // While anything is followed, what is in the queue for nothing is seen.
  Submit(Script("next", "echo ready; while :; do sleep 0.05; done"));
  UntilSaid("next");
  // Not that they began, found nothing to do, and ended.
  Until("the old jobs are cancelled", [&] {
    return TestSlurm::Get().Shell("squeue -h -r -t all -o %T -j " + jobs) ==
           "CANCELLED\nCANCELLED\n";
  });
}

TEST_F(SlurmFaultTest, AProgramOfSlurmsThatHangsEndsNothing) {
  // Longer than a shim waits for a sign of its owner.
  const std::string hang = (temp_.path() / "hang").string();
  const std::string hangs = (temp_.path() / "hangs").string();
  Intercept("if [ $name = squeue ] && rm " + hang + " 2> /dev/null; then touch " + hangs +
                "; sleep 8; fi",
            "");
  Open();
  LaunchSpec spec = Script("a", "echo ready; while :; do sleep 0.05; done");
  spec.outlive_owner = false;
  Submit(spec);
  UntilSaid("a");
  std::ofstream(hang).close();
  Until("squeue hangs", [&] { return std::filesystem::exists(hangs); });
  const auto asked = CountCalls("squeue");
  Until("squeue is asked again", [&] { return CountCalls("squeue") > asked; });
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kRunning);
}

TEST_F(SlurmFaultTest, AShimThatIsKilledIsALaunchThatIsLost) {
  Open();
  Submit(Script("a", "echo ready; while :; do sleep 0.05; done"));
  UntilSaid("a");
  const auto keeper = LaunchDirectory(options_.directory + "/a").ReadKeeper();
  ASSERT_TRUE(keeper.ok());
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGKILL), 0);
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost);
  EXPECT_FALSE(info.exit->stopped) << "it counts as a failure: it may well be one";
  Until("its ranks are gone", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
}

TEST_F(SlurmFaultTest, ALaunchOverTwoNodesEndsWhenOneOfThemIsLost) {
  TestSlurm::Get().UntilIdle();
  Open();
  LaunchSpec spec = Script("a", "echo $CAIRN_NODE; while :; do sleep 0.05; done");
  spec.processes = 2;
  spec.resources["nodes"] = "2";
  Submit(spec);
  Until("both run", [&] { return launcher_->ReadLog("a", 0)->lines.size() >= 2; });
  // Its shim there, with all that it keeps: what a node that fails looks like to the first one.
  const std::string shims = TestSlurm::Get().Shell("pgrep -f '" + options_.directory + "/a node:'");
  int killed = 0;
  std::istringstream pids(shims);
  for (pid_t pid = 0; pids >> pid;) killed += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
  ASSERT_GE(killed, 1) << shims;
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost) << info.exit->message;
  EXPECT_EQ(info.exit->rank, 1);
  Until("its ranks are gone", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
}

TEST_F(SlurmFaultTest, AControllerThatIsAwayIsWaitedFor) {
  // A step that cannot say that it ended is killed after a minute, and its node closed.
  TestSlurm::Get().UntilIdle();
  Open();
  const std::string leave = (temp_.path() / "leave").string();
  Submit(Script("before", "echo ready; while [ ! -e " + leave + " ]; do sleep 0.05; done"));
  UntilSaid("before");
  // A controller that forgot the job would give its number to the next one, and Slurm would close
  // the node over that: wait until it has written the job down, which it does within seconds.
  const auto said = std::filesystem::file_time_type::clock::now();
  TestSlurm::Get().Shell(
      "for job in $(squeue -h -o %i); do scontrol update JobId=$job Comment=saved; done");
  Until("the controller has saved its state", [&] {
    std::error_code error;
    const auto saved =
        std::filesystem::last_write_time(TestSlurm::Get().directory() + "/state/job_state", error);
    return !error && saved > said;
  });
  TestSlurm::Get().KillDaemon("slurmctld");
  Submit(Script("during", "echo during"));
  Until("it says so", [&] {
    return launcher_->Get("during")->reason.find("Slurm does not answer") != std::string::npos;
  });
  std::ofstream(leave).close();
  EXPECT_TRUE(End("before").exit->succeeded()) << "what runs needs no controller";
  EXPECT_EQ(launcher_->Get("during")->state, LaunchState::kQueued);
  TestSlurm::Get().StartDaemon("slurmctld");
  EXPECT_TRUE(End("during").exit->succeeded());
  EXPECT_EQ(launcher_->ReadLog("during", 0)->lines.size(), 1u) << "once";
}

TEST_F(SlurmFaultTest, ANodeThatVanishesIsNoticedAndWhatLivesOnItEnds) {
  TestSlurm::Get().UntilIdle();
  Open();
  LaunchSpec spec = Script("a", "echo ready; while :; do sleep 0.05; done");
  spec.resources["extra"] = "--nodelist=n2";
  Submit(spec);
  UntilSaid("a");
  TestSlurm::Get().KillDaemon("slurmd.n2");
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost) << info.exit->message;
  EXPECT_TRUE(info.exit->stopped);
  EXPECT_THAT(info.exit->message, HasSubstr("NODE_FAIL"));
  Until("its ranks are gone", [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
  Submit(Script("b", "hostname"));  // elsewhere
  EXPECT_TRUE(End("b").exit->succeeded());
  TestSlurm::Get().StartDaemon("slurmd.n2");
  TestSlurm::Get().UntilIdle();
}

}  // namespace
}  // namespace cairn

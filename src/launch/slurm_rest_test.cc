// The launcher on a real Slurm that it speaks to through slurmrestd: the same conformance suite.
#include "launch/slurm_rest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "launch/conformance.h"
#include "launch/slurm_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

template <int kNodes>
LauncherUnderTest MakeSlurmByRest() {
  // Started here: launchers are also opened in processes that are killed.
  const std::string rest = TestSlurm::Get().Rest();
  return ClusterUnderTest<SlurmLauncherOptions>(
      OpenSlurmLauncher, 30s,
      [rest](const std::filesystem::path& directory) {
        SlurmLauncherOptions options = SlurmOptionsAt(directory);
        options.rest = rest;
        return options;
      },
      kNodes);
}

const auto kRest = ::testing::Values(LauncherFactory{"Rest", MakeSlurmByRest<1>});
INSTANTIATE_TEST_SUITE_P(SlurmRest, LauncherConformance, kRest, LauncherConformance::Name);
INSTANTIATE_TEST_SUITE_P(SlurmRest, LauncherOwnerConformance, kRest,
                         LauncherOwnerConformance::Name);
INSTANTIATE_TEST_SUITE_P(SlurmRest, LauncherRanksConformance,
                         ::testing::Values(LauncherFactory{"Rest", MakeSlurmByRest<1>},
                                           LauncherFactory{"TwoNodes", MakeSlurmByRest<2>}),
                         LauncherRanksConformance::Name);

class SlurmByRestTest : public SlurmLauncherTest {
 protected:
  void SetUp() override {
    SlurmLauncherTest::SetUp();
    options_.rest = TestSlurm::Get().Rest();
  }

  static constexpr char kSaves[] =
      "trap 'echo saving; exit 5' TERM; echo ready; while :; do sleep 0.05; done";

  /// It was told, ended by itself, and nobody calls it a failure.
  void ExpectSaved(const LaunchInfo& info) {
    EXPECT_EQ(info.exit->kind, ExitKind::kExited) << info.exit->message;
    EXPECT_EQ(info.exit->code, 5) << info.exit->message;
    EXPECT_TRUE(info.exit->stopped);
  }
};

TEST_F(SlurmByRestTest, NamesWhatIsWrongWithTheAddress) {
  options_.rest = "unix:/no/slurm.sock";
  EXPECT_THAT(OpenSlurmLauncher(options_).status().ToString(), HasSubstr("/no/slurm.sock"));
  options_.rest = "localhost:6820";
  EXPECT_THAT(OpenSlurmLauncher(options_).status().ToString(), HasSubstr("localhost:6820"));
}

TEST_F(SlurmByRestTest, ShowsATokenToASlurmrestdThatWantsOne) {
  options_.rest = TestSlurm::Get().RestWithTokens();
  EXPECT_THAT(OpenSlurmLauncher(options_).status().ToString(), HasSubstr("CAIRN_SLURM_JWT_FILE"));
  const std::string file = (temp_.path() / "token").string();
  setenv("CAIRN_SLURM_JWT_FILE", file.c_str(), 1);
  EXPECT_THAT(OpenSlurmLauncher(options_).status().ToString(), HasSubstr(file));
  std::ofstream(file) << "wrong\n";
  EXPECT_THAT(OpenSlurmLauncher(options_).status().ToString(), HasSubstr("is the token good?"));
  std::ofstream(file) << TestSlurm::Get().Shell("scontrol token lifespan=600");
  Open();
  Submit(Script("a", "env | grep -c ^SLURM_JWT=; echo seen"));
  EXPECT_TRUE(End("a").exit->succeeded()) << End("a").exit->message;
  EXPECT_EQ(launcher_->ReadLog("a", 0)->lines.at(0).text, "0") << "it is not the job's";
  // A token that has run out is not the end of a launch: somebody writes another one.
  std::ofstream(file) << "old\n";
  Submit(Script("b", "true"));
  Until("it says so", [&] {
    return launcher_->Get("b")->reason.find("Slurm does not answer") != std::string::npos;
  });
  std::ofstream(file) << TestSlurm::Get().Shell("scontrol token lifespan=600");
  EXPECT_TRUE(End("b").exit->succeeded());
  unsetenv("CAIRN_SLURM_JWT_FILE");
}

TEST_F(SlurmByRestTest, WhatSlurmRefusesEndsWithSlurmsWords) {
  Open();
  LaunchSpec spec = Script("a", "true");
  spec.resources["partition"] = "nowhere";
  Submit(spec);
  EXPECT_THAT(End("a").exit->message, HasSubstr("nvalid partition"));
  spec = Script("b", "true");
  spec.resources["extra"] = "--no-such-flag=1";
  Submit(spec);
  const LaunchInfo info = End("b");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_THAT(info.exit->message, HasSubstr("no_such_flag"));
}

TEST_F(SlurmByRestTest, ElementsOfAnArrayThatWaitLeaveTheQueueTogether) {
  Open();
  for (int i = 0; i < 12; ++i) {
    LaunchSpec spec = Script("t" + std::to_string(i), "true");
    spec.resources["extra"] = "--hold";
    Submit(spec);
  }
  Until("all wait in Slurm", [&] {
    for (const LaunchInfo& info : *launcher_->List()) {
      if (info.reason.find("JobHeldUser") == std::string::npos) return false;
    }
    return true;
  });
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(launcher_->Stop("t" + std::to_string(i), 30s).ok());
  for (int i = 0; i < 12; ++i) {
    const LaunchInfo info = End("t" + std::to_string(i));
    EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
    EXPECT_TRUE(info.exit->stopped);
  }
  EXPECT_EQ(TestSlurm::Get().Shell("squeue -h"), "");
}

TEST_F(SlurmByRestTest, ARankIsToldBeforeItsNodeIsTakenByAnUrgentJob) {
  TestSlurm::Get().UntilIdle();
  Open();
  LaunchSpec spec = Script("a", kSaves);
  spec.resources = {{"partition", "low"}, {"extra", "--exclusive --nodelist=n1"}};
  Submit(spec);
  UntilSaid("a");
  TestSlurm::Get().Shell("sbatch -p high --exclusive --nodelist=n1 -o /dev/null --wrap 'sleep 1'");
  ExpectSaved(End("a"));
}

TEST_F(SlurmByRestTest, ARankIsToldBeforeItsTimeIsOver) {
  Open();
  LaunchSpec spec = Script("a", kSaves);
  spec.resources = {{"time", "1"}, {"warning", "57"}};
  Submit(spec);
  UntilSaid("a");
  const LaunchInfo info = End("a");
  ExpectSaved(info);
  EXPECT_LT(info.exit->time - info.started, std::chrono::nanoseconds(30s).count());
}

TEST_F(SlurmByRestTest, WhatRunsGoesOnWithoutSlurmrestd) {
  Open();
  Submit(Script("a", "echo ready; sleep 1; echo done"));
  UntilSaid("a");
  TestSlurm::Get().KillDaemon("slurmrestd");
  EXPECT_TRUE(End("a").exit->succeeded());
  Submit(Script("b", "echo once"));
  Until("it says so", [&] {
    return launcher_->Get("b")->reason.find("Slurm does not answer") != std::string::npos;
  });
  TestSlurm::Get().StartDaemon("slurmrestd");
  EXPECT_TRUE(End("b").exit->succeeded());
  EXPECT_EQ(launcher_->ReadLog("b", 0)->lines.size(), 1u) << "once";
}

}  // namespace
}  // namespace cairn

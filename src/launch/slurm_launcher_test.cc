// The launcher on a real Slurm: the conformance suite, and what only a scheduler does.
#include "launch/slurm_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "launch/conformance.h"
#include "launch/slurm_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

template <int kNodes>
LauncherUnderTest MakeSlurm() {
  return ClusterUnderTest<SlurmLauncherOptions>(
      OpenSlurmLauncher, 30s,
      [](const std::filesystem::path& directory) { return SlurmOptionsAt(directory); }, kNodes);
}

const auto kSlurm = ::testing::Values(LauncherFactory{"Slurm", MakeSlurm<1>});
INSTANTIATE_TEST_SUITE_P(Slurm, LauncherConformance, kSlurm, LauncherConformance::Name);
INSTANTIATE_TEST_SUITE_P(Slurm, LauncherOwnerConformance, kSlurm, LauncherOwnerConformance::Name);
INSTANTIATE_TEST_SUITE_P(Slurm, LauncherRanksConformance,
                         ::testing::Values(LauncherFactory{"Slurm", MakeSlurm<1>},
                                           LauncherFactory{"TwoNodes", MakeSlurm<2>}),
                         LauncherRanksConformance::Name);

TEST_F(SlurmLauncherTest, NamesWhatIsMissing) {
  options_.programs = "/no/slurm";
  EXPECT_THAT(std::string(OpenSlurmLauncher(options_).status().message()),
              HasSubstr("/no/slurm/sbatch"));
}

TEST_F(SlurmLauncherTest, WhatSlurmRefusesEndsWithSlurmsWords) {
  Open();
  LaunchSpec spec = Script("a", "true");
  spec.resources["partition"] = "nowhere";
  Submit(spec);
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_FALSE(info.exit->stopped);
  EXPECT_THAT(info.exit->message, HasSubstr("nvalid partition"));
}

TEST_F(SlurmLauncherTest, RefusesResourcesThatItDoesNotKnow) {
  Open();
  LaunchSpec spec = Script("a", "true");
  spec.resources["partitoin"] = "low";
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("partitoin"));
  spec.resources = {{"nodes", "2"}};
  spec.processes = 3;
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("evenly"));
  spec.resources = {{"nodes", "two"}};
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("two"));
  spec.resources = {{"extra", "--mail-type=END --array=1-3"}};
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("--array"));
}

TEST_F(SlurmLauncherTest, EachRankHasWhatSlurmSaysOnItsNode) {
  Open();
  LaunchSpec spec = Script("a", "echo $CAIRN_NODE $SLURMD_NODENAME");
  spec.processes = 2;
  spec.resources["nodes"] = "2";
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_THAT(Texts("a"), ::testing::UnorderedElementsAre("0 n1", "1 n2"));
}

TEST_F(SlurmLauncherTest, WhatWaitsInSlurmSaysWhyAndCanBeStopped) {
  Open();
  LaunchSpec spec = Script("a", "true");
  spec.resources["extra"] = "--hold";
  Submit(spec);
  Until("Slurm says why",
        [&] { return launcher_->Get("a")->reason.find("JobHeldUser") != std::string::npos; });
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  ASSERT_TRUE(launcher_->Stop("a", 30s).ok());
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_TRUE(info.exit->stopped);
}

TEST_F(SlurmLauncherTest, WhatWaitsInSlurmSurvivesTheOwner) {
  Open();
  LaunchSpec spec = Script("a", "echo at last");
  spec.resources["extra"] = "--hold";
  Submit(spec);
  std::string job;
  Until("Slurm has it", [&] {
    const std::string reason = launcher_->Get("a")->reason;
    if (!reason.starts_with("job ")) return false;
    job = reason.substr(4, reason.find(' ', 4) - 4);
    return true;
  });
  launcher_.reset();
  Open();
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  TestSlurm::Get().Shell("scontrol release " + job);
  EXPECT_TRUE(End("a").exit->succeeded());
}

TEST_F(SlurmLauncherTest, ASubmissionWhoseAnswerWasLostIsNotMadeAgain) {
  Intercept(
      "",
      "[ $name = sbatch ] && { echo 'sbatch: error: Socket timed out on send/recv' >&2; code=1; }");
  Open();
  const auto counter = (temp_.path() / "starts").string();
  Submit(Script("a", "echo start >> " + counter));
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_EQ(CountCalls("sbatch"), 1);
  std::ifstream starts(counter);
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(starts), {}, '\n'), 1);
}

TEST_F(SlurmLauncherTest, ASubmissionThatDidNotGetThroughIsMadeAgain) {
  const auto tried = (temp_.path() / "tried").string();
  Intercept("[ $name = sbatch ] && [ ! -e " + tried + " ] && { touch " + tried +
                "; echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1; }",
            "");
  Open();
  Submit(Script("a", "true"));
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_EQ(CountCalls("sbatch"), 2);
}

TEST_F(SlurmLauncherTest, AnOwnerThatDiedBeforeSbatchLeavesNothing) {
  ExpectThatAnUnsubmittedLaunchIsForgotten();
}

TEST_F(SlurmLauncherTest, EqualLaunchesGoAsOneArrayAndAreFollowedWithFewCalls) {
  Intercept("", "");
  options_.calls_per_second = 2;
  options_.poll = 1s;
  Open();
  for (int i = 0; i < 60; ++i) {
    LaunchSpec spec = Script("t" + std::to_string(i), "echo $CAIRN_LAUNCH_ID");
    if (i > 0) spec.resources["extra"] = "--hold";  // the first is under way when these come
    Submit(spec);
  }
  EXPECT_TRUE(End("t0").exit->succeeded());
  Until("all wait in Slurm", [&] {
    for (const LaunchInfo& info : *launcher_->List()) {
      if (info.id != "t0" && info.reason.find("JobHeldUser") == std::string::npos) return false;
    }
    return true;
  });
  EXPECT_LE(CountCalls("sbatch"), 4) << "one for each kind, and whatever came while it was called";
  const auto before = CountCalls("squeue") + CountCalls("sbatch") + CountCalls("scancel");
  std::this_thread::sleep_for(3s);
  const auto calls = CountCalls("squeue") + CountCalls("sbatch") + CountCalls("scancel") - before;
  EXPECT_LE(calls, 7) << "in three seconds";
  EXPECT_GE(calls, 2);
  TestSlurm::Get().Shell("squeue -h -r --me -t PD -o %i | xargs scontrol release");
  for (int i = 1; i < 60; i += 20) {
    const std::string id = "t" + std::to_string(i);
    EXPECT_TRUE(End(id).exit->succeeded());
    EXPECT_EQ(launcher_->ReadLog(id, 0)->lines.at(0).text, id) << "each its own";
  }
}

}  // namespace
}  // namespace cairn

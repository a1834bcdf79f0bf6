// What goes wrong around jobs of Ray: jobs that others stop, killed processes, lost nodes and
// heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "launch/launch_directory.h"
#include "launch/ray_client.h"
#include "launch/ray_fixture.h"
#include "launch/ray_jobs.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr char kForEver[] = "echo ready; while :; do sleep 0.05; done";

class RayFaultTest : public RayLauncherTest {
 protected:
  /// The parent of a process.
  static pid_t ParentOf(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(stat), {}};
    return std::stoi(text.substr(text.rfind(')') + 4));
  }

  pid_t ShimOf(const std::string& id) const {
    const auto keeper = LaunchDirectory(options_.directory + "/" + id).ReadKeeper();
    return keeper.ok() ? static_cast<pid_t>(keeper->pid) : -1;
  }

  std::string JobOf(const std::string& id) const {
    const auto record = LaunchDirectory(options_.directory + "/" + id).ReadLaunch();
    return record.ok() ? record->job : "unknown";
  }

  void UntilNothingIsLeft() {
    Until("its processes are gone",
          [&] { return ProcessesWith("CAIRN_TEST_MARK", mark_).empty(); });
  }
};

/// With a second node of the cluster, for a while.
class RayNodeTest : public RayFaultTest {
 protected:
  void TearDown() override {
    RayFaultTest::TearDown();
    TestRay::Get().KillNode("second");
  }

  LaunchSpec OnSecond(const std::string& id, const std::string& text) const {
    LaunchSpec spec = Script(id, text);
    spec.resources["custom"] = "second=1";
    return spec;
  }
};

TEST_F(RayFaultTest, AJobThatSomebodyStopsIsToldAndHasEndedThroughNoFaultOfItsOwn) {
  Open();
  Submit(Script("a",
                "trap 'sleep 1; echo saving; exit 5' TERM; echo ready; "
                "while :; do sleep 0.05; done"));
  UntilSaid("a");
  const std::string said = TestRay::Get().Shell("ray job stop --no-wait " + JobOf("a"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kExited) << said;
  EXPECT_EQ(info.exit->code, 5);
  EXPECT_TRUE(info.exit->stopped);
}

TEST_F(RayFaultTest, AJobThatDoesNotStopIsKilledByRayAndIsNobodysFailure) {
  options_.warning = 1s;
  Open();
  Submit(Script("a", std::string("trap '' TERM; ") + kForEver));
  UntilSaid("a");
  const std::string said = TestRay::Get().Shell("ray job stop --no-wait " + JobOf("a"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost) << said;
  EXPECT_TRUE(info.exit->stopped) << info.exit->message;
  UntilNothingIsLeft();
}

TEST_F(RayFaultTest, AShimThatIsKilledIsALaunchThatIsLostAndNothingIsLeft) {
  Open();
  Submit(Script("a", std::string("setsid sleep 1000 & ") + kForEver));
  UntilSaid("a");
  ASSERT_EQ(::kill(ShimOf("a"), SIGKILL), 0);
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost);
  EXPECT_FALSE(info.exit->stopped) << "it counts as a failure: it may well be one";
  EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty());
}

TEST_F(RayFaultTest, ASupervisorThatIsKilledTakesItsLaunchWithIt) {
  Open();
  Submit(Script("a", kForEver));
  UntilSaid("a");
  const pid_t supervisor = ParentOf(ShimOf("a"));
  ASSERT_GT(supervisor, 1);
  ASSERT_EQ(::kill(supervisor, SIGKILL), 0);
  const LaunchInfo info = End("a");
  EXPECT_FALSE(info.exit->succeeded());
  EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty());
}

TEST_F(RayNodeTest, ANodeThatVanishesIsNoticedAndTheNextLaunchRunsElsewhere) {
  TestRay::Get().StartNode("second");
  Open();
  Submit(OnSecond("a", kForEver));
  UntilSaid("a");
  TestRay::Get().KillNode("second");
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost) << info.exit->message;
  EXPECT_TRUE(info.exit->stopped) << info.exit->message;
  EXPECT_THAT(info.exit->message, HasSubstr("node"));
  UntilNothingIsLeft();
  Submit(Script("b", "true"));
  EXPECT_TRUE(End("b").exit->succeeded());
}

/// Two ranks, on a node each.
class RaySpreadTest : public RayNodeTest {
 protected:
  LaunchSpec OnBoth(const std::string& id, const std::string& text) const {
    LaunchSpec spec = Script(id, text);
    spec.processes = 2;
    spec.resources = {{"nodes", "2"}};
    return spec;
  }

  void UntilAllSaid(const std::string& id, std::ptrdiff_t lines) {
    Until(id + " says something", [&] { return std::ssize(Texts(id)) >= lines; });
  }
};

TEST_F(RaySpreadTest, ANodeThatVanishesEndsTheLaunchEverywhere) {
  TestRay::Get().StartNode("second");
  Open();
  Submit(OnBoth("a", kForEver));
  UntilAllSaid("a", 2);
  TestRay::Get().KillNode("second");
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kLost) << info.exit->message;
  EXPECT_THAT(info.exit->message, HasSubstr("node of rank"));
  EXPECT_TRUE(info.exit->stopped) << "nobody's failure";
  UntilNothingIsLeft();
}

TEST_F(RaySpreadTest, AJobThatSomebodyStopsSavesOnAllNodes) {
  TestRay::Get().StartNode("second");
  Open();
  Submit(OnBoth("a",
                "trap 'sleep 1; echo saving; exit 5' TERM; echo ready; "
                "while :; do sleep 0.05; done"));
  UntilAllSaid("a", 2);
  const std::string said = TestRay::Get().Shell("ray job stop --no-wait " + JobOf("a"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kExited) << said << info.exit->message;
  EXPECT_EQ(info.exit->code, 5);
  EXPECT_TRUE(info.exit->stopped);
  UntilAllSaid("a", 4);
}

TEST_F(RaySpreadTest, AShimThatIsKilledTakesTheRanksOfAllNodesWithIt) {
  TestRay::Get().StartNode("second");
  Open();
  Submit(OnBoth("a", std::string("trap '' TERM; ") + kForEver));
  UntilAllSaid("a", 2);
  ASSERT_EQ(::kill(ShimOf("a"), SIGKILL), 0);
  EXPECT_EQ(End("a").exit->kind, ExitKind::kLost);
  UntilNothingIsLeft();
}

TEST_F(RayNodeTest, WhatWaitsInRaySurvivesTheOwner) {
  Open();
  Submit(OnSecond("a", "echo at last"));
  const std::string job = UntilItWaits("a");
  launcher_.reset();
  Open();
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  EXPECT_EQ(UntilItWaits("a"), job) << "the same";
  TestRay::Get().StartNode("second");
  EXPECT_TRUE(End("a").exit->succeeded());
}

TEST_F(RayNodeTest, WhatIsStoppedWhileItWaitsDoesNothingWhenItsTurnComes) {
  Open();
  const std::string witness = (temp_.path() / "witness").string();
  Submit(OnSecond("a", "touch " + witness));
  const std::string job = UntilItWaits("a");
  ASSERT_TRUE(launcher_->Kill("a").ok());
  EXPECT_TRUE(End("a").exit->stopped);
  TestRay::Get().StartNode("second");
  auto client = RayClient::Open(*FindRay(options_.address, ""));
  Until("its job has ended", [&] {
    const auto jobs = (*client)->Jobs();
    return std::ranges::any_of(*jobs,
                               [&](const RayJob& each) { return each.id == job && each.ended(); });
  });
  EXPECT_FALSE(std::filesystem::exists(witness));
}

TEST_F(RayNodeTest, WhatRayGaveUpWaitingForIsHandedOverAgain) {
  TestRay::Get().KillNode("head");
  TestRay::Get().StartNode("head", "RAY_JOB_START_TIMEOUT_SECONDS=3");
  Open();
  Submit(OnSecond("a", "echo once"));
  const std::string job = UntilItWaits("a");
  Until("Ray has it anew",
        [&] { return launcher_->Get("a")->reason.starts_with("job " + job + "-2 waits in Ray"); });
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  launcher_.reset();
  Open();  // the next owner goes on with it
  Until("Ray has it anew again", [&] {
    const std::string reason = launcher_->Get("a")->reason;
    return reason.starts_with("job " + job + "-") && !reason.starts_with("job " + job + "-2 ");
  });
  TestRay::Get().KillNode("head");
  TestRay::Get().StartNode("head");
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted) << "the new head knows nothing of it";
  EXPECT_TRUE(info.exit->stopped);
}

TEST_F(RayFaultTest, AHeadThatIsLostIsNoticedAndANewOneIsWaitedFor) {
  options_.head_patience = 2s;
  Open();
  Submit(Script("before", kForEver));
  UntilSaid("before");
  TestRay::Get().KillNode("head");
  Submit(Script("during", "echo during"));
  Until("it says so", [&] {
    return launcher_->Get("during")->reason.find("no answer of Ray") != std::string::npos;
  });
  const LaunchInfo before = End("before");
  EXPECT_EQ(before.exit->kind, ExitKind::kLost);
  EXPECT_TRUE(before.exit->stopped);
  UntilNothingIsLeft();
  EXPECT_EQ(launcher_->Get("during")->state, LaunchState::kQueued);
  TestRay::Get().StartNode("head");
  EXPECT_TRUE(End("during").exit->succeeded());
  EXPECT_EQ(launcher_->ReadLog("during", 0)->lines.size(), 1u) << "once";
}

TEST_F(RayFaultTest, WhatLivesGoesOnWhileTheHeadOnlyDoesNotAnswer) {
  options_.head_patience = 500ms;
  Open();
  const std::string leave = (temp_.path() / "leave").string();
  Submit(Script("a", "echo ready; while [ ! -e " + leave + " ]; do sleep 0.05; done"));
  UntilSaid("a");
  launcher_.reset();
  options_.address = "http://127.0.0.1:1";
  Open();
  EXPECT_EQ(
      launcher_->Wait("a", options_.head_patience + options_.shim_patience + 2s).status().code(),
      Code::kDeadlineExceeded)
      << "its shim is heard";
  std::ofstream(leave).close();
  EXPECT_TRUE(End("a").exit->succeeded()) << "and its end is seen";
}

}  // namespace
}  // namespace cairn

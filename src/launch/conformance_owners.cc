// What becomes of launches when their owner dies or leaves.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "launch/conformance.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr std::chrono::milliseconds kLook{2};

}  // namespace

std::string LauncherOwnerConformance::Name(const ::testing::TestParamInfo<LauncherFactory>& info) {
  return LauncherConformance::Name(info);
}

TEST_P(LauncherOwnerConformance, LaunchesSurviveTheirOwnerAndAreTakenUpAgain) {
  const pid_t owner = ForkOwner([&](Launcher& mine) {
    EXPECT_TRUE(mine.Submit(Script("a",
                                   "trap 'echo asked; exit 6' TERM; echo $$; "
                                   "while :; do sleep 0.05; done"))
                    .ok());
    for (;;) {
      auto page = mine.ReadLog("a", 0);
      if (page.ok() && !page->lines.empty()) break;
      std::this_thread::sleep_for(kLook);
    }
  });
  KillOwner(owner);
  Open();
  const auto info = launcher().Get("a");
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(info->state, LaunchState::kRunning);
  ASSERT_THAT(info->pids, SizeIs(1));
  EXPECT_EQ(std::to_string(info->pids[0]), Texts("a").at(0)) << "the same process as before";
  // It still has its slot.
  LaunchSpec all = Script("all", "true");
  all.slots = under_test_.slots;
  Submit(all);
  EXPECT_EQ(launcher().Wait("all", std::chrono::milliseconds(200)).status().code(),
            Code::kDeadlineExceeded);
  ASSERT_TRUE(launcher().Stop("a", std::chrono::seconds(20)).ok());
  EXPECT_EQ(End("a").exit->code, 6);
  EXPECT_EQ(Texts("a").back(), "asked");
  EXPECT_TRUE(End("all").exit->succeeded());
}

TEST_P(LauncherOwnerConformance, WhatEndedWhileNobodyLookedIsKnown) {
  const pid_t owner = ForkOwner([&](Launcher& mine) {
    EXPECT_TRUE(mine.Submit(Script("a",
                                   "sleep 0.3; "
                                   "echo alone; exit 9"))
                    .ok());
    LaunchSpec other = Script("b", "echo b");
    EXPECT_TRUE(mine.Submit(other).ok());
    EXPECT_TRUE(mine.Wait("b", std::chrono::seconds(30)).ok());
  });
  KillOwner(owner);
  Until("a has ended", [&] { return Living() == 0; });
  Open();
  EXPECT_EQ(End("a").exit->code, 9);
  EXPECT_THAT(Texts("a"), ElementsAre("alone"));
  EXPECT_TRUE(End("b").exit->succeeded());
}

TEST_P(LauncherOwnerConformance, QueuedLaunchesAreForgottenWithTheOwner) {
  const pid_t owner = ForkOwner([&](Launcher& mine) {
    LaunchSpec all = Script("all", "while :; do sleep 0.05; done");
    all.slots = under_test_.slots;
    EXPECT_TRUE(mine.Submit(all).ok());
    EXPECT_TRUE(mine.Submit(Script("waits", "echo no")).ok());
    while (mine.Get("all")->state != LaunchState::kRunning) std::this_thread::sleep_for(kLook);
  });
  KillOwner(owner);
  Open();
  EXPECT_EQ(launcher().Get("waits").status().code(), Code::kNotFound);
  Submit(Script("waits", "echo now"));
  // A launch that was being started when its owner died runs or was never there.
  if (launcher().Get("all").ok()) {
    ASSERT_TRUE(launcher().Kill("all").ok());
  }
  EXPECT_TRUE(End("waits").exit->succeeded());
  EXPECT_THAT(Texts("waits"), ElementsAre("now"));
}

TEST_P(LauncherOwnerConformance, ALaunchThatMustNotOutliveItsOwnerEndsWithIt) {
  const pid_t owner = ForkOwner([&](Launcher& mine) {
    LaunchSpec spec = Script("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    spec.outlive_owner = false;
    spec.grace = std::chrono::milliseconds(100);
    EXPECT_TRUE(mine.Submit(spec).ok());
    while (mine.ReadLog("a", 0)->lines.empty()) std::this_thread::sleep_for(kLook);
  });
  EXPECT_GT(Living(), 0u);
  KillOwner(owner);
  Until("everything is gone", [&] { return Living() == 0; });
  Open();
  EXPECT_TRUE(End("a").exit->stopped);
}

TEST_P(LauncherOwnerConformance, AnOrderlyStopLeavesNothing) {
  Open();
  for (int i = 0; i < 4; ++i) {  // some of them in the queue
    Submit(Script("a" + std::to_string(i), "trap '' TERM; sleep 1000 & while :; do sleep 1; done"));
  }
  Until("some run", [&] { return Living() > 2; });
  const Status closed =
      launcher().Close(Launcher::CloseMode::kStopAll, std::chrono::milliseconds(100));
  EXPECT_TRUE(closed.ok()) << closed.ToString();
  EXPECT_EQ(Living(), 0u);
  EXPECT_EQ(launcher().Submit(Script("b", "true")).code(), Code::kFailedPrecondition);
}

TEST_P(LauncherOwnerConformance, LeavingLetsLaunchesGoOn) {
  Open();
  Submit(Script("a", "echo ready; while :; do sleep 0.05; done"));
  UntilLine("a", "ready");
  ASSERT_TRUE(launcher().Close(Launcher::CloseMode::kLeave).ok());
  EXPECT_GT(Living(), 0u);
  launcher_.reset();
  Open();
  EXPECT_EQ(launcher().Get("a")->state, LaunchState::kRunning);
}

TEST_P(LauncherOwnerConformance, ACloseUnderWayTakesNothingNew) {
  Open();
  const std::string leave = testing::TempDir() + "/leave-" + std::to_string(getpid());
  std::filesystem::remove(leave);
  Submit(Script("a", "trap 'echo asked' TERM; echo ready; while [ ! -e '" + leave +
                         "' ]; do sleep 0.05; done"));
  UntilLine("a", "ready");
  std::jthread closing([&] {
    EXPECT_TRUE(launcher().Close(Launcher::CloseMode::kStopAll, std::chrono::seconds(60)).ok());
  });
  UntilLine("a", "asked");  // the close has begun, and waits
  EXPECT_EQ(launcher().Submit(Script("b", "true")).code(), Code::kFailedPrecondition);
  std::ofstream(leave).close();
  closing.join();
  std::filesystem::remove(leave);
}

TEST_P(LauncherOwnerConformance, AnIdIsStartedOnceUntilItIsForgotten) {
  Open();
  Submit(Script("a", "echo once"));
  EXPECT_EQ(launcher().Submit(Script("a", "echo twice")).code(), Code::kAlreadyExists);
  End("a");
  EXPECT_EQ(launcher().Submit(Script("a", "echo twice")).code(), Code::kAlreadyExists);
  launcher_.reset();
  Open();
  EXPECT_EQ(launcher().Submit(Script("a", "echo twice")).code(), Code::kAlreadyExists);
  EXPECT_THAT(Texts("a"), ElementsAre("once"));
  ASSERT_TRUE(launcher().Forget("a").ok());
  EXPECT_TRUE(launcher().Forget("a").ok());
  EXPECT_EQ(launcher().Get("a").status().code(), Code::kNotFound);
  const std::string leave = testing::TempDir() + "/forget-" + std::to_string(getpid());
  std::filesystem::remove(leave);
  Submit(Script("a", "echo again; while [ ! -e '" + leave + "' ]; do sleep 0.05; done"));
  EXPECT_EQ(launcher().Forget("a").code(), Code::kFailedPrecondition);
  std::ofstream(leave).close();
  End("a");
  std::filesystem::remove(leave);
  EXPECT_THAT(Texts("a"), ElementsAre("again"));
}

}  // namespace cairn

// Launches of several ranks, which may be spread over several nodes.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <string>

#include "launch/conformance.h"

namespace cairn {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::string LauncherRanksConformance::Name(const ::testing::TestParamInfo<LauncherFactory>& info) {
  return LauncherConformance::Name(info);
}

void LauncherRanksConformance::Spread(int processes, LaunchSpec* spec) const {
  spec->processes = processes;
  if (under_test_.nodes > 1) spec->resources["nodes"] = std::to_string(under_test_.nodes);
}

TEST_P(LauncherRanksConformance, EachKnowsItsPlace) {
  Open();
  LaunchSpec spec = Script("a",
                           "echo $CAIRN_RANK/$CAIRN_WORLD_SIZE $CAIRN_LOCAL_RANK/$CAIRN_LOCAL_SIZE "
                           "$CAIRN_NODE/$CAIRN_NODES");
  Spread(4, &spec);
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  if (under_test_.nodes == 1) {
    EXPECT_THAT(Texts("a"),
                UnorderedElementsAre("0/4 0/4 0/1", "1/4 1/4 0/1", "2/4 2/4 0/1", "3/4 3/4 0/1"));
    return;
  }
  EXPECT_THAT(Texts("a"),
              UnorderedElementsAre("0/4 0/2 0/2", "1/4 1/2 0/2", "2/4 0/2 1/2", "3/4 1/2 1/2"));
}

TEST_P(LauncherRanksConformance, AllAreToldWhereTheyMeet) {
  Open();
  LaunchSpec spec = Script("a", "echo $CAIRN_CHIEF $MASTER_ADDR:$MASTER_PORT");
  Spread(4, &spec);
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  const std::vector<std::string> texts = Texts("a");
  ASSERT_THAT(texts, SizeIs(4));
  EXPECT_THAT(std::set<std::string>(texts.begin(), texts.end()), SizeIs(1)) << "the same for all";
  EXPECT_TRUE(texts[0].starts_with("file:/")) << texts[0];
  if (under_test_.nodes > 1) {
    EXPECT_FALSE(texts[0].ends_with(":")) << "a port";
  }
}

TEST_P(LauncherRanksConformance, LinesHaveTimeRankAndLevel) {
  Open();
  LaunchSpec spec = Script("a", "echo \"ERROR rank $CAIRN_RANK\"");
  Spread(4, &spec);
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  std::map<int, std::string> by_rank;
  for (const LaunchLogLine& line : Lines("a")) {
    by_rank[line.rank] = line.text;
    EXPECT_EQ(line.level, LineLevel::kError);
    EXPECT_GT(line.time, 1'600'000'000'000'000'000);
  }
  EXPECT_EQ(
      by_rank,
      (std::map<int, std::string>{
          {0, "ERROR rank 0"}, {1, "ERROR rank 1"}, {2, "ERROR rank 2"}, {3, "ERROR rank 3"}}));
}

TEST_P(LauncherRanksConformance, ARankThatFailsEndsTheOthers) {
  Open();
  LaunchSpec spec = Script("a", "[ $CAIRN_RANK = 3 ] && exit 3; while :; do sleep 1; done");
  Spread(4, &spec);
  spec.grace = std::chrono::milliseconds(200);
  Submit(spec);
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->code, 3);
  EXPECT_EQ(info.exit->rank, 3);
  EXPECT_EQ(Living(), 0u);
}

TEST_P(LauncherRanksConformance, RanksThatEndWellLetTheOthersGoOn) {
  Open();
  LaunchSpec spec = Script("a", "[ $CAIRN_RANK = 0 ] && exit 0; sleep 0.3; echo done");
  Spread(2, &spec);
  Submit(spec);
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_THAT(Texts("a"), ElementsAre("done"));
}

TEST_P(LauncherRanksConformance, AllAreSignalledAndStoppedAndNothingIsLeft) {
  Open();
  LaunchSpec spec = Script("a",
                           "trap 'echo asked $CAIRN_RANK' USR1; trap 'echo saved $CAIRN_RANK; exit "
                           "4' TERM; setsid sleep 1000 & echo ready $CAIRN_RANK; "
                           "while :; do sleep 0.05; done");
  Spread(2, &spec);
  Submit(spec);
  UntilLine("a", "ready 0");
  UntilLine("a", "ready 1");
  Until("it runs", [&] { return launcher().Get("a")->state == LaunchState::kRunning; });
  EXPECT_THAT(launcher().Get("a")->pids, SizeIs(2));
  ASSERT_TRUE(launcher().Signal("a", SIGUSR1).ok());
  UntilLine("a", "asked 0");
  UntilLine("a", "asked 1");
  ASSERT_TRUE(launcher().Stop("a", std::chrono::seconds(20)).ok());
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->code, 4) << info.exit->message;
  EXPECT_TRUE(info.exit->stopped);
  UntilLine("a", "saved 0");
  UntilLine("a", "saved 1");
  EXPECT_EQ(Living(), 0u);
}

TEST_P(LauncherRanksConformance, WhatDoesNotStopIsKilledEverywhere) {
  Open();
  LaunchSpec spec =
      Script("a", "trap '' TERM; echo ready $CAIRN_RANK; while :; do sleep 0.05; done");
  Spread(2, &spec);
  Submit(spec);
  UntilLine("a", "ready 0");
  UntilLine("a", "ready 1");
  ASSERT_TRUE(launcher().Stop("a", std::chrono::milliseconds(100)).ok());
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->signal, SIGKILL);
  EXPECT_TRUE(info.exit->stopped);
  EXPECT_EQ(Living(), 0u);
}

}  // namespace cairn

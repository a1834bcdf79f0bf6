// Small cases, every interleaving: whatever the order of the actors' operations, and wherever one
// of them is stopped, the promises of the commit protocol hold (explorer.h, ledger.h).

#include <gtest/gtest.h>

#include <iostream>

#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

class EveryInterleaving : public testing::TestWithParam<Disk> {
 protected:
  static void Explore(const Scenario& scenario, std::optional<int> preemptions = std::nullopt) {
    const Exploration found = ExploreAll(scenario, {.preemptions = preemptions});
    std::cout << found.Summary(scenario.name) << "\n";
    EXPECT_EQ(found.violation, "") << found.schedule;
    EXPECT_TRUE(found.complete);
  }
};

TEST_P(EveryInterleaving, OfATakeoverDuringASave) { Explore(TakeoverDuringSaves(GetParam(), 1)); }

TEST_P(EveryInterleaving, OfTwoOpeningsAtOnce) { Explore(TwoOpenAtOnce(GetParam())); }

TEST_P(EveryInterleaving, OfATakeoverDuringARemoval) { Explore(TakeoverDuringRemoval(GetParam())); }

TEST_P(EveryInterleaving, OfATakeoverDuringARemovalOfSharedFiles) {
  Scenario scenario = TakeoverDuringRemoval(GetParam());
  scenario.share_files = true;
  Explore(scenario);
}

TEST_P(EveryInterleaving, OfAPinAndRetention) { Explore(PinAgainstRetention(GetParam())); }

TEST_P(EveryInterleaving, OfAReaderAndRetention) { Explore(ReaderBesideRetention(GetParam())); }

TEST_P(EveryInterleaving, OfTwoRanksAndASave) { Explore(TwoRanks(GetParam(), 1, 0)); }

INSTANTIATE_TEST_SUITE_P(Disks, EveryInterleaving, testing::Values(Disk::kPlain, Disk::kObjects),
                         [](const auto& info) {
                           return info.param == Disk::kPlain ? "Plain" : "ObjectStore";
                         });

}  // namespace
}  // namespace cairn::interleaving

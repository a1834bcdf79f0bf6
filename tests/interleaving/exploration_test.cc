// Small worlds: whatever the order of the actors' operations, and wherever one of them is stopped
// for good, the promises of the commit protocol hold (explorer.h, ledger.h). All schedules where
// they can be counted; elsewhere all with so many preemptions, which is where such mistakes show.

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <tuple>

#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

struct Bounded {
  std::string scenario;
  std::optional<int> preemptions;  // unset: every schedule
};

const Bounded kBounded[] = {
    {"TakeoverDuringASave", std::nullopt},
    {"TakeoverDuringTwoSaves", std::nullopt},
    {"GoingBack", 3},
    {"TwoOpenedRanks", std::nullopt},
    {"TwoOpenAtOnce", 2},
    {"TakeoverDuringRemoval", 2},
    {"TakeoverDuringRemovalOfSharedFiles", 2},
    {"TakeoverByARemover", 2},
    {"PinAgainstRetention", 2},
    {"ReaderBesideRetention", 2},
    {"TwoOpenedRanksTwoSaves", 2},
    {"TwoOpenedRanksLate", 2},
    {"PinRemovalTakeover", 1},
    {"TwoRanks", 1},
    {"TwoRanksTwoSavesLate", 1},
    {"RanksAndTakeover", 1},
    {"ReplacedRank", 0},
    {"RestartedRank", 0},
    {"Crowd", 0},
};

class EverySchedule : public testing::TestWithParam<std::tuple<Bounded, Disk>> {};

TEST_P(EverySchedule, KeepsThePromises) {
  const auto& [bounded, disk] = GetParam();
  const Scenario scenario = AllScenarios().at(bounded.scenario)(disk);
  const Exploration found = ExploreAll(scenario, {.preemptions = bounded.preemptions});
  std::cout << found.Summary(scenario.name) << "\n";
  EXPECT_EQ(found.violation, "") << found.schedule;
  EXPECT_TRUE(found.complete);
}

std::string NameOfCase(const testing::TestParamInfo<std::tuple<Bounded, Disk>>& info) {
  return std::get<Bounded>(info.param).scenario +
         (std::get<Disk>(info.param) == Disk::kPlain ? "_plain" : "_objects");
}

INSTANTIATE_TEST_SUITE_P(Of, EverySchedule,
                         testing::Combine(testing::ValuesIn(kBounded),
                                          testing::Values(Disk::kPlain, Disk::kObjects)),
                         NameOfCase);

}  // namespace
}  // namespace cairn::interleaving

// Small worlds: whatever the order of the actors' operations, and wherever one of them is stopped
// for good, the promises of the commit protocol hold (explorer.h, ledger.h). All schedules where
// they can be counted; elsewhere all with so many preemptions, which is where such mistakes show.

#include <gtest/gtest.h>

#include <iostream>
#include <optional>
#include <string>
#include <tuple>

#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

constexpr std::optional<int> kAll = std::nullopt;

/// How many preemptions on either disk; kAll: no bound. The two differ in how data files appear and
/// are shared, so that one of them may do with less.
struct Bounded {
  std::string scenario;
  std::optional<int> plain;
  std::optional<int> objects;
  std::optional<int> shelves = std::nullopt;
};

const Bounded kBounded[] = {
    {"TakeoverDuringASave", kAll, kAll},
    {"TakeoverDuringTwoSaves", kAll, 3},
    {"TakeoverOfAFailingWriter", kAll, kAll},
    {"GoingBack", 3, 2},
    {"TwoOpenedRanks", kAll, 3},
    {"TwoOpenAtOnce", 2, 2},
    {"TakeoverDuringRemoval", 2, 2},
    {"TakeoverDuringRemovalOfSharedFiles", 2, 2},
    {"TakeoverByARemover", 2, 2},
    {"PinAgainstRetention", 2, 2},
    {"ScoreAgainstRetention", 2, 2},
    {"ReaderBesideRetention", 2, 2},
    {"TwoOpenedRanksTwoSaves", 2, 1},
    {"TwoOpenedRanksLate", 2, 2},
    {"PinRemovalTakeover", 1, 1},
    {"TwoRanks", 1, 1},
    {"TwoRanksTwoSavesLate", 1, 0},
    {"RanksAndTakeover", 1, 0},
    {"ReplacedRank", 0, 0},
    {"ReplacedFailingRank", 0, 0},
    {"RestartedRank", 0, 0},
    {"Crowd", 0, 0},
};

/// Those in which something is removed, or a name used again, beside readers: on an object store
/// with shelves, where every read is several pages of a listing.
const Bounded kShelved[] = {
    {.scenario = "TakeoverDuringASave", .shelves = 1},
    {.scenario = "TakeoverDuringRemoval", .shelves = 2},
    {.scenario = "TakeoverDuringRemovalOfSharedFiles", .shelves = 1},
    {.scenario = "TakeoverByARemover", .shelves = 1},
    {.scenario = "PinAgainstRetention", .shelves = 2},
    {.scenario = "ScoreAgainstRetention", .shelves = 2},
    {.scenario = "ReaderBesideRetention", .shelves = 2},
    {.scenario = "PinRemovalTakeover", .shelves = 0},
    {.scenario = "Crowd", .shelves = 0},
};

class EverySchedule : public testing::TestWithParam<std::tuple<Bounded, Disk>> {};

TEST_P(EverySchedule, KeepsThePromises) {
  const auto& [bounded, disk] = GetParam();
  const Scenario scenario = AllScenarios().at(bounded.scenario)(disk);
  const Exploration found =
      ExploreAll(scenario, {.preemptions = disk == Disk::kPlain     ? bounded.plain
                                           : disk == Disk::kObjects ? bounded.objects
                                                                    : bounded.shelves});
  std::cout << found.Summary(scenario.name) << "\n";
  EXPECT_EQ(found.violation, "") << found.schedule;
  EXPECT_TRUE(found.complete);
}

std::string NameOfCase(const testing::TestParamInfo<std::tuple<Bounded, Disk>>& info) {
  return std::get<Bounded>(info.param).scenario + "_" +
         std::string(DiskName(std::get<Disk>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Of, EverySchedule,
                         testing::Combine(testing::ValuesIn(kBounded),
                                          testing::Values(Disk::kPlain, Disk::kObjects)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Shelved, EverySchedule,
                         testing::Combine(testing::ValuesIn(kShelved),
                                          testing::Values(Disk::kShelves)),
                         NameOfCase);

}  // namespace
}  // namespace cairn::interleaving

// Each rule of the commit protocol, switched off, makes the explorer find a broken promise; with
// the rule on, the same search of the same scenario finds none. A rule that nobody misses would be
// a step to take out of the engine, or a promise that nobody checks.

#include "tests/interleaving/rules.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <string_view>
#include <tuple>

#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

/// The smallest scenario in which a rule is missed, and how many preemptions that takes.
struct Case {
  std::string_view rule;
  Scenario (*scenario)(Disk);
  int preemptions = 1;
};

Scenario TakeoverDuringASave(Disk disk) { return TakeoverDuringSaves(disk, 1); }
Scenario ReplacedRankInTime(Disk disk) { return ReplacedRank(disk, 0); }

const Case kCases[] = {
    {"fence_before_listing", TakeoverDuringASave},
    {"create_only_records", TwoOpenAtOnce},
    {"readers_obey_seals", TakeoverDuringASave},
    {"reread_fence_before_ack", TakeoverDuringASave},
    {"reread_fence_before_delete", TakeoverDuringRemoval},
    {"remove_note_first", TakeoverDuringRemoval},
    {"retire_names", TakeoverDuringRemoval},
    {"check_part_identity", ReplacedRankInTime, 0},
    {"latest_by_sequence", GoingBack},
    {"reread_manifest_after_note", PinAgainstRetention},
    {"reread_when_moved", ReaderBesideRetention},
    {"notes_before_manifest", TakeoverDuringRemoval, 2},
    {"notes_name_checkpoint", TakeoverByARemover},
    {"compare_tags", TakeoverByARemover},
};

const Case* CaseOf(std::string_view rule) {
  for (const Case& one : kCases) {
    if (one.rule == rule) return &one;
  }
  return nullptr;
}

class EachRule : public testing::TestWithParam<std::tuple<Rule, Disk>> {};

TEST_P(EachRule, IsMissed) {
  const auto& [rule, disk] = GetParam();
  const Case* missed = CaseOf(rule.name);
  ASSERT_NE(missed, nullptr) << "no scenario shows that " << rule.name << " matters";
  const Limits limits{.preemptions = missed->preemptions};

  Scenario scenario = missed->scenario(disk);
  const Exploration with = ExploreDeepening(scenario, limits);
  EXPECT_EQ(with.violation, "") << with.schedule;
  EXPECT_TRUE(with.complete);

  scenario.rules.*rule.on = false;
  const Exploration without = ExploreDeepening(scenario, limits);
  std::cout << "with " << rule.name << ": " << with.Summary(scenario.name)
            << "\nwithout: " << without.Summary(scenario.name) << "\n";
  EXPECT_NE(without.violation, "") << "nobody misses " << rule.name;
}

std::string NameOfCase(const testing::TestParamInfo<std::tuple<Rule, Disk>>& info) {
  return std::string(std::get<Rule>(info.param).name) + "_" +
         std::string(DiskName(std::get<Disk>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Rules, EachRule,
                         testing::Combine(testing::ValuesIn(kRules),
                                          testing::Values(Disk::kPlain, Disk::kObjects)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(RulesOfShelves, EachRule,
                         testing::Combine(testing::ValuesIn(kShelfRules),
                                          testing::Values(Disk::kShelves)),
                         NameOfCase);

}  // namespace
}  // namespace cairn::interleaving

// Mutation of the protocol: every sync of the engine is left out in turn, every order that it keeps
// is broken in turn, and the crash enumeration must notice. What nobody misses is taken out of the
// engine, or stands in the list below with its reason.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.h"
#include "tests/crash/scenarios.h"

namespace cairn::crash {
namespace {

/// What the enumeration cannot notice, and why it stays all the same.
const std::map<std::string, std::string>& Explained(Machine::Kind kind) {
  static const std::map<std::string, std::string> disk = {};
  static const std::map<std::string, std::string> bucket = {};
  return kind == Machine::Kind::kDisk ? disk : bucket;
}

/// In `make test` a mutation that is explained is searched so far; what is missed is found within a
/// few hundred images. CAIRN_TORTURE_SECONDS lifts the bound.
std::uint64_t MaxImages() {
  return std::getenv("CAIRN_TORTURE_SECONDS") == nullptr ? 1500 : ~std::uint64_t{0};
}

struct Outcome {
  std::uint64_t images = 0;
  bool active = false;    // in some scenario
  std::string violation;  // empty: nobody missed it
};

/// The ends that lose most come first.
std::vector<End> MutationEnds(Machine::Kind kind) {
  if (kind == Machine::Kind::kBucket) return {{Ending::kKill, 0}};
  std::vector<End> ends = {{Ending::kForget, 0}, {Ending::kKill, 0}};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    ends.push_back({Ending::kSubset, seed});
    ends.push_back({Ending::kTorn, seed});
  }
  return ends;
}

/// Searches one scenario; false when there is nothing more to search for.
bool Search(const Scenario& scenario, const Mutation& mutation, Outcome* outcome) {
  const Recording recording = Record(scenario, &mutation);
  if (!recording.first_effect) return true;
  outcome->active = true;
  if (!recording.status.ok()) {
    outcome->violation = scenario.name + ": " + recording.status.ToString();
    return false;
  }
  // What is seen at once, and then what a further save and a further crash bring to light.
  for (const bool save_again : {false, true}) {
    const std::uint64_t left = MaxImages() - std::min(MaxImages(), outcome->images);
    const Tally tally =
        Enumerate(scenario, recording.cuts, MutationEnds(scenario.world.kind),
                  {.max_violations = 1,
                   .first_cut = *recording.first_effect,
                   .max_images = save_again ? left : std::min(left, MaxImages() / 2),
                   .save_again = save_again,
                   .mutation = &mutation});
    outcome->images += tally.images;
    if (tally.violations.empty()) continue;
    outcome->violation = tally.violations.front().text;
    return false;
  }
  return true;
}

/// The likely scenario first.
Outcome Judge(const std::vector<Scenario>& scenarios, const Mutation& mutation,
              const std::string& likely) {
  std::vector<const Scenario*> order;
  for (const Scenario& scenario : scenarios) order.push_back(&scenario);
  std::stable_partition(order.begin(), order.end(),
                        [&](const Scenario* scenario) { return scenario->name == likely; });
  Outcome outcome;
  for (const Scenario* scenario : order) {
    if (!Search(*scenario, mutation, &outcome)) break;
  }
  return outcome;
}

class MutationTest : public testing::TestWithParam<Machine::Kind> {
 protected:
  MutationTest() : scenarios_(Scenarios(GetParam())) {
    SetLogSink([](LogLevel, std::string_view) {});
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~MutationTest() override { SetLogSink(nullptr); }

  void Judge(const Mutation& mutation, const std::string& likely) {
    const Outcome outcome = crash::Judge(scenarios_, mutation, likely);
    EXPECT_TRUE(outcome.active) << "no scenario comes by here: " << mutation.name;
    std::string found = outcome.violation.substr(0, outcome.violation.find('\n'));
    if (found.empty()) {
      missed_by_nobody_.insert(mutation.name);
      found = "MISSED BY NOBODY";
    }
    std::printf("%s\n    after %zu images: %s\n", mutation.name.c_str(),
                static_cast<std::size_t>(outcome.images), found.c_str());
    std::fflush(stdout);
  }

  void ExpectOnlyExplained(const std::function<bool(const std::string&)>& about) {
    for (const std::string& name : missed_by_nobody_) {
      EXPECT_TRUE(Explained(GetParam()).contains(name)) << "nobody misses: " << name;
    }
    for (const auto& [name, reason] : Explained(GetParam())) {
      if (!about(name)) continue;
      std::printf("%s\n    stays: %s\n", name.c_str(), reason.c_str());
      EXPECT_TRUE(missed_by_nobody_.contains(name)) << "is missed after all, or gone: " << name;
    }
  }

  const std::vector<Scenario> scenarios_;
  std::set<std::string> missed_by_nobody_;
};

bool IsSync(const std::string& name) { return name.starts_with("no f"); }

TEST_P(MutationTest, EverySyncIsMissedOrExplained) {
  if (GetParam() == Machine::Kind::kBucket) return;  // knows no syncs
  std::map<SyncPoint, std::string> first;            // a scenario in which it comes
  for (const Scenario& scenario : scenarios_) {
    const Recording recording = Record(scenario);
    ASSERT_TRUE(recording.status.ok()) << recording.status.ToString();
    for (const SyncPoint& point : recording.syncs) first.emplace(point, scenario.name);
  }
  for (const auto& [point, scenario] : first) Judge(WithoutSync(point), scenario);
  ExpectOnlyExplained(IsSync);
}

TEST_P(MutationTest, EveryOrderIsMissedOrExplained) {
  for (const auto& [mutation, likely] : OrderMutations(GetParam())) Judge(mutation, likely);
  ExpectOnlyExplained([](const std::string& name) { return !IsSync(name); });
}

INSTANTIATE_TEST_SUITE_P(Machines, MutationTest,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket),
                         [](const auto& param) {
                           return param.param == Machine::Kind::kDisk ? "Disk" : "Bucket";
                         });

}  // namespace
}  // namespace cairn::crash

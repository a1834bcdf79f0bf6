// Mutation of the protocol: every sync of the engine is left out in turn, and the crash enumeration
// must notice. A sync that nobody misses is either taken out of the engine or explained here.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.h"
#include "tests/crash/scenarios.h"

namespace cairn::crash {
namespace {

/// Syncs whose loss the enumeration cannot notice, and why they stay.
const std::map<std::string, std::string>& Redundant() {
  static const std::map<std::string, std::string> reasons = {};
  return reasons;
}

struct Outcome {
  std::uint64_t images = 0;
  std::string violation;  // empty: nobody missed it
};

/// The ends that lose most come first.
std::vector<End> MutationEnds(int seeds) {
  std::vector<End> ends = {{Ending::kForget, 0}};
  for (int i = 1; i <= seeds; ++i) {
    ends.push_back({Ending::kSubset, static_cast<std::uint64_t>(i)});
    ends.push_back({Ending::kTorn, static_cast<std::uint64_t>(i)});
  }
  ends.push_back({Ending::kKill, 0});
  return ends;
}

Outcome Mutate(const std::vector<Scenario>& scenarios,
               const std::vector<std::set<SyncPoint>>& syncs, const SyncPoint& left_out,
               int seeds) {
  Outcome outcome;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    if (!syncs[i].contains(left_out)) continue;
    const Recording recording =
        Record(scenarios[i], [&](const SyncPoint& point) { return point == left_out; });
    if (!recording.status.ok()) {
      outcome.violation = scenarios[i].name + ": " + recording.status.ToString();
      return outcome;
    }
    const Tally tally = Enumerate(scenarios[i], recording.cuts, MutationEnds(seeds), 1);
    outcome.images += tally.images;
    if (!tally.violations.empty()) {
      outcome.violation = tally.violations.front().text;
      return outcome;
    }
  }
  return outcome;
}

TEST(Mutation, EverySyncIsMissedOrExplained) {
  SetLogSink([](LogLevel, std::string_view) {});
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const std::vector<Scenario> scenarios = Scenarios(Machine::Kind::kDisk);
  std::vector<std::set<SyncPoint>> syncs;
  std::set<SyncPoint> all;
  for (const Scenario& scenario : scenarios) {
    const Recording recording = Record(scenario);
    ASSERT_TRUE(recording.status.ok()) << recording.status.ToString();
    syncs.push_back(recording.syncs);
    all.insert(recording.syncs.begin(), recording.syncs.end());
  }
  const bool verbose = std::getenv("CAIRN_MUTATION_VERBOSE") != nullptr;
  std::set<std::string> redundant;
  for (const SyncPoint& point : all) {
    const std::string name = DescribeSync(point);
    const Outcome outcome = Mutate(scenarios, syncs, point, 3);
    if (outcome.violation.empty()) {
      redundant.insert(name);
      std::printf("%-110s REDUNDANT in %zu images\n", name.c_str(),
                  static_cast<std::size_t>(outcome.images));
    } else {
      std::printf("%-110s found after %zu images\n", name.c_str(),
                  static_cast<std::size_t>(outcome.images));
      if (verbose) std::printf("    %s\n", outcome.violation.c_str());
    }
    std::fflush(stdout);
  }
  for (const std::string& name : redundant) {
    EXPECT_TRUE(Redundant().contains(name)) << "nobody misses " << name;
  }
  for (const auto& [name, reason] : Redundant()) {
    EXPECT_TRUE(redundant.contains(name)) << "is missed after all, or gone: " << name;
  }
  SetLogSink(nullptr);
}

}  // namespace
}  // namespace cairn::crash

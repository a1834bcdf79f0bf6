// Mutation of the protocol: every sync of the engine is left out in turn, every order that it keeps
// is broken in turn, and the crash enumeration must notice. What nobody misses is taken out of the
// engine, or stands in the list below with its reason.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "base/log.h"
#include "tests/crash/scenarios.h"
#include "tests/crash/torture.h"

namespace cairn::crash {
namespace {

/// What the enumeration cannot notice, and why it stays all the same.
const std::map<std::string, std::string>& Explained(Machine::Kind kind) {
  static const std::string note =
      "the note is for living actors: a pin that comes too late must see it. The interleaving "
      "explorer misses it (rule remove_note_first)";
  static const std::map<std::string, std::string> disk = {
      {"a removal's manifest before its note", note},
      {"no fsync of ./generations (record name, step \"open: fence\")",
       "the fence is for living actors: a file server that forgets it while the older writer and "
       "the new one live would let the older one acknowledge what the new one's seal leaves out. "
       "When all die with it, the sync of the seal comes before any save, and a fence that is lost "
       "beside its seal is bridged"},
  };
  static const std::map<std::string, std::string> bucket = {
      {"a removal's manifest before its note", note},
      {"a removal's files before its manifest",
       "in a bucket the note before it is durable, so that a crash leaves a removed checkpoint and "
       "not a damaged one; on a disk it need not be, and there the order is missed"},
  };
  return kind == Machine::Kind::kDisk ? disk : bucket;
}

/// In `make test` each pass over a scenario ends here. CAIRN_TORTURE_SECONDS lifts the bound.
std::uint64_t MaxImages() { return Torture::Asked() ? ~std::uint64_t{0} : 400; }

struct Outcome {
  std::uint64_t images = 0;
  bool active = false;    // in some scenario
  std::string violation;  // empty: nobody missed it
};

/// The ends that lose most come first.
std::vector<End> MutationEnds(Machine::Kind kind, std::uint64_t seeds) {
  if (IsBucket(kind)) return {{Ending::kKill, 0}};
  std::vector<End> ends = {{Ending::kForget, 0}, {Ending::kKill, 0}};
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
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
  // First what is near the sync, in many ways; then everything; then what a further save and a
  // further crash bring to light, also of syncs that only a recovery misses.
  const bool everywhere = mutation.ignore && !mutation.late();
  struct Pass {
    std::size_t first_cut;
    std::size_t max_cuts;
    std::vector<End> ends;
    bool save_again;
  };
  const std::size_t first = *recording.first_effect;
  const Machine::Kind kind = scenario.world.kind;
  const std::vector<Pass> passes = {
      {first, 16, MutationEnds(kind, 12), false},
      {first, recording.cuts.size(), MutationEnds(kind, 2), false},
      {everywhere ? 0 : first, recording.cuts.size(), {{Ending::kKill, 0}}, true},
  };
  for (const Pass& pass : passes) {
    const Tally tally = Enumerate(scenario, recording.cuts, pass.ends,
                                  {.max_violations = 1,
                                   .first_cut = pass.first_cut,
                                   .max_cuts = pass.max_cuts,
                                   .max_images = MaxImages(),
                                   .save_again = pass.save_again,
                                   .mutation = &mutation});
    outcome->images += tally.images;
    if (tally.violations.empty()) continue;
    outcome->violation = tally.violations.front().text;
    return false;
  }
  return true;
}

/// The likely scenario first; with `only_likely` that one alone.
Outcome Judge(const std::vector<Scenario>& scenarios, const Mutation& mutation,
              const std::string& likely, bool only_likely) {
  std::vector<const Scenario*> order;
  for (const Scenario& scenario : scenarios) order.push_back(&scenario);
  std::stable_partition(order.begin(), order.end(),
                        [&](const Scenario* scenario) { return scenario->name == likely; });
  Outcome outcome;
  for (const Scenario* scenario : order) {
    if (!Search(*scenario, mutation, &outcome) || only_likely) break;
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
    // What is explained is searched through by the torture alone.
    const bool explained = Explained(GetParam()).contains(mutation.name);
    const Outcome outcome =
        crash::Judge(scenarios_, mutation, likely, explained && !Torture::Asked());
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

/// The scenario that notices first what a step leaves out, where it is not the first with that
/// step.
const std::map<std::string, std::string>& Likely() {
  static const std::map<std::string, std::string> scenarios = {
      {"open: cairn.json", "overtaken writer"},
      {"open: fence", "overtaken writer"},
      {"open: seal", "overtaken writer"},
      {"remove: note", "notes"},
  };
  return scenarios;
}

bool IsSync(const std::string& name) { return name.starts_with("no f"); }

TEST_P(MutationTest, EverySyncIsMissedOrExplained) {
  if (IsBucket(GetParam())) return;        // knows no syncs
  std::map<SyncPoint, std::string> first;  // a scenario in which it comes
  for (const Scenario& scenario : scenarios_) {
    const Recording recording = Record(scenario);
    ASSERT_TRUE(recording.status.ok()) << recording.status.ToString();
    for (const SyncPoint& point : recording.syncs) first.emplace(point, scenario.name);
  }
  for (const auto& [point, scenario] : first) {
    const auto likely = Likely().find(point.step);
    Judge(WithoutSync(point), likely == Likely().end() ? scenario : likely->second);
  }
  ExpectOnlyExplained(IsSync);
}

TEST_P(MutationTest, EveryOrderIsMissedOrExplained) {
  for (const auto& [mutation, likely] : OrderMutations(GetParam())) Judge(mutation, likely);
  ExpectOnlyExplained([](const std::string& name) { return !IsSync(name); });
}

INSTANTIATE_TEST_SUITE_P(Machines, MutationTest,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket,
                                         Machine::Kind::kShelves),
                         [](const auto& param) { return std::string(KindName(param.param)); });

}  // namespace
}  // namespace cairn::crash

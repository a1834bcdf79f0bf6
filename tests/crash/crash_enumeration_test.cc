// The crash enumeration: every operation of a save, a removal or an opening is an instant at which
// the machine may end, in several ways; what the engine had promised until then must hold.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cctype>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "tests/crash/scenarios.h"
#include "tests/crash/torture.h"

namespace cairn::crash {
namespace {

struct Param {
  Machine::Kind kind;
  std::size_t scenario;
};

std::vector<Param> AllParams() {
  std::vector<Param> params;
  for (const Machine::Kind kind :
       {Machine::Kind::kDisk, Machine::Kind::kBucket, Machine::Kind::kShelves}) {
    for (std::size_t i = 0; i < Scenarios(kind).size(); ++i) params.push_back({kind, i});
  }
  return params;
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  std::string name = std::string(KindName(info.param.kind));
  const std::string words = Scenarios(info.param.kind)[info.param.scenario].name;
  bool capital = true;
  for (const char c : words) {
    if (c == ' ') {
      capital = true;
    } else {
      name += capital ? static_cast<char>(std::toupper(c)) : c;
      capital = false;
    }
  }
  return name;
}

class CrashEnumeration : public testing::TestWithParam<Param> {
 protected:
  CrashEnumeration() {
    SetLogSink([](LogLevel, std::string_view) {});
    // The engine's buffers are in huge pages, which are dear to clear for a few KiB.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~CrashEnumeration() override { SetLogSink(nullptr); }
};

TEST_P(CrashEnumeration, EveryPromiseHoldsAtEveryInstant) {
  const auto [kind, index] = GetParam();
  const Scenario scenario = Scenarios(kind)[index];
  const Recording recording = Record(scenario);
  ASSERT_TRUE(recording.status.ok()) << scenario.name << ": " << recording.status.ToString();
  EXPECT_EQ(recording.not_done, std::vector<std::string>()) << scenario.name;
  const Tally tally = Enumerate(scenario, recording.cuts, Ends(kind, 1));
  for (const Violation& violation : tally.violations) ADD_FAILURE() << violation.text;
  std::printf("%-28s %5zu prefixes, %6zu images\n", scenario.name.c_str(),
              static_cast<std::size_t>(tally.cuts), static_cast<std::size_t>(tally.images));
}

TEST(CrashRules, RemovingABaseBeforeItsIncrementsIsNoticed) {
  SetLogSink([](LogLevel, std::string_view) {});
  for (const Machine::Kind kind :
       {Machine::Kind::kDisk, Machine::Kind::kBucket, Machine::Kind::kShelves}) {
    for (Scenario& scenario : Scenarios(kind)) {
      if (scenario.name != "increments and retention") continue;
      scenario.world.rules.increments_go_first = false;
      const Recording recording = Record(scenario);
      ASSERT_TRUE(recording.status.ok()) << recording.status.ToString();
      const Tally tally =
          Enumerate(scenario, recording.cuts, {{Ending::kKill, 0}}, {.max_violations = 1});
      EXPECT_FALSE(tally.violations.empty());
    }
  }
  SetLogSink(nullptr);
}

// One scenario a round, ended at every instant in ways that no round before has tried.
TEST(RandomCrash, EveryPromiseHoldsForEverNewSubsetsAndTornWrites) {
  SetLogSink([](LogLevel, std::string_view) {});
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const std::vector<Scenario> scenarios = Scenarios(Machine::Kind::kDisk);
  Torture torture("crash", 1);
  torture.Run([&](std::uint64_t seed) {
    const Scenario& scenario = scenarios[seed % scenarios.size()];
    const Recording recording = Record(scenario);
    EXPECT_TRUE(recording.status.ok()) << scenario.name << ": " << recording.status.ToString();
    const Tally tally = Enumerate(scenario, recording.cuts,
                                  {{Ending::kSubset, 1000 + seed}, {Ending::kTorn, 1000 + seed}});
    for (const Violation& violation : tally.violations) ADD_FAILURE() << violation.text;
    torture.Count("prefixes", tally.cuts);
    torture.Count("images", tally.images);
    return !testing::Test::HasFailure();
  });
  SetLogSink(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Machines, CrashEnumeration, testing::ValuesIn(AllParams()), ParamName);

}  // namespace
}  // namespace cairn::crash

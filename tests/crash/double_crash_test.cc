// The double crash: the machine ends, and ends again while the job recovers from that: during the
// opening, the first save after it, or its retention. Exhaustive over the first end; the way it
// ends and the second end are drawn. CAIRN_TORTURE_SECONDS makes it run that long with new seeds.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/crash/scenarios.h"
#include "tests/crash/torture.h"

namespace cairn::crash {
namespace {

class DoubleCrash : public testing::TestWithParam<Machine::Kind> {
 protected:
  DoubleCrash() {
    SetLogSink([](LogLevel, std::string_view) {});
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~DoubleCrash() override { SetLogSink(nullptr); }
};

TEST_P(DoubleCrash, EveryPromiseHoldsWhenTheRecoveryIsCutShortToo) {
  const std::vector<Scenario> scenarios = Scenarios(GetParam());
  std::vector<Recording> recordings;
  for (const Scenario& scenario : scenarios) {
    recordings.push_back(Record(scenario));
    ASSERT_TRUE(recordings.back().status.ok()) << recordings.back().status.ToString();
  }
  const Machine::Kind kind = GetParam();
  Torture torture(kind == Machine::Kind::kDisk     ? "disk"
                  : kind == Machine::Kind::kBucket ? "bucket"
                                                   : "shelves",
                  1);
  torture.Run([&](std::uint64_t seed) {
    for (std::size_t i = 0; i < scenarios.size(); ++i) {
      const Tally tally = EnumerateTwice(scenarios[i], recordings[i].cuts,
                                         {.seed = seed, .samples = Torture::Asked() ? 8 : 3});
      for (const Violation& violation : tally.violations) ADD_FAILURE() << violation.text;
      torture.Count("first ends", tally.cuts);
      torture.Count("second ends", tally.images);
      if (Torture::Asked()) continue;
      std::printf("%-28s %5zu first ends, %6zu second\n", scenarios[i].name.c_str(),
                  static_cast<std::size_t>(tally.cuts), static_cast<std::size_t>(tally.images));
    }
    return !HasFailure();
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, DoubleCrash,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket,
                                         Machine::Kind::kShelves),
                         [](const auto& param) { return std::string(KindName(param.param)); });

}  // namespace
}  // namespace cairn::crash

// The larger worlds, under random schedules: a fixed number of them from a fixed seed in a test.
// With CAIRN_TORTURE_SECONDS all scenarios take turns for that long, each time with new seeds;
// CAIRN_TORTURE_STATE keeps seeds and counts from run to run. A schedule that breaks a promise is
// found again by `bin/explore SCENARIO DISK seed=N runs=1`.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <tuple>

#include "base/clock.h"
#include "format/json.h"
#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

struct Sample {
  std::string scenario;
  std::uint64_t runs = 0;
};

const Sample kSamples[] = {
    {"Crowd", 50},
    {"PinRemovalTakeover", 150},
    {"RanksAndTakeover", 150},
    {"TwoRanksTwoSavesLate", 150},
    {"TwoCoordinators", 75},
    {"ReplacedRankLate", 100},
    {"ReplacedRankOfThree", 75},
    {"RestartedRank", 75},
};

class RandomSchedules : public testing::TestWithParam<std::tuple<Sample, Disk>> {};

TEST_P(RandomSchedules, KeepThePromises) {
  const auto& [sample, disk] = GetParam();
  const Scenario scenario = AllScenarios().at(sample.scenario)(disk);
  const Exploration found = ExploreRandomly(scenario, 1, {.runs = sample.runs});
  std::cout << found.Summary(scenario.name) << "\n";
  EXPECT_EQ(found.violation, "") << found.schedule;
}

std::string NameOfCase(const testing::TestParamInfo<std::tuple<Sample, Disk>>& info) {
  return std::get<Sample>(info.param).scenario + "_" +
         std::string(DiskName(std::get<Disk>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Of, RandomSchedules,
                         testing::Combine(testing::ValuesIn(kSamples),
                                          testing::Values(Disk::kPlain, Disk::kObjects,
                                                          Disk::kShelves)),
                         NameOfCase);

/// Seeds and counts that accumulate over runs of `make torture`.
struct Record {
  std::uint64_t seed = 1'000'000;  // the next one that was never used
  std::uint64_t runs = 0;
  std::uint64_t states = 0;  // distinct ones of each turn, added up

  static Record Load() {
    Record record;
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return record;
    std::ifstream in(path);
    auto value = DecodeJson(std::string((std::istreambuf_iterator<char>(in)), {}));
    if (!value.ok()) return record;
    const auto read = [&](const char* key, std::uint64_t* into) {
      if (const Value* found = value->Find(key)) *into = static_cast<std::uint64_t>(found->AsInt());
    };
    read("seed", &record.seed);
    read("runs", &record.runs);
    read("states", &record.states);
    return record;
  }
  void Save() const {
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return;
    const Value::Object object{{"seed", seed}, {"runs", runs}, {"states", states}};
    std::ofstream(path) << EncodeJson(object) << "\n";
  }
};

/// Of a torture: every scenario in turn, for as long as was asked for; once round at least.
TEST(Torture, KeepsThePromises) {
  const char* seconds = std::getenv("CAIRN_TORTURE_SECONDS");
  const std::chrono::seconds time(seconds == nullptr ? 0 : std::atol(seconds));
  const auto rounds_of = static_cast<std::int64_t>(3 * AllScenarios().size());
  const std::chrono::seconds turn(std::clamp<std::int64_t>(time.count() / rounds_of / 4, 1, 30));
  const Clock::Duration end = Clock::System()->Now() + time;
  Record record = Record::Load();
  do {
    for (const auto& [name, make] : AllScenarios()) {
      for (const Disk disk : {Disk::kPlain, Disk::kObjects, Disk::kShelves}) {
        // Outside of a torture a few runs of each show that all this works.
        Limits limits;
        if (seconds != nullptr) {
          limits.time = turn;
        } else {
          limits.runs = 3;
        }
        const Exploration found = ExploreRandomly(make(disk), record.seed, limits);
        record.seed += found.runs + 1;
        record.runs += found.runs;
        record.states += found.states;
        record.Save();
        ASSERT_EQ(found.violation, "") << name << "\n" << found.schedule;
      }
    }
  } while (Clock::System()->Now() < end);
  std::cout << record.runs << " random runs in all, " << record.states << " states\n";
}

}  // namespace
}  // namespace cairn::interleaving

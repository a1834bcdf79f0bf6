#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paramserver/job_fixture.h"

// Learning rates that a training sets: on all servers, each once, in sync mode for whole steps, and
// the same after any loss.

namespace cairn::ps {
namespace {

/// Every step adds 1 to every key's gradient: the weights are the sum of the rates of all steps.
class Schedule {
 public:
  static constexpr std::size_t kKeys = 40;

  Status Declare(Client* client) {
    for (std::size_t i = 0; i < kKeys; ++i) ids_.push_back(static_cast<std::int64_t>(i) - 3);
    ASSIGN_OR_RETURN(table_, client->Table({.name = "t",
                                            .dim = 1,
                                            .optimizer = {"sgd", {{"learning_rate", 1}}},
                                            .initializer = {"constant", 0, 0}}));
    return Status::Ok();
  }
  /// 1, then halved every third step; of which it is set in that step alone.
  static float RateOf(std::int64_t step) {
    return std::ldexp(1.0F, -static_cast<int>(std::min<std::int64_t>(step / 3, 9)));
  }
  Status Step(std::int64_t step, bool push, bool set) {
    if (push) RETURN_IF_ERROR(Push());
    if (set && step % 3 == 0) RETURN_IF_ERROR(table_->SetLearningRate(RateOf(step)));
    return Status::Ok();
  }
  Status Push() { return table_->ApplyGradients(ids_, std::vector<float>(kKeys, 1)); }
  /// What all weights are; NaN when they differ.
  float Weight() {
    std::vector<float> rows(kKeys);
    if (!table_->Lookup(ids_, rows).ok()) return std::numeric_limits<float>::quiet_NaN();
    for (const float row : rows) {
      if (row != rows[0]) return std::numeric_limits<float>::quiet_NaN();
    }
    return rows[0];
  }
  RemoteTable* table() { return table_; }

 private:
  RemoteTable* table_ = nullptr;
  std::vector<std::int64_t> ids_;
};

class RateTest : public JobTest {
 protected:
  static constexpr std::int64_t kSteps = 20;

  static float Expected(std::int64_t steps) {
    float sum = 0;
    for (std::int64_t step = 0; step < steps; ++step) sum -= Schedule::RateOf(step);
    return sum;
  }
  /// All trainers, to that many steps; trainer 0 pushes, those from `setting` on set rates.
  float TrainSetting(std::int64_t steps, int setting,
                     const std::function<void(std::int64_t)>& before = {}) {
    float weight = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < trainers_; ++i) {
      threads.emplace_back([&, i] {
        auto client = Connect(i).value();
        Schedule schedule;
        ASSERT_TRUE(schedule.Declare(client.get()).ok());
        while (client->step() < steps) {
          const std::int64_t step = client->step();
          if (i == 0 && before) before(step);
          Status done = schedule.Step(step, i == 0, i >= setting);
          if (done.ok()) done = client->EndStep("");
          ASSERT_TRUE(done.ok() || done.Is(Code::kAborted)) << done.ToString();
        }
        if (i == 0) weight = schedule.Weight();
        ASSERT_TRUE(client->Barrier().ok());
        ASSERT_TRUE(client->Close().ok());
      });
    }
    threads.clear();  // joins
    return weight;
  }
  void Clear() {
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
};

TEST_F(RateTest, WhoSetsItMakesNoDifferenceInSyncMode) {
  for (const int setting : {0, 1}) {
    StartServers(2);
    EXPECT_EQ(TrainSetting(kSteps, setting), Expected(kSteps)) << setting;
    Clear();
  }
  StartServers(2);
  EXPECT_EQ(TrainSetting(kSteps, trainers_), -static_cast<float>(kSteps)) << "nobody sets it";
}

TEST_F(RateTest, OfSeveralRatesForAStepTheLastTrainersCounts) {
  StartServers(2);
  std::vector<std::jthread> threads;
  for (int i = 0; i < trainers_; ++i) {
    threads.emplace_back([&, i] {
      auto client = Connect(i).value();
      Schedule schedule;
      ASSERT_TRUE(schedule.Declare(client.get()).ok());
      ASSERT_TRUE(schedule.table()->SetLearningRate(i == 0 ? 8 : 2).ok());
      ASSERT_TRUE(schedule.table()->SetLearningRate(i == 0 ? 16 : 4).ok());
      if (i == 0) {
        EXPECT_EQ(schedule.table()->LearningRate().value(), 1) << "the step has not ended";
        ASSERT_TRUE(schedule.Push().ok());
      }
      ASSERT_TRUE(client->EndStep("").ok());
      EXPECT_EQ(schedule.table()->LearningRate().value(), 4);
      EXPECT_EQ(schedule.Weight(), -4);
      ASSERT_TRUE(client->Barrier().ok());
    });
  }
}

TEST_F(RateTest, ALostServerChangesNothing) {
  for (const Recovery recovery : {Recovery::kExact, Recovery::kLog}) {
    for (const int victim : {0, 1}) {
      SCOPED_TRACE(testing::Message()
                   << "recovery " << static_cast<int>(recovery) << ", server " << victim);
      recovery_ = recovery;
      StartServers(2);
      bool lost = false;
      // In a step that has set one already, of which the other trainer's is still to come perhaps.
      const float weight = TrainSetting(kSteps, 0, [&](std::int64_t step) {
        if (step != 14 || std::exchange(lost, true)) return;
        Lose(victim);
        StartServer(victim, 2);
      });
      EXPECT_EQ(weight, Expected(kSteps));
      Clear();
    }
  }
}

TEST_F(RateTest, AnotherNumberOfServersGoesOnWithIt) {
  paced_ = true;
  StartServers(2);
  EXPECT_EQ(TrainSetting(14, 0, [&](std::int64_t) { AwaitSaves(); }), Expected(14));
  AwaitSaves();
  servers_.clear();
  StartServers(3);
  EXPECT_GT(Connect(-1).value()->step(), 0);
  EXPECT_EQ(TrainSetting(kSteps, 0), Expected(kSteps));
}

TEST_F(RateTest, AsyncItCountsAtOnceAndIsReplayed) {
  mode_ = Mode::kAsync;
  recovery_ = Recovery::kLog;
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_.reset();
  StartServers(2);
  auto client = Connect(0).value();
  Schedule schedule;
  ASSERT_TRUE(schedule.Declare(client.get()).ok());
  ASSERT_TRUE(schedule.table()->SetLearningRate(0.5F).ok());
  EXPECT_EQ(schedule.table()->LearningRate().value(), 0.5F);
  ASSERT_TRUE(schedule.Push().ok());
  for (const int victim : {0, 1}) Lose(victim);
  for (const int victim : {0, 1}) StartServer(victim, 2);
  EXPECT_EQ(schedule.table()->LearningRate().value(), 0.5F);
  ASSERT_TRUE(schedule.Push().ok());
  EXPECT_EQ(schedule.Weight(), -1);
}

TEST_F(RateTest, InModePartialItIsSetAgainWhenTheGenerationHasChanged) {
  mode_ = Mode::kAsync;
  recovery_ = Recovery::kPartial;
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_.reset();
  StartServers(2);
  auto client = Connect(0).value();
  Schedule schedule;
  ASSERT_TRUE(schedule.Declare(client.get()).ok());
  ASSERT_TRUE(schedule.table()->SetLearningRate(0.5F).ok());
  const std::uint64_t before = client->generation();
  Lose(1);
  StartServer(1, 2);
  EXPECT_EQ(schedule.Weight(), 0) << "meets the server that came back";
  EXPECT_NE(client->generation(), before);
  ASSERT_TRUE(schedule.table()->SetLearningRate(0.5F).ok());
  ASSERT_TRUE(schedule.Push().ok());
  EXPECT_EQ(schedule.Weight(), -0.5F);
}

TEST_F(RateTest, WhatIsNoneIsRefusedAndTheServersLive) {
  trainers_ = 1;
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    SCOPED_TRACE(static_cast<int>(mode));
    mode_ = mode;
    StartServers(2);
    {
      auto client = Connect(0).value();
      Schedule schedule;
      ASSERT_TRUE(schedule.Declare(client.get()).ok());
      for (const float rate : {-1.0F, std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::infinity()}) {
        const Status refused = schedule.table()->SetLearningRate(rate);
        EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
      }
      ASSERT_TRUE(schedule.Push().ok());
      ASSERT_TRUE(client->EndStep("").ok());
      EXPECT_EQ(schedule.Weight(), -1);
      auto looks = Connect(-1).value();
      Schedule seen;
      ASSERT_TRUE(seen.Declare(looks.get()).ok());
      EXPECT_EQ(seen.table()->LearningRate().value(), 1);
      EXPECT_EQ(seen.table()->SetLearningRate(2).code(), Code::kFailedPrecondition);
    }
    Clear();
  }
}

}  // namespace
}  // namespace cairn::ps

#include "train/save_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SaveScheduleTest, BothIntervalsMustDivide) {
  SaveSchedule schedule({.epoch_interval = 3, .step_interval = 4});
  schedule.Start(seconds(0));
  std::vector<std::pair<int, int>> due;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int step = 0; step < 6; ++step) {
      if (schedule.Due(epoch, step, seconds(1))) due.emplace_back(epoch, step);
    }
  }
  EXPECT_THAT(due, testing::ElementsAre(std::pair(0, 0), std::pair(0, 4), std::pair(3, 0),
                                        std::pair(3, 4)));
}

TEST(SaveScheduleTest, TimeCountsFromTheLastSave) {
  SaveSchedule schedule({.step_interval = 1000, .save_seconds = 10});
  schedule.Start(seconds(100));
  EXPECT_FALSE(schedule.Due(0, 1, seconds(109)));
  EXPECT_TRUE(schedule.Due(0, 2, seconds(110)));
  schedule.Saved(seconds(112), 2);
  EXPECT_FALSE(schedule.Due(0, 3, seconds(121)));
  EXPECT_TRUE(schedule.Due(0, 4, seconds(122)));
}

TEST(SaveScheduleTest, CheapSavesAreNoCauseForAWarning) {
  SaveSchedule schedule({.step_interval = 1});
  schedule.Start(seconds(0));
  for (int step = 0; step < 100; ++step) {
    schedule.Due(0, step, seconds(step + 1));
    schedule.Saved(seconds(step + 1), 0.049);
    EXPECT_FALSE(schedule.CostWarning(seconds(step + 1)).has_value());
  }
}

TEST(SaveScheduleTest, TheIntervalThatIsAdvisedCostsLessThanAllowed) {
  SaveSchedule schedule({.step_interval = 2, .save_seconds = 1});
  schedule.Start(seconds(0));
  milliseconds now(0);
  std::optional<std::string> warning;
  for (int step = 0; step < 10 && !warning; ++step) {
    now += milliseconds(500);
    if (!schedule.Due(0, step, now)) continue;
    now += milliseconds(100);
    schedule.Saved(now, 0.1);
    warning = schedule.CostWarning(now);
  }
  ASSERT_TRUE(warning.has_value());
  EXPECT_THAT(*warning, testing::HasSubstr("3 saves"));
  // 0.1 s of stall after 1.9 s of training: a twentieth.
  EXPECT_THAT(*warning, testing::HasSubstr("save_seconds=2 and step_interval=4 "));
  EXPECT_FALSE(schedule.CostWarning(now + seconds(1)).has_value()) << "said twice";
}

TEST(SaveScheduleTest, WhatIsLongerThanAnEpochIsAdvisedInEpochs) {
  // Steps of 0.5 s, epochs of 3, step 0 of each saved: no step_interval changes that.
  SaveSchedule schedule({.step_interval = 2});
  schedule.Start(seconds(0));
  milliseconds now(0);
  std::optional<std::string> warning;
  for (int step = 0; step < 30 && !warning; ++step) {
    now += milliseconds(500);
    if (!schedule.Due(step / 3, step % 3, now)) continue;
    now += milliseconds(100);
    schedule.Saved(now, 0.1);
    if (step >= 3) warning = schedule.CostWarning(now);
  }
  ASSERT_TRUE(warning.has_value());
  EXPECT_THAT(*warning, testing::HasSubstr("; epoch_interval=2 and step_interval=3 would"));
}

}  // namespace
}  // namespace cairn

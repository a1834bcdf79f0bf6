#include "train/session_schedule.h"

#include <gtest/gtest.h>

#include <limits>

namespace cairn {
namespace {

using Due = SessionSchedule::Due;
using std::chrono::seconds;

SessionSchedule Make(const SessionOptions& options) {
  return SessionSchedule::Make(options).value();
}

TEST(SessionSchedule, TellsFullAndIncrementByTime) {
  SessionSchedule schedule =
      Make({.save_checkpoint_secs = 60, .save_incremental_checkpoint_secs = 20});
  schedule.Start(seconds(0), 0);
  EXPECT_EQ(schedule.Check(seconds(19), 1), Due::kNothing);
  EXPECT_EQ(schedule.Check(seconds(20), 2), Due::kIncrement);
  schedule.Saved(Due::kIncrement, seconds(20), 2);
  EXPECT_EQ(schedule.Check(seconds(39), 3), Due::kNothing);
  schedule.Saved(Due::kIncrement, seconds(40), 4);
  EXPECT_EQ(schedule.Check(seconds(60), 5), Due::kFull);  // both are due
  schedule.Saved(Due::kFull, seconds(60), 5);
  EXPECT_EQ(schedule.Check(seconds(79), 6), Due::kNothing);
  EXPECT_EQ(schedule.Check(seconds(80), 6), Due::kIncrement);
}

TEST(SessionSchedule, NothingIsResetWithoutASave) {
  SessionSchedule schedule = Make({.save_checkpoint_secs = 60});
  schedule.Start(seconds(0), 0);
  EXPECT_EQ(schedule.Check(seconds(60), 1), Due::kFull);
  EXPECT_EQ(schedule.Check(seconds(61), 2), Due::kFull);
  schedule.Saved(Due::kNothing, seconds(61), 2);
  EXPECT_EQ(schedule.Check(seconds(62), 3), Due::kFull);
}

TEST(SessionSchedule, CountsSteps) {
  SessionSchedule schedule = Make({.save_checkpoint_secs = 0,
                                   .save_checkpoint_steps = 10,
                                   .save_incremental_checkpoint_steps = 3});
  schedule.Start(seconds(0), 100);
  EXPECT_EQ(schedule.Check(seconds(1000), 102), Due::kNothing);
  EXPECT_EQ(schedule.Check(seconds(1000), 103), Due::kIncrement);
  EXPECT_EQ(schedule.Check(seconds(1000), 110), Due::kFull);
}

TEST(SessionSchedule, ARestartDoesNotPutAFullOneOff) {
  SessionSchedule schedule = Make({.save_checkpoint_secs = 0,
                                   .save_checkpoint_steps = 10,
                                   .save_incremental_checkpoint_steps = 3});
  schedule.Start(seconds(0), 106, 100);
  EXPECT_EQ(schedule.Check(seconds(1000), 108), Due::kNothing);
  EXPECT_EQ(schedule.Check(seconds(1000), 109), Due::kIncrement);
  EXPECT_EQ(schedule.Check(seconds(1000), 110), Due::kFull);
}

TEST(SessionSchedule, ARestartCountsTheTimeBeforeIt) {
  SessionSchedule schedule =
      Make({.save_checkpoint_secs = 60, .save_incremental_checkpoint_secs = 20});
  schedule.Start(seconds(0), 0);
  schedule.Saved(Due::kFull, seconds(60), 100);
  schedule.Saved(Due::kIncrement, seconds(80), 120);
  const SessionSchedule::Age age = schedule.SinceFull(seconds(80), 120);
  EXPECT_EQ(age, (SessionSchedule::Age{seconds(20), 20}));
  SessionSchedule again =
      Make({.save_checkpoint_secs = 60, .save_incremental_checkpoint_secs = 20});
  again.Start(seconds(1000), 120, age);
  EXPECT_EQ(again.Check(seconds(1019), 121), Due::kNothing);
  EXPECT_EQ(again.Check(seconds(1020), 121), Due::kIncrement);
  EXPECT_EQ(again.Check(seconds(1040), 121), Due::kFull);
}

TEST(SessionSchedule, AStateIsNotSavedTwice) {
  SessionSchedule schedule = Make({.save_checkpoint_secs = 10});
  schedule.Start(seconds(0), 5);
  EXPECT_EQ(schedule.Check(seconds(100), 5), Due::kNothing);
}

TEST(SessionSchedule, ZeroAndNothingSwitchOff) {
  EXPECT_FALSE(Make({.save_checkpoint_secs = std::nullopt}).saves());
  EXPECT_FALSE(Make({.save_checkpoint_secs = 0}).saves());
  EXPECT_FALSE(Make({.save_incremental_checkpoint_secs = 0}).increments());
  EXPECT_TRUE(Make({.save_incremental_checkpoint_secs = 1}).increments());
}

TEST(SessionSchedule, RefusesWhatIsNoInterval) {
  EXPECT_FALSE(SessionSchedule::Make({.save_checkpoint_secs = -1}).ok());
  EXPECT_FALSE(SessionSchedule::Make({.save_checkpoint_steps = -1}).ok());
  EXPECT_FALSE(SessionSchedule::Make({.save_incremental_checkpoint_secs = -0.5}).ok());
  EXPECT_FALSE(
      SessionSchedule::Make({.save_checkpoint_secs = std::numeric_limits<double>::quiet_NaN()})
          .ok());
  EXPECT_FALSE(
      SessionSchedule::Make({.save_checkpoint_secs = std::numeric_limits<double>::infinity()})
          .ok());
}

}  // namespace
}  // namespace cairn

#include "serving/setbacks.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/manual_clock.h"

namespace cairn::serving {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SetbacksTest : public ::testing::Test {
 protected:
  Setback Note(const Status& failure, bool guard = false) {
    return setbacks_.Note("a", failure, guard);
  }
  ManualClock clock_;
  Setbacks setbacks_{&clock_, seconds(5)};
};

TEST_F(SetbacksTest, WhatDoesNotFitAndWhatAGuardRefusedIsFinal) {
  EXPECT_TRUE(Note(MismatchError("another shape")).refused);
  EXPECT_TRUE(Note(FailedPreconditionError("NaN"), /*guard=*/true).refused);
  EXPECT_TRUE(setbacks_.NotDue().empty());
}

TEST_F(SetbacksTest, WrongBytesAreFinalWhenTheyWereReadTwice) {
  const Setback first = Note(CorruptionError("a checksum"));
  EXPECT_FALSE(first.refused);
  EXPECT_TRUE(first.aside);
  EXPECT_FALSE(first.told) << "it may have been the way here";
  EXPECT_FALSE(setbacks_.HoldsTold());
  EXPECT_FALSE(Note(UnavailableError("no answer")).refused);
  EXPECT_TRUE(Note(CorruptionError("a checksum")).refused);
}

TEST_F(SetbacksTest, EverythingElseIsTriedAgainEverMoreRarely) {
  for (const Code code :
       {Code::kInvalidArgument, Code::kFailedPrecondition, Code::kUnimplemented, Code::kInternal,
        Code::kUnavailable, Code::kDeadlineExceeded, Code::kPermissionDenied,
        Code::kResourceExhausted, Code::kAborted, Code::kAlreadyExists}) {
    std::vector<std::int64_t> waits;
    for (int i = 0; i < 8; ++i) {
      const Setback setback = Note(Status(code, "passes"));
      EXPECT_FALSE(setback.refused);
      EXPECT_TRUE(setback.told);
      EXPECT_TRUE(setbacks_.HoldsTold());
      EXPECT_EQ(setbacks_.NotDue().size(), 1u);
      const auto wait = setbacks_.UntilNext(seconds(100));
      waits.push_back(wait / seconds(1));
      clock_.Advance(wait);
      EXPECT_TRUE(setbacks_.NotDue().empty());
      EXPECT_EQ(setbacks_.UntilNext(seconds(100)), seconds(100)) << "nothing waits";
    }
    EXPECT_EQ(waits, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 30, 30, 30}));
    setbacks_.Forget("a");
  }
}

TEST_F(SetbacksTest, OthersAreTriedMeanwhileWhereItMayBeTheCheckpoint) {
  EXPECT_TRUE(Note(InternalError("OpenVINO: something")).aside);
  EXPECT_TRUE(Note(InvalidArgumentError("HTTP 418")).aside);
  EXPECT_FALSE(Note(UnavailableError("no answer")).aside) << "neither could others be read";
}

TEST_F(SetbacksTest, WhatVanishesIsLookedForAgainAtOnceAndToldOfLater) {
  for (int i = 0; i < 4; ++i) {
    const Setback setback = Note(NotFoundError("a file"));
    EXPECT_FALSE(setback.refused || setback.aside || setback.told) << i;
    EXPECT_TRUE(setbacks_.NotDue().empty());
  }
  const Setback setback = Note(NotFoundError("a file"));
  EXPECT_FALSE(setback.refused);
  EXPECT_TRUE(setback.aside && setback.told);
  EXPECT_EQ(setbacks_.NotDue().size(), 1u);
}

TEST_F(SetbacksTest, AnUpdateThatWasGivenUpIsNoFailure) {
  const Setback setback = Note(CancelledError("stopping"));
  EXPECT_FALSE(setback.refused || setback.aside || setback.told);
  EXPECT_TRUE(setbacks_.NotDue().empty());
}

TEST_F(SetbacksTest, WaitsAreNotLongerThanPollingAtFirst) {
  Setbacks quick(&clock_, milliseconds(20));
  quick.Note("a", UnavailableError("no answer"), false);
  EXPECT_EQ(quick.UntilNext(seconds(100)), milliseconds(20));
  quick.Note("b", UnavailableError("no answer"), false);
  quick.KeepOnly({"b"});
  EXPECT_EQ(quick.NotDue(), (std::set<std::string>{"b"})) << "a was removed from the repository";
}

}  // namespace
}  // namespace cairn::serving

// A follower whose store, dense part or memory fails for a while.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/log.h"
#include "base/manual_clock.h"
#include "serving/test_follower.h"
#include "storage/forwarding_store.h"
#include "storage/open_store.h"
#include "storage/sim/faulty_store.h"

namespace cairn::serving {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class FollowerFaultsTest : public FollowerTest {
 protected:
  FollowerFaultsTest() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~FollowerFaultsTest() override { SetLogSink(nullptr); }

  /// A follower over `store_`, whose time stands still but for what a test says.
  void FollowFaulty(FollowerOptions options = {}) {
    local_ = OpenStore(path_, {.create = false}).value();
    store_ = std::make_unique<FaultyStore>(local_.get());
    options.clock = &clock_;
    options.open = [this]() -> Result<std::unique_ptr<Store>> {
      return std::unique_ptr<Store>(std::make_unique<ForwardingStore>(store_.get()));
    };
    Follow(options);
  }
  std::string Problems() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const UpdateReport& report : reports_) {
      if (report.kind != Kind::kApplied) all += report.message + "\n";
    }
    return all;
  }

  ManualClock clock_;
  std::unique_ptr<Store> local_;
  std::unique_ptr<FaultyStore> store_;
};

/// What stores say of things that pass: an unknown 4xx is an InvalidArgument, a bucket that a proxy
/// does not find, a certificate, and a 404 that is no file system's are FailedPrecondition, unknown
/// exceptions of a name node are Internal, and a range that was cut short is Corruption.
class PassingFaults : public FollowerFaultsTest, public ::testing::WithParamInterface<Code> {};

TEST_P(PassingFaults, OfAnyOperationRefuseNothing) {
  TestWriter writer(path_, {.keep_last = 1});  // so that a look stays as long as it is
  writer.Set({1, 2}, 1).Full(1);
  FollowFaulty();
  ASSERT_EQ(LookInTurn().at(-2), 1);
  std::int64_t step = 1;
  int failed = 0;
  for (std::uint64_t at = 0;; ++at) {
    ++step;
    writer.Set({1, 3}, static_cast<float>(step));
    step % 3 == 0 ? writer.Full(step) : writer.Increment(step);
    store_->Arm({.status = Status(GetParam(), "for a moment"), .trigger = {.at = at}});
    const RowMap before = Served();
    const RowMap during = LookInTurn();
    const bool reached = store_->failures() > 0;
    store_->Disarm();
    ASSERT_TRUE(during == before || during.at(-2) == static_cast<float>(step)) << at;
    failed += during == before ? 1 : 0;
    clock_.Advance(seconds(1));
    const RowMap after = LookInTurn();
    ASSERT_EQ(after.at(-2), static_cast<float>(step)) << at << ": " << Problems();
    ASSERT_EQ(after.at(1), static_cast<float>(step)) << at;
    if (!reached) break;
  }
  EXPECT_GT(failed, 3) << "some operations are needed for an update";
  EXPECT_EQ(Count(Kind::kRefused), 0) << Problems();
  EXPECT_EQ(follower_->stats().refused, 0u);
  EXPECT_TRUE(follower_->stats().reachable);
}

INSTANTIATE_TEST_SUITE_P(Codes, PassingFaults,
                         ::testing::Values(Code::kCorruption, Code::kInvalidArgument,
                                           Code::kFailedPrecondition, Code::kUnimplemented,
                                           Code::kInternal, Code::kUnavailable, Code::kNotFound,
                                           Code::kPermissionDenied, Code::kDeadlineExceeded,
                                           Code::kResourceExhausted),
                         [](const auto& name) { return std::string(CodeName(name.param)); });

TEST_F(FollowerFaultsTest, WhatFailsForLongIsTriedEverMoreRarelyAndToldOnce) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  FollowFaulty();
  LookInTurn();
  dense_.loads = 0;
  dense_.trouble = InternalError("OpenVINO: std::bad_alloc");
  writer.Set({1}, 2).Increment(2);
  for (int second = 0; second <= 100; ++second) {
    EXPECT_EQ(LookInTurn().at(-2), 1);
    EXPECT_FALSE(follower_->stats().reachable) << "also when it is not its turn";
    clock_.Advance(seconds(1));
  }
  EXPECT_EQ(dense_.loads, 8) << "after 0, 1, 3, 7, 15, 31, 61 and 91 seconds";
  EXPECT_EQ(Count(Kind::kUnreachable), 1);
  EXPECT_THAT(Last().message, HasSubstr("bad_alloc"));
  dense_.trouble = Status::Ok();
  clock_.Advance(seconds(30));
  EXPECT_EQ(LookInTurn(), (RowMap{{-2, 2}, {1, 2}}));
  EXPECT_TRUE(follower_->stats().reachable);
  EXPECT_EQ(Count(Kind::kRefused), 0);
}

TEST_F(FollowerFaultsTest, MeanwhileTheNextNewestIsServed) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  writer.Set({1}, 2).Increment(2);
  FollowFaulty();
  // The first read of a file of rows is of the newest.
  store_->Arm({.status = InvalidArgumentError("HTTP 418"),
               .trigger = {.at = 0, .kind = StoreOp::Kind::kOpenReader}});
  EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}})) << "better than nothing";
  writer.Set({1}, 3).Increment(3);
  EXPECT_EQ(LookInTurn(), (RowMap{{-2, 3}, {1, 3}})) << "a newer one waits for nobody";
}

TEST_F(FollowerFaultsTest, ADamagedCheckpointIsReadAgainAndThenRefused) {
  TestWriter writer(path_);
  writer.Set({1, 2}, 1).Full(1);
  FollowFaulty();
  LookInTurn();
  const CheckpointInfo bad = writer.Set({1}, 2).Increment(2);
  Flip(RowsOf(bad));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(Count(Kind::kRefused) + Count(Kind::kUnreachable), 0) << "it may be the way here";
  clock_.Advance(seconds(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
    clock_.Advance(seconds(60));
  }
  EXPECT_EQ(Count(Kind::kRefused), 1);
  EXPECT_EQ(Last().id, bad.id);
  EXPECT_EQ(Count(Kind::kUnreachable), 0);
  Flip(RowsOf(bad));
  EXPECT_EQ(LookInTurn().at(-2), 1) << "final";
}

TEST_F(FollowerFaultsTest, AManifestThatIsDamagedForAMomentIsNotReported) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  FollowFaulty();
  LookInTurn();
  const CheckpointInfo torn = writer.Set({1}, 2).Increment(2);
  const std::string manifest = torn.path + "/manifest.json";
  Flip(manifest);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LookInTurn().at(-2), 1);
  EXPECT_EQ(Count(Kind::kRefused), 0);
  Flip(manifest);
  EXPECT_EQ(LookInTurn().at(-2), 2);
  const CheckpointInfo lost = writer.Set({1}, 3).Increment(3);
  Flip(lost.path + "/manifest.json");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(LookInTurn().at(-2), 2);
    clock_.Advance(seconds(1));
  }
  EXPECT_EQ(Count(Kind::kRefused), 1) << "it stays so";
}

TEST_F(FollowerFaultsTest, AGuardThatCannotLookIsNoVerdict) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  FollowFaulty();
  LookInTurn();
  dense_.blind = InternalError("OpenVINO: no threads");
  writer.Set({1}, 2).Increment(2);
  EXPECT_EQ(LookInTurn().at(-2), 1) << "nothing is shown unchecked";
  dense_.blind = Status::Ok();
  clock_.Advance(seconds(1));
  EXPECT_EQ(LookInTurn().at(-2), 2);
  dense_.refused = 3;
  writer.Set({1}, 3).Increment(3);
  LookInTurn();
  dense_.refused = -1;
  clock_.Advance(seconds(60));
  EXPECT_EQ(LookInTurn().at(-2), 2) << "and this one was";
  EXPECT_EQ(Count(Kind::kRefused), 1);
}

TEST_F(FollowerFaultsTest, AnExceptionIsAFailureThatMayPass) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  FollowFaulty();
  LookInTurn();
  dense_.throws = true;
  writer.Set({1, 2, 3}, 2).Increment(2);
  LookInTurn();
  const std::uint64_t bytes = versions_.bytes_in_use();  // the index has grown
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(seconds(30));
    EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}}));
  }
  EXPECT_EQ(dense_.loads, 7);
  EXPECT_EQ(versions_.bytes_in_use(), bytes) << "every try was aborted";
  EXPECT_EQ(Count(Kind::kUnreachable), 1);
  EXPECT_THAT(Last().message, HasSubstr("no memory"));
  dense_.throws = false;
  clock_.Advance(seconds(30));
  EXPECT_EQ(LookInTurn(), (RowMap{{-2, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

TEST_F(FollowerFaultsTest, AnObserverThatThrowsStopsNothing) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  int told = 0;
  follower_ = Follower::Open({.repository = path_, .clock = &clock_}, &versions_, &dense_,
                             [&](const UpdateReport&) {
                               ++told;
                               throw std::runtime_error("an observer's");
                             })
                  .value();
  for (int step = 2; step < 5; ++step) {
    EXPECT_EQ(LookInTurn().at(-2), static_cast<float>(step - 1));
    writer.Set({1}, static_cast<float>(step)).Increment(step);
  }
  EXPECT_GE(told, 3);
}

/// All that an update costs is within its share, not only its rows.
TEST_F(FollowerFaultsTest, WorkOnTheDensePartIsPaced) {
  std::chrono::nanoseconds own{0};
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  FollowFaulty({.cpu_share = 0.25, .cpu_time = [&] { return own; }});
  LookInTurn();
  Clock::Duration before = clock_.Now();
  writer.Set({1}, 2).Increment(2);
  LookInTurn();
  EXPECT_EQ(clock_.Now(), before) << "nothing that is worth a pause";

  dense_.cost = milliseconds(120);  // a graph is compiled, by threads of its runtime
  before = clock_.Now();
  Clock::Duration shown{0};
  on_report_ = [&](const UpdateReport&) { shown = clock_.Now(); };
  writer.Set({1}, 3).Increment(3);
  EXPECT_EQ(LookInTurn().at(-2), 3);
  EXPECT_EQ(clock_.Now() - before, milliseconds(400)) << "a burst of 20 ms is free";
  EXPECT_EQ(shown, before) << "an increment is shown first, and paid for afterwards";

  before = clock_.Now();
  writer.Set({1}, 4).Full(4);
  EXPECT_EQ(LookInTurn().at(-2), 4);
  EXPECT_EQ(clock_.Now() - before, milliseconds(400));
}

}  // namespace
}  // namespace cairn::serving

#include "serving/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string_view>

#include "base/log.h"
#include "checkpoint/names.h"
#include "format/records.h"
#include "serving/test_follower.h"
#include "storage/local/posix_fs.h"
#include "storage/open_store.h"
#include "storage/sim/faulty_fs.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
class FollowsEveryKind : public FollowerTest, public ::testing::WithParamInterface<int> {
 protected:
  TestWriter::Options Options() const {
    TestWriter::Options options;
    options.chain = GetParam() % 2 == 0 ? SaveKind::kCumulative : SaveKind::kConsecutive;
    options.rows.compress_keys = GetParam() / 2 == 1;
    options.rows.quantize = GetParam() / 2 == 2;
    return options;
  }
};

TEST_P(FollowsEveryKind, FullsIncrementsDeletionsAndNewBases) {
  TestWriter writer(path_, Options());
  writer.Set({1, 2, 3}, 1).Full(1);
  writer.Set({2}, 2).Increment(2);
  Follow();
  EXPECT_EQ(Look(), (RowMap{{-2, 2}, {1, 1}, {2, 2}, {3, 1}})) << "a full one and its increment";
  EXPECT_TRUE(Last().full);
  writer.Set({4}, 3).Erase({1}).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {2, 2}, {3, 1}, {4, 3}}));
  EXPECT_FALSE(Last().full);
  writer.Set({1}, 4).Increment(4);
  writer.Set({5}, 5).Increment(5);
  EXPECT_EQ(Look(), (RowMap{{-2, 5}, {1, 4}, {2, 2}, {3, 1}, {4, 3}, {5, 5}})) << "two at once";
  EXPECT_FALSE(Last().full);
  writer.Set({5}, 6).Erase({2}).Full(6);
  EXPECT_EQ(Look(), (RowMap{{-2, 6}, {1, 4}, {3, 1}, {4, 3}, {5, 6}}));
  EXPECT_TRUE(Last().full);
  EXPECT_EQ(Last().changed, 2u) << "rows that are equal are not stored again";
  writer.Set({3}, 7).Increment(7);
  EXPECT_EQ(Look(), (RowMap{{-2, 7}, {1, 4}, {3, 7}, {4, 3}, {5, 6}}));
  EXPECT_FALSE(Last().full);
  EXPECT_EQ(Look(), Served());
  EXPECT_EQ(follower_->stats().applied, 5u) << "nothing new, nothing done";
}

/// Rows that only the branch that was given up had changed are as they were.
TEST_P(FollowsEveryKind, ABranchThatBeginsAtAnOlderCheckpoint) {
  TestWriter writer(path_, Options());
  writer.Set({1, 2, 3}, 1).Full(1);
  const CheckpointInfo fork = writer.Set({1}, 2).Increment(2);
  Follow();
  Look();
  writer.Set({2, 7}, 3).Erase({3}).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 2}, {2, 3}, {7, 3}}));
  writer.GoBack(fork.id).Set({1}, 4).Increment(4);
  EXPECT_EQ(Look(), (RowMap{{-2, 4}, {1, 4}, {2, 1}, {3, 1}}));
  EXPECT_TRUE(Last().full) << "an increment over the wrong branch would have left its rows";
  writer.Set({2}, 5).Increment(5);
  EXPECT_EQ(Look(), (RowMap{{-2, 5}, {1, 4}, {2, 5}, {3, 1}}));
  EXPECT_FALSE(Last().full);
}

/// An increment in between that the follower never saw, because it was removed before.
TEST_F(FollowerTest, LinksThatAreMissingMeanReadingEverything) {
  TestWriter writer(path_);
  writer.Set({1, 2}, 1).Full(1);
  writer.Set({1}, 2).Increment(2);
  Follow();
  Look();
  const CheckpointInfo unseen = writer.Set({2}, 3).Increment(3);
  writer.Set({2}, 4).Increment(4);
  fs::remove_all(unseen.path);
  EXPECT_EQ(Look(), (RowMap{{-2, 4}, {1, 2}, {2, 4}}));
  EXPECT_TRUE(Last().full);
}

INSTANTIATE_TEST_SUITE_P(Chains, FollowsEveryKind, ::testing::Range(0, 6));

TEST_F(FollowerTest, APlaceThatCannotBeIsRefusedAndNotWaitedFor) {
  for (const char* place : {"s4://bucket/run", "s3://", "hdfs://"}) {
    const auto follower = Follower::Open({.repository = place}, &versions_, &dense_, {});
    EXPECT_TRUE(follower.status().Is(Code::kInvalidArgument))
        << place << ": " << follower.status().ToString();
  }
}

TEST_F(FollowerTest, NothingYetIsNoErrorForLong) {
  Follow();
  EXPECT_EQ(follower_->Look().code(), Code::kNotFound);
  EXPECT_EQ(follower_->Look().code(), Code::kNotFound);
  EXPECT_EQ(Count(Kind::kUnreachable), 1) << "reported once";
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
}

TEST_F(FollowerTest, IsWokenByACommit) {
  Follow({.poll = std::chrono::hours(1)});
  follower_->Start();
  TestWriter writer(path_);
  for (int step = 1; step <= 10; ++step) {
    writer.Set({step % 3}, static_cast<float>(step));
    step % 4 == 1 ? writer.Full(step) : writer.Increment(step);
    ASSERT_TRUE(WaitForStep(step)) << step;
  }
  EXPECT_EQ(Served(), (RowMap{{-2, 10}, {0, 9}, {1, 10}, {2, 8}}));
}

TEST_F(FollowerTest, ADamagedIncrementIsRefusedOnceAndTheNextGoodOneIsTaken) {
  TestWriter writer(path_);
  writer.Set({1, 2}, 1).Full(1);
  Follow();
  Look();
  const CheckpointInfo bad = writer.Set({1}, 2).Increment(2);
  Flip(RowsOf(bad));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}, {2, 1}})) << "the old one";
  EXPECT_EQ(Count(Kind::kRefused), 1);
  EXPECT_EQ(Last().id, bad.id);
  writer.Set({2}, 3).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 2}, {2, 3}}))
      << "it holds all that changed since the full";
  EXPECT_FALSE(Last().full);
}

TEST_F(FollowerTest, WhatCannotBeReadForNowIsReportedOnceAndTakenWhenItCan) {
  TestWriter writer(path_);
  writer.Set({1, 2}, 1).Full(1);
  Follow();
  Look();
  std::atomic<int> lines = 0;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.find("can be read again") != line.npos) ++lines;
  });
  for (const std::int64_t step : {2, 3}) {
    const RowMap before = Served();
    writer.Set({1}, static_cast<float>(step)).Increment(step);
    dense_.trouble = PermissionDeniedError("a file of another user");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Look(), before);
    EXPECT_EQ(Count(Kind::kUnreachable), static_cast<int>(step) - 1) << "once for each";
    EXPECT_FALSE(follower_->stats().reachable);
    dense_.trouble = Status::Ok();
    EXPECT_EQ(Look().at(-2), static_cast<float>(step));
    EXPECT_TRUE(follower_->stats().reachable);
  }
  SetLogSink(nullptr);
  EXPECT_EQ(lines, 0) << "the repository could be read all the time";
  EXPECT_EQ(Count(Kind::kRefused), 0);
}

TEST_F(FollowerTest, AfterABrokenChainTheNextFullIsTaken) {
  TestWriter::Options options;
  options.chain = SaveKind::kConsecutive;
  TestWriter writer(path_, options);
  writer.Set({1, 2}, 1).Full(1);
  Follow();
  Look();
  const CheckpointInfo lost = writer.Set({1}, 2).Increment(2);
  writer.Set({2}, 3).Increment(3);
  fs::remove_all(lost.path);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
  Look();
  EXPECT_EQ(Count(Kind::kPassedOver), 1);
  EXPECT_THAT(Last().message, HasSubstr("which is not there"));
  writer.Full(4);
  EXPECT_EQ(Look(), (RowMap{{-2, 4}, {1, 2}, {2, 3}}));
}

TEST_F(FollowerTest, AHalfWrittenCheckpointIsNoUpdate) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  Follow();
  Look();
  const CheckpointInfo half = writer.Set({1}, 2).Increment(2);
  fs::resize_file(RowsOf(half), fs::file_size(RowsOf(half)) / 2);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  EXPECT_EQ(Count(Kind::kRefused), 1);
  const CheckpointInfo torn = writer.Increment(3);
  fs::resize_file(torn.path + "/manifest.json", 100);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  EXPECT_EQ(Count(Kind::kRefused), 2);
}

TEST_F(FollowerTest, NaNAndTheProbeKeepAnUpdateFromBeingSeen) {
  TestWriter writer(path_);
  writer.Set({1, 2}, 1).Full(1);
  Follow();
  Look();
  writer.Set({2}, std::numeric_limits<float>::quiet_NaN()).Increment(2);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(Count(Kind::kRefused), 1);
  EXPECT_THAT(Last().message, HasSubstr("key 2 has NaN"));
  writer.Set({2}, 3).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 1}, {2, 3}})) << "mended";
  dense_.refused = 4;
  writer.Set({1}, 4).Increment(4);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 1}, {2, 3}}));
  EXPECT_THAT(Last().message, HasSubstr("probe"));
  writer.Increment(5);
  EXPECT_EQ(Look(), (RowMap{{-2, 5}, {1, 4}, {2, 3}}));
}

TEST_F(FollowerTest, AnExportForFullsPassesOverIncrementsAndSaysSo) {
  TestWriter writer(path_);
  writer.Set({1}, 1).Full(1);
  writer.Set({1}, 2).Increment(2);
  Follow({.increments = false});
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  Look();
  EXPECT_EQ(Count(Kind::kPassedOver), 1);
  const std::lock_guard lock(mutex_);
  EXPECT_THAT(reports_[0].message, HasSubstr("full checkpoints only"));
  EXPECT_EQ(reports_[0].step, 2);
}

TEST_F(FollowerTest, FollowsAWriterThatWasKilledAndStartedAgain) {
  {
    TestWriter writer(path_);
    writer.Set({1}, 1).Full(1);
    writer.Set({1}, 2).Increment(2);
  }
  Follow();
  Look();
  TestWriter writer(path_);
  ASSERT_TRUE(writer.restored());
  EXPECT_EQ(Look(), (RowMap{{-2, 2}, {1, 2}})) << "a new seal that names it changes nothing";
  writer.Set({2}, 3).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 2}, {2, 3}}));
  EXPECT_FALSE(Last().full) << "the chain went on";
}

TEST_F(FollowerTest, WhatAnOvertakenWriterCommitsIsNeverServed) {
  TestWriter old(path_);
  old.Set({1}, 1).Full(1);
  Follow();
  Look();
  TestWriter::Options options;
  options.takeover = true;
  TestWriter fresh(path_, options);
  EXPECT_EQ(old.Set({1}, 2).Save(2, SaveKind::kCumulative).status().code(), Code::kAborted);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  fresh.Set({2}, 3).Increment(3);
  EXPECT_EQ(Look(), (RowMap{{-2, 3}, {1, 1}, {2, 3}})) << "nothing of the old writer's branch";
}

TEST_F(FollowerTest, LeavesAVersionThatCountsNoLonger) {
  {
    TestWriter writer(path_);
    writer.Set({1, 2}, 1).Full(1);
    writer.Set({1}, 2).Increment(2);
  }
  Follow();
  EXPECT_EQ(Look(), (RowMap{{-2, 2}, {1, 2}, {2, 1}}));
  // A writer that took over before the increment was there: its seal does not name it.
  const auto view = [&] {
    auto store = OpenStore(path_, {.create = false}).value();
    return RepositoryReader(store.get()).Read().value();
  }();
  SealRecord seal;
  seal.generation = 2;
  seal.uuid = "99999999-2222-4333-8444-555555555555";
  seal.commits = {view.checkpoints.front().manifest->id};
  ASSERT_EQ(view.checkpoints.front().manifest->step, 1);
  FenceRecord fence;
  fence.generation = 2;
  fence.uuid = seal.uuid;
  fence.job = view.record.job;
  std::ofstream(path_ + "/" + names::Fence(2)) << Encode(fence);
  std::ofstream(path_ + "/" + names::Seal(2)) << Encode(seal);
  EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(Count(Kind::kAbandoned), 1);
  EXPECT_EQ(versions_.Rollback(1).code(), Code::kFailedPrecondition) << "nothing to go back to";
}

TEST_F(FollowerTest, AnIncrementOfAnotherJobIsForeign) {
  const std::string other = directory_ / "other";
  TestWriter mine(path_);
  mine.Set({1}, 1).Full(1);
  TestWriter theirs(other);
  theirs.Set({1}, 7).Full(5);
  const CheckpointInfo strange = theirs.Set({1}, 8).Increment(6);
  Follow();
  Look();
  fs::copy(strange.path, path_ + "/increment_000006", fs::copy_options::recursive);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  EXPECT_EQ(Count(Kind::kPassedOver), 1);
  EXPECT_THAT(Last().message, HasSubstr("belongs to the job"));
}

TEST_F(FollowerTest, ARepositoryThatDisappearsAndComesBack) {
  std::string id;
  {
    TestWriter writer(path_);
    writer.Set({1}, 1).Full(1);
  }
  Follow();
  Look();
  fs::rename(path_, path_ + ".gone");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}}));
  EXPECT_EQ(Count(Kind::kUnreachable), 1);
  EXPECT_FALSE(follower_->stats().reachable);
  {
    TestWriter stranger(path_);
    stranger.Set({1}, 8).Full(8);
    stranger.Set({1}, 9).Full(9);  // with a place behind that of what is served
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Look(), (RowMap{{-2, 1}, {1, 1}})) << "another job's";
    EXPECT_EQ(Count(Kind::kUnreachable), 2) << "another reason is told too, once";
    EXPECT_THAT(Last().message, ::testing::HasSubstr("belongs to the job"));
  }
  fs::remove_all(path_);
  fs::rename(path_ + ".gone", path_);
  TestWriter writer(path_);
  writer.Set({1}, 2).Increment(2);
  EXPECT_EQ(Look(), (RowMap{{-2, 2}, {1, 2}}));
  EXPECT_TRUE(follower_->stats().reachable);
}

TEST_F(FollowerTest, RetentionBehindItsBackIsNoProblem) {
  TestWriter::Options options;
  options.keep_last = 1;
  TestWriter writer(path_, options);
  writer.Set({1}, 1).Full(1);
  Follow();
  Look();
  for (int step = 2; step < 12; ++step) {
    writer.Set({step % 5}, static_cast<float>(step));
    step % 5 == 0 ? writer.Full(step) : writer.Increment(step);
    if (step % 3 == 0) {
      EXPECT_EQ(Look().at(-2), static_cast<float>(step));
    }
  }
  EXPECT_EQ(Look(), (RowMap{{-2, 11}, {0, 10}, {1, 11}, {2, 7}, {3, 8}, {4, 9}}));
  EXPECT_EQ(Count(Kind::kRefused), 0);
}

TEST_F(FollowerTest, ATableThatDoesNotFitIsNamed) {
  TestWriter::Options options;
  options.dim = 3;
  TestWriter writer(path_, options);
  writer.Set({1}, 1).Full(1);
  Follow();
  const Status looked = follower_->Look();
  EXPECT_EQ(looked.reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(looked.message()), HasSubstr("F32 [3], the model wants F32 [4]"));
  EXPECT_FALSE(versions_.Acquire());
}

TEST_F(FollowerTest, AFullDiskOfTheTrainerLeavesTheVersionBefore) {
  FaultyFs disk(PosixFs());
  TestWriter writer(path_, {.fs = &disk});
  writer.Set({1, 2}, 1).Full(1);
  Follow();
  RowMap served = Look();
  ASSERT_EQ(served[-2], 1);
  std::int64_t step = 1;
  int failed = 0;
  // From the first, second, … operation of a save on, until a save does not come so far any more.
  for (std::uint64_t at = 0;; ++at) {
    ++step;
    writer.Set({1, 3}, static_cast<float>(step));
    disk.Arm({.failure = FsFailure::kNoSpace, .trigger = {.at = at, .from_then_on = true}});
    const auto kind = step % 2 == 0 ? SaveKind::kCumulative : SaveKind::kFull;
    const auto saved = writer.Save(step, kind);
    const bool reached = disk.operations() > at;
    if (saved.ok()) {
      // The room ended after the commit: what is acknowledged is served.
      served = Look();
      ASSERT_EQ(served[-2], step) << at;
    } else {
      ++failed;
      EXPECT_TRUE(saved.status().Is(Code::kResourceExhausted)) << saved.status().ToString();
      RowMap now = Look();
      // A save that was not acknowledged counts whole or not at all.
      if (now != served) {
        ASSERT_EQ(now[-2], step) << at;
      }
      served = now;
    }
    disk.Disarm();
    // Room again: the next save is served, whatever the failed one left behind.
    ++step;
    writer.Set({1, 2, 3}, static_cast<float>(step)).Increment(step);
    served = Look();
    ASSERT_EQ(served[-2], step) << at;
    ASSERT_EQ(served[1], step) << at;
    if (saved.ok() && !reached) break;
  }
  EXPECT_GT(failed, 5);
  EXPECT_EQ(Count(Kind::kRefused), 0);
}

TEST_F(FollowerTest, TheTrainersClockMayJump) {
  JumpingClock clock;
  constexpr std::int64_t kYear = std::int64_t{365} * 86400 * 1'000'000'000;
  clock.wall = 50 * kYear;
  TestWriter writer(path_, {.clock = &clock});
  Follow();
  std::int64_t step = 0;
  for (const std::int64_t wall :
       {50 * kYear, 20 * kYear, 90 * kYear, std::int64_t{0}, 60 * kYear}) {
    clock.wall = wall;
    ++step;
    writer.Set({1}, static_cast<float>(step));
    step % 3 == 1 ? writer.Full(step) : writer.Increment(step);
    RowMap served = Look();
    EXPECT_EQ(served[-2], step) << "what is newest is not told by clocks";
    EXPECT_EQ(served[1], step);
    EXPECT_EQ(follower_->stats().newest_step, step);
    EXPECT_EQ(follower_->stats().newest_committed / kYear, wall / kYear);
  }
  EXPECT_EQ(Count(Kind::kRefused) + Count(Kind::kPassedOver), 0);
}

}  // namespace
}  // namespace cairn::serving

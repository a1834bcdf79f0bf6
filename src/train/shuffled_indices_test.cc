#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <cairn/reader.h>

namespace cairn {
namespace {

using Batches = std::vector<std::vector<std::uint64_t>>;

Batches Rest(ShuffledIndices* reader) {
  Batches batches;
  for (;;) {
    auto next = reader->Next();
    EXPECT_TRUE(next.ok());
    if (!*next) return batches;
    batches.push_back(**next);
  }
}

Batches Epoch(ShuffledIndicesOptions options, std::int64_t epoch) {
  ShuffledIndices reader(options);
  EXPECT_TRUE(reader.Begin(epoch).ok());
  return Rest(&reader);
}

TEST(ShuffledIndicesTest, EveryIndexComesOnceInAnOrderOfItsOwnForEachEpoch) {
  const ShuffledIndicesOptions options = {.size = 103, .batch_size = 10, .seed = 5};
  const Batches first = Epoch(options, 0);
  EXPECT_EQ(first.size(), 11u);
  EXPECT_EQ(first.back().size(), 3u);
  std::set<std::uint64_t> seen;
  for (const auto& batch : first) seen.insert(batch.begin(), batch.end());
  EXPECT_EQ(seen.size(), 103u);
  EXPECT_EQ(*seen.rbegin(), 102u);
  EXPECT_EQ(Epoch(options, 0), first);
  EXPECT_NE(Epoch(options, 1), first);
  EXPECT_NE(Epoch({.size = 103, .batch_size = 10, .seed = 6}, 0), first);
}

// The order is part of what a checkpoint relies on: it may never change.
TEST(ShuffledIndicesTest, TheOrderIsTheSameInEveryVersion) {
  EXPECT_EQ(Epoch({.size = 8, .batch_size = 8, .seed = 1}, 0), (Batches{{0, 5, 2, 7, 3, 4, 1, 6}}));
}

TEST(ShuffledIndicesTest, TrainersShareTheDataAndMakeTheSameNumberOfSteps) {
  std::set<std::uint64_t> seen;
  for (int id = 0; id < 3; ++id) {
    const Batches own =
        Epoch({.size = 100, .batch_size = 10, .seed = 5, .trainer_id = id, .num_trainers = 3}, 2);
    EXPECT_EQ(own.size(), 4u);
    for (const auto& batch : own) {
      for (const std::uint64_t index : batch) EXPECT_TRUE(seen.insert(index).second);
    }
  }
  EXPECT_EQ(seen.size(), 99u);
}

TEST(ShuffledIndicesTest, SeeksToAnyPosition) {
  const ShuffledIndicesOptions options = {
      .size = 50, .batch_size = 8, .seed = 5, .drop_last = true};
  const Batches all = Epoch(options, 3);
  EXPECT_EQ(all.size(), 6u);
  ShuffledIndices reader(options);
  ASSERT_TRUE(reader.Begin(3).ok());
  for (std::size_t done = 0; done <= all.size(); ++done) {
    auto state = reader.SaveState();
    ASSERT_TRUE(state.ok());
    ShuffledIndices other(options);
    ASSERT_TRUE(other.LoadState(*state).ok());
    EXPECT_EQ(Rest(&other), Batches(all.begin() + static_cast<std::ptrdiff_t>(done), all.end()));
    ASSERT_TRUE(reader.Next().ok());
  }
}

TEST(ShuffledIndicesTest, TheStateOfOtherDataIsRefusedByName) {
  ShuffledIndices reader({.size = 50, .seed = 5});
  ASSERT_TRUE(reader.Begin(0).ok());
  const Value state = reader.SaveState().value();
  ShuffledIndices other({.size = 51, .seed = 5});
  const Status refused = other.LoadState(state);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.ToString(), testing::HasSubstr("another size"));
  EXPECT_FALSE(other.LoadState(Value()).ok());
}

TEST(ShuffledIndicesTest, WrongOptionsAreRefused) {
  EXPECT_EQ(ShuffledIndices({.size = 5, .batch_size = 0}).Begin(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(ShuffledIndices({.size = 5, .trainer_id = 2, .num_trainers = 2}).Begin(0).code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(ShuffledIndices({.size = 5}).Next().ok());
}

}  // namespace
}  // namespace cairn

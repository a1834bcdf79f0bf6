#include "launch/launch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LaunchQueueTest, NothingOvertakesTheHeadButWhatTakesNoSlot) {
  LaunchQueue queue(2);
  queue.Take({0});
  queue.Push("wide", 2, 0);
  queue.Push("narrow", 1, 0);
  EXPECT_FALSE(queue.Pop().has_value());
  queue.Push("beside", 0, 0);
  const auto beside = queue.Pop();
  ASSERT_TRUE(beside.has_value());
  EXPECT_EQ(beside->id, "beside");
  EXPECT_THAT(beside->slots, IsEmpty());
  queue.Release({0});
  const auto wide = queue.Pop();
  ASSERT_TRUE(wide.has_value());
  EXPECT_EQ(wide->id, "wide");
  EXPECT_THAT(wide->slots, ElementsAre(0, 1));
  EXPECT_FALSE(queue.Pop().has_value());
  queue.Release({1});
  EXPECT_EQ(queue.Pop()->id, "narrow");
}

TEST(LaunchQueueTest, PriorityThenOrder) {
  LaunchQueue queue(1);
  queue.Push("a", 1, 0);
  queue.Push("b", 1, 1);
  queue.Push("c", 1, 1);
  EXPECT_EQ(queue.Reason("b"), "waits for 1 slot (1 free)");
  EXPECT_EQ(queue.Reason("a"), "behind 2 others");
  EXPECT_EQ(queue.Reason("nobody"), "");
  EXPECT_EQ(queue.Pop()->id, "b");
  EXPECT_TRUE(queue.Remove("c"));
  EXPECT_FALSE(queue.Remove("c"));
  queue.Release({0});
  EXPECT_EQ(queue.Pop()->id, "a");
}

TEST(LaunchQueueTest, SlotsBeyondOursAndTwiceTakenComeBackRight) {
  LaunchQueue queue(2);
  queue.Take({1, 5});  // taken up from a launcher with more slots
  queue.Take({1});
  queue.Push("a", 2, 0);
  queue.Release({1, 5});
  EXPECT_FALSE(queue.Pop().has_value()) << "slot 1 has another owner still";
  queue.Release({1});
  EXPECT_TRUE(queue.Pop().has_value());
}

TEST(LaunchQueueTest, SlotTexts) {
  EXPECT_EQ(JoinSlots({0, 3}), "0,3");
  EXPECT_THAT(ParseSlots("0,3"), ElementsAre(0, 3));
  EXPECT_THAT(ParseSlots(""), IsEmpty());
  EXPECT_THAT(ParseSlots("x,,7y,2"), ElementsAre(2));
}

}  // namespace
}  // namespace cairn

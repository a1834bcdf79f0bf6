#include "net/retry_policy.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr RetryPolicy kPolicy = {
    .max_attempts = 8, .first_wait = milliseconds(100), .longest_wait = seconds(1)};

TEST(RetryPolicy, BoundDoublesUpToTheLongestWait) {
  EXPECT_EQ(kPolicy.Wait(1, 1.0, nanoseconds(0)), milliseconds(100));
  EXPECT_EQ(kPolicy.Wait(2, 1.0, nanoseconds(0)), milliseconds(200));
  EXPECT_EQ(kPolicy.Wait(4, 1.0, nanoseconds(0)), milliseconds(800));
  EXPECT_EQ(kPolicy.Wait(5, 1.0, nanoseconds(0)), seconds(1));
  EXPECT_EQ(kPolicy.Wait(1'000'000, 1.0, nanoseconds(0)), seconds(1));
}

TEST(RetryPolicy, WaitIsSpreadOverTheWholeBound) {
  EXPECT_EQ(kPolicy.Wait(2, 0.0, nanoseconds(0)), nanoseconds(0));
  EXPECT_EQ(kPolicy.Wait(2, 0.5, nanoseconds(0)), milliseconds(100));
}

TEST(RetryPolicy, ServerMayAskForALongerWaitWithinReason) {
  EXPECT_EQ(kPolicy.Wait(1, 0.5, milliseconds(700)), milliseconds(700));
  EXPECT_EQ(kPolicy.Wait(1, 0.5, seconds(3600)), seconds(1));
  EXPECT_EQ(kPolicy.Wait(5, 1.0, milliseconds(1)), seconds(1));
}

}  // namespace
}  // namespace cairn

#include "checkpoint/fill_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <vector>

namespace cairn {
namespace {

TEST(FillAhead, FillsInOrderAndSaysHowEachWent) {
  std::vector<int> order;
  FillAhead ahead;
  for (int i = 0; i < 100; ++i) {
    ahead.Add([&order, i] {
      order.push_back(i);
      return i == 7 ? UnavailableError("the seventh") : Status::Ok();
    });
  }
  for (int i = 0; i < 100; ++i) {
    const Status status = ahead.Next();
    EXPECT_EQ(status.ok(), i != 7) << i;
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(FillAhead, IsAheadOfWhoWaits) {
  std::binary_semaphore second(0);
  FillAhead ahead;
  ahead.Add([] { return Status::Ok(); });
  ahead.Add([&] {
    second.release();
    return Status::Ok();
  });
  second.acquire();  // although nobody has asked for the first
  EXPECT_TRUE(ahead.Next().ok());
  EXPECT_TRUE(ahead.Next().ok());
}

TEST(FillAhead, EndsAfterWhatItIsAt) {
  std::binary_semaphore begun(0);
  std::binary_semaphore go_on(0);
  std::atomic<int> filled = 0;
  std::thread other;
  {
    FillAhead ahead;
    ahead.Add([&] {
      begun.release();
      go_on.acquire();
      ++filled;
      return Status::Ok();
    });
    begun.acquire();
    for (int i = 0; i < 10; ++i) {
      ahead.Add([&] {
        ++filled;
        return Status::Ok();
      });
    }
    // Released when the destructor is under way, or before: it waits in any case.
    other = std::thread([&] { go_on.release(); });
  }
  other.join();
  EXPECT_GE(filled, 1);
}

}  // namespace
}  // namespace cairn

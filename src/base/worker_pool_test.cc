#include "base/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace cairn {
namespace {

TEST(WorkerPoolTest, CallsEachItemOnceInEveryRound) {
  WorkerPool pool(4);
  for (std::size_t round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> calls(round);
    pool.Run(round, [&](std::size_t i) { calls[i].fetch_add(1); });
    for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
  }
}

TEST(WorkerPoolTest, WorksWithoutFurtherThreads) {
  WorkerPool pool(1);
  int sum = 0;
  pool.Run(10, [&](std::size_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 45);
}

}  // namespace
}  // namespace cairn

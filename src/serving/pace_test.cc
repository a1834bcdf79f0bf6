#include "serving/pace.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdint>

namespace cairn::serving {
namespace {

/// Stands still, and adds up what is slept.
class StillClock final : public Clock {
 public:
  Duration Now() override { return slept; }
  std::int64_t WallNanos() override { return 0; }
  void Sleep(Duration duration) override { slept += duration; }
  Duration slept{0};
};

/// Uses the processor for so long, by the thread's own clock.
void Work(std::chrono::milliseconds time) {
  const auto used = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto end = used() + time;
  while (used() < end) {
  }
}

TEST(PaceTest, SleepsUntilTheShareIsKept) {
  StillClock clock;
  Pace pace(&clock, 0.25, std::chrono::milliseconds(0));
  Work(std::chrono::milliseconds(20));
  pace.Pause();
  // 20 ms of work are a quarter of 80 ms.
  EXPECT_GE(clock.slept, std::chrono::milliseconds(79));
  const Clock::Duration before = clock.slept;
  pace.Pause();
  EXPECT_LT(clock.slept - before, std::chrono::milliseconds(40)) << "paid already";
}

TEST(PaceTest, ShortWorkAndAWholeCoreAreNeverHeldUp) {
  StillClock clock;
  Pace burst(&clock, 0.25, std::chrono::seconds(60));
  Pace whole(&clock, 1, std::chrono::milliseconds(0));
  Work(std::chrono::milliseconds(5));
  burst.Pause();
  whole.Pause();
  EXPECT_EQ(clock.slept, Clock::Duration(0));
}

}  // namespace
}  // namespace cairn::serving

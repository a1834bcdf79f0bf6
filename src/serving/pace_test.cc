#include "serving/pace.h"

#include <gtest/gtest.h>

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
  const auto end = Pace::ThreadTime() + time;
  while (Pace::ThreadTime() < end) {
  }
}

TEST(PaceTest, SleepsUntilTheShareIsKept) {
  StillClock clock;
  Pace pace({.clock = &clock, .share = 0.25});
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
  Pace burst({.clock = &clock, .share = 0.25, .burst = std::chrono::seconds(60)});
  Pace whole({.clock = &clock, .share = 1});
  Work(std::chrono::milliseconds(5));
  burst.Pause();
  whole.Pause();
  EXPECT_EQ(clock.slept, Clock::Duration(0));
}

TEST(PaceTest, WorkOnOtherThreadsCountsAsItIsTold) {
  StillClock clock;
  std::chrono::nanoseconds used = std::chrono::seconds(7);  // before it began
  Pace pace({.clock = &clock, .share = 0.5, .burst = std::chrono::milliseconds(20), .used = [&] {
               return used;
             }});
  used += std::chrono::milliseconds(20);
  pace.Pause();
  EXPECT_EQ(clock.slept, Clock::Duration(0));
  used += std::chrono::milliseconds(100);
  pace.Pause();
  EXPECT_EQ(clock.slept, std::chrono::milliseconds(200));
}

TEST(PaceTest, ASleepEndsWhenItIsStopped) {
  StillClock clock;
  std::chrono::nanoseconds used{0};
  Pace pace({.clock = &clock,
             .share = 0.01,
             .used = [&] { return used; },
             .stopped = [&] { return clock.slept >= std::chrono::milliseconds(100); }});
  used = std::chrono::seconds(60);
  pace.Pause();
  EXPECT_EQ(clock.slept, std::chrono::milliseconds(100)) << "and not 6000 seconds";
}

}  // namespace
}  // namespace cairn::serving

#include "base/clock.h"

#include <thread>

namespace cairn {
namespace {

class SystemClock final : public Clock {
 public:
  Duration Now() override { return std::chrono::steady_clock::now().time_since_epoch(); }
  std::int64_t WallNanos() override {
    return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  void Sleep(Duration duration) override { std::this_thread::sleep_for(duration); }
};

}  // namespace

Clock* Clock::System() {
  static SystemClock clock;
  return &clock;
}

}  // namespace cairn

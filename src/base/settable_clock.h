#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace cairn {

/// The machine's clock, which a test sets forward. Whoever waits looks at it now and then, an
/// engine of trials at least once a second.
class SettableClock final : public Clock {
 public:
  Duration Now() override { return System()->Now() + Duration(ahead_); }
  std::int64_t WallNanos() override { return System()->WallNanos() + ahead_; }
  void Sleep(Duration duration) override { System()->Sleep(duration); }
  void Advance(Duration by) { ahead_ += by.count(); }

 private:
  std::atomic<std::int64_t> ahead_ = 0;
};

}  // namespace cairn

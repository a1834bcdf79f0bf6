#pragma once

#include <chrono>
#include <cstdint>

namespace cairn {

/// Time as the engine sees it: a monotonic clock for waits and deadlines, a wall clock for records
/// that people read. Nothing is ever decided by comparing wall clocks of different machines.
/// Implementations may be called from any thread.
class Clock {
 public:
  using Duration = std::chrono::nanoseconds;

  virtual ~Clock() = default;
  /// Time since an arbitrary fixed instant; never goes back.
  virtual Duration Now() = 0;
  /// Nanoseconds since 1970 UTC.
  virtual std::int64_t WallNanos() = 0;
  /// Returns after `duration`, or sooner when a test's scheduler says so: callers loop on Now().
  virtual void Sleep(Duration duration) = 0;

  /// The machine's own clocks. Lives for ever.
  static Clock* System();
};

}  // namespace cairn

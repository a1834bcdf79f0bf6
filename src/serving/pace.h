#pragma once

#include <chrono>

#include "base/clock.h"

namespace cairn::serving {

/// Keeps a piece of background work within a share of one core: after each part of it Pause()
/// compares the processor time that the calling thread has used with what it may have used by now,
/// and sleeps the rest. Work that is short (`burst`) is never held up. One thread.
class Pace {
 public:
  /// `share`: of a core, over 0; 1 and more: no limit.
  Pace(Clock* clock, double share, std::chrono::nanoseconds burst);
  void Pause();

  /// Lets the calling thread, and threads that it starts, stand behind others (nice 5).
  static void StandBehind();

 private:
  Clock* const clock_;
  const double share_;
  const std::chrono::nanoseconds burst_;
  const std::chrono::nanoseconds began_;
  const std::chrono::nanoseconds used_before_;
};

}  // namespace cairn::serving

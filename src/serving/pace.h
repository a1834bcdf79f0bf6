#pragma once

#include <chrono>
#include <functional>

#include "base/clock.h"

namespace cairn::serving {

/// Keeps a piece of background work within a share of one core: after each part of it Pause()
/// compares the processor time that it has used with what it may have used by now, and sleeps the
/// rest. Work that is short (`burst`) is never held up. One thread.
class Pace {
 public:
  struct Options {
    Clock* clock = Clock::System();
    double share = 1;  // of a core, over 0; 1 and more: no limit
    std::chrono::nanoseconds burst{0};
    /// Processor time that the work has used so far; empty: the calling thread's.
    std::function<std::chrono::nanoseconds()> used;
    std::function<bool()> stopped;  // ends a sleep; may be empty
  };
  explicit Pace(Options options);
  void Pause();

  /// Processor time of the calling thread, and of all threads of the process.
  static std::chrono::nanoseconds ThreadTime();
  static std::chrono::nanoseconds ProcessTime();
  /// Lets the calling thread, and threads that it starts, stand behind others (nice 5).
  static void StandBehind();

 private:
  const Options options_;
  const std::chrono::nanoseconds began_;
  const std::chrono::nanoseconds used_before_;
};

}  // namespace cairn::serving

#pragma once

#include <algorithm>
#include <chrono>

#include <cairn/status.h>

#include "base/clock.h"

namespace cairn {

/// Asks `done` (a Result<bool>) again and again, ever less often, until it is true, fails, or the
/// deadline passes (false).
template <typename Done>
Result<bool> PollUntil(Clock* clock, Clock::Duration deadline, Done done) {
  Clock::Duration pause = std::chrono::milliseconds(1);
  for (;;) {
    auto answer = done();
    if (!answer.ok() || *answer) return answer;
    if (clock->Now() >= deadline) return false;
    clock->Sleep(pause);
    pause = std::min<Clock::Duration>(pause * 2, std::chrono::milliseconds(50));
  }
}

}  // namespace cairn

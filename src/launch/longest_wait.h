#pragma once

#include <chrono>

namespace cairn {

/// What is told to wait longer waits so long: a time without end would overflow the clock.
inline constexpr std::chrono::nanoseconds kLongestLaunchWait = std::chrono::hours(24 * 365);

}  // namespace cairn

#pragma once

#include <chrono>

namespace cairn {

/// When a failed request is tried again: exponential back-off with full jitter, so that many
/// clients that failed together do not come back together.
struct RetryPolicy {
  /// Requests in all; 1 tries nothing again.
  int max_attempts = 8;
  /// The first wait is a random time up to this; each further bound is twice the one before …
  std::chrono::nanoseconds first_wait = std::chrono::milliseconds(100);
  /// … up to this.
  std::chrono::nanoseconds longest_wait = std::chrono::seconds(20);

  /// The wait after the `attempt`-th request (from 1) failed. `random` is drawn from [0, 1). A
  /// server's Retry-After (zero: none) is obeyed up to the longest wait.
  std::chrono::nanoseconds Wait(int attempt, double random,
                                std::chrono::nanoseconds retry_after) const;
};

}  // namespace cairn

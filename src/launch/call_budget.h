#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cairn {

/// How many calls of a service there may be: `rate` a second, two at once. One caller at a time.
class CallBudget {
 public:
  using Nanos = std::chrono::nanoseconds;

  explicit CallBudget(double rate) : gap_(static_cast<std::int64_t>(1e9 / rate)) {}

  /// Whether one may be made now; then it counts.
  bool Take(Nanos now) {
    if (now < next_ - gap_) return false;
    next_ = std::max(now, next_) + gap_;
    return true;
  }

 private:
  const Nanos gap_;
  Nanos next_{0};
};

}  // namespace cairn

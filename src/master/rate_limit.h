#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn::master {

/// So many requests a second for each caller, with bursts. Callers who have not asked for long are
/// forgotten. May be called from any thread.
class RateLimit {
 public:
  /// With a burst of 0 there is no limit, otherwise it is at least 1.
  RateLimit(double per_second, double burst, Clock* clock)
      : per_second_(per_second), burst_(burst > 0 ? std::max(burst, 1.0) : 0), clock_(clock) {}
  /// False: too many.
  bool Admit(std::string_view caller);

 private:
  void Forget(Clock::Duration now) REQUIRES(mu_);

  struct Bucket {
    double left = 0;
    Clock::Duration filled{};
  };
  const double per_second_;
  const double burst_;
  Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Bucket, std::less<>> buckets_ GUARDED_BY(mu_);
};

/// What callers are told apart by who come from `address`: itself, and of IPv6 the first 64 bits,
/// because one caller has all the rest.
std::string NetworkOf(std::string_view address);

}  // namespace cairn::master

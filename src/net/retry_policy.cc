#include "net/retry_policy.h"

#include <algorithm>

namespace cairn {

std::chrono::nanoseconds RetryPolicy::Wait(int attempt, double random,
                                           std::chrono::nanoseconds retry_after) const {
  std::chrono::nanoseconds bound = std::min(first_wait, longest_wait);
  for (int i = 1; i < attempt && bound < longest_wait; ++i)
    bound = std::min(bound * 2, longest_wait);
  const auto jittered = std::chrono::nanoseconds(
      static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(bound.count()) * random));
  return std::max(jittered, std::min(retry_after, longest_wait));
}

}  // namespace cairn

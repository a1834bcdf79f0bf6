#include "master/rate_limit.h"

#include <algorithm>

namespace cairn::master {
namespace {
constexpr std::size_t kMostCallers = 10'000;
}

bool RateLimit::Admit(std::string_view caller) {
  const Clock::Duration now = clock_->Now();
  MutexLock hold(&mu_);
  if (buckets_.size() > kMostCallers) buckets_.clear();
  auto found = buckets_.find(caller);
  if (found == buckets_.end()) {
    found = buckets_.emplace(std::string(caller), Bucket{.left = burst_, .filled = now}).first;
  }
  Bucket& bucket = found->second;
  const double seconds = std::chrono::duration<double>(now - bucket.filled).count();
  bucket.left = std::min(burst_, bucket.left + seconds * per_second_);
  bucket.filled = now;
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

}  // namespace cairn::master

#include "master/rate_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace cairn::master {
namespace {
constexpr std::size_t kMostCallers = 10'000;
}

std::string NetworkOf(std::string_view address) {
  in6_addr six{};
  if (inet_pton(AF_INET6, std::string(address).c_str(), &six) != 1) return std::string(address);
  if (IN6_IS_ADDR_V4MAPPED(&six)) return std::string(address.substr(address.rfind(':') + 1));
  std::memset(six.s6_addr + 8, 0, 8);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &six, text, sizeof text);
  return text;
}

void RateLimit::Forget(Clock::Duration now) {
  // Those whose burst is whole again: a new bucket is no different.
  std::erase_if(buckets_, [&](const auto& entry) {
    const double seconds = std::chrono::duration<double>(now - entry.second.filled).count();
    return entry.second.left + seconds * per_second_ >= burst_;
  });
  if (buckets_.size() > kMostCallers) buckets_.clear();
}

bool RateLimit::Admit(std::string_view caller) {
  if (burst_ == 0) return true;
  const Clock::Duration now = clock_->Now();
  MutexLock hold(&mu_);
  if (buckets_.size() > kMostCallers) Forget(now);
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

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace cairn::ps {

/// The clock of one generation of a server. Once the generation is left, every deadline has passed:
/// whatever the checkpoint engine waits for (joins, parts, manifests of processes that may be dead)
/// it gives up at once, also where it begins to wait only then: each sleep passes the next
/// deadline. Any thread.
class LeavingClock final : public Clock {
 public:
  explicit LeavingClock(Clock* real) : real_(real) {}

  Duration Now() override { return real_->Now() + later_.load(); }
  std::int64_t WallNanos() override { return real_->WallNanos(); }
  void Sleep(Duration duration) override {
    std::unique_lock lock(mu_);
    if (left_changed_.wait_for(lock, duration, [&] { return left_; })) PassDeadlines();
  }

  void Leave() {
    {
      const std::lock_guard lock(mu_);
      left_ = true;
      PassDeadlines();
    }
    left_changed_.notify_all();
  }

 private:
  /// Longer than anything is waited for.
  static constexpr Duration kLater = std::chrono::hours(72);
  static constexpr Duration kLatest = std::chrono::hours(24 * 365 * 200);  // fits 64 bits

  void PassDeadlines() { later_ = std::min(later_.load() + kLater, kLatest); }

  Clock* const real_;
  std::mutex mu_;
  std::condition_variable left_changed_;
  bool left_ = false;  // under mu_, as changes of the next
  std::atomic<Duration> later_{Duration(0)};
};

}  // namespace cairn::ps

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace cairn::ps {

/// The clock of one generation of a server. Once the generation is left, every deadline has passed:
/// whatever the checkpoint engine waits for (joins, parts, manifests of processes that may be dead)
/// it gives up at once. Any thread.
class LeavingClock final : public Clock {
 public:
  explicit LeavingClock(Clock* real) : real_(real) {}

  Duration Now() override { return real_->Now() + (left_ ? kLater : Duration(0)); }
  std::int64_t WallNanos() override { return real_->WallNanos(); }
  void Sleep(Duration duration) override {
    std::unique_lock lock(mu_);
    left_changed_.wait_for(lock, duration, [&] { return left_.load(); });
  }

  void Leave() {
    {
      const std::lock_guard lock(mu_);
      left_ = true;
    }
    left_changed_.notify_all();
  }
  bool left() const { return left_; }

 private:
  static constexpr Duration kLater = std::chrono::hours(24 * 365);

  Clock* const real_;
  std::mutex mu_;
  std::condition_variable left_changed_;
  std::atomic<bool> left_{false};
};

}  // namespace cairn::ps

#pragma once

#include <set>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn::crash {

/// A clock for actors that wait for each other by polling: time stands still while anybody works
/// and jumps to the next waker when all sleep, so that deadlines of minutes pass at once and never
/// by a slow machine. Every thread that may sleep belongs to an actor between Enter and Leave.
/// Thread-safe.
class VirtualTime final : public Clock {
 public:
  void Enter() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    ++actors_;
  }
  void Leave() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    --actors_;
    Advance();
  }

  Duration Now() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return now_;
  }
  std::int64_t WallNanos() override { return Now().count(); }
  void Sleep(Duration duration) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const Duration until = now_ + duration;
    const auto it = sleepers_.insert(until);
    Advance();
    while (now_ < until) changed_.Wait(&mu_);
    sleepers_.erase(it);
  }

 private:
  void Advance() REQUIRES(mu_) {
    if (sleepers_.empty() || sleepers_.size() < actors_) return;
    // Those that were woken and did not run yet are awake.
    if (*sleepers_.begin() <= now_) return;
    now_ = *sleepers_.begin();
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  Duration now_ GUARDED_BY(mu_) = Duration(1);
  std::multiset<Duration> sleepers_ GUARDED_BY(mu_);
  std::size_t actors_ GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::crash

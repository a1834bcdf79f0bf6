#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn {

/// A clock that tests move. Sleeping moves it too. Begins at 1 ns: zero often means "never".
class ManualClock final : public Clock {
 public:
  Duration Now() override {
    MutexLock lock(&mu_);
    return now_;
  }
  std::int64_t WallNanos() override { return Now().count(); }
  void Sleep(Duration duration) override { Advance(duration); }
  void Advance(Duration duration) {
    MutexLock lock(&mu_);
    now_ += duration;
  }

 private:
  Mutex mu_;
  Duration now_ GUARDED_BY(mu_) = Duration(1);
};

/// As ManualClock, but for the time of day, which is the machine's: servers look at it.
class HeldClock final : public Clock {
 public:
  Duration Now() override { return held_.Now(); }
  std::int64_t WallNanos() override { return System()->WallNanos(); }
  void Sleep(Duration duration) override { held_.Advance(duration); }
  void Advance(Duration duration) { held_.Advance(duration); }

 private:
  ManualClock held_;
};

}  // namespace cairn

#pragma once

#include "base/thread_annotations.h"

namespace cairn::table {

/// Lets the other thread of a core go on, while this one looks for something that is soon there.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Locks what others hold for a few microseconds: looks for about as long before it sleeps. To be
/// woken costs more, for the one who wakes as well.
inline void LockSoon(Mutex* mu) ACQUIRE(mu) NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kLooks = 300;
  for (int i = 0; i < kLooks; ++i) {
    if (mu->try_lock()) return;
    Relax();
  }
  mu->lock();
}

/// A MutexLock that is taken with LockSoon.
class CAIRN_THREAD_ANNOTATION(scoped_lockable) StripeLock {
 public:
  explicit StripeLock(Mutex* mu) ACQUIRE(mu) : mu_(mu) { LockSoon(mu_); }
  ~StripeLock() RELEASE() { mu_->unlock(); }
  StripeLock(const StripeLock&) = delete;
  StripeLock& operator=(const StripeLock&) = delete;

 private:
  Mutex* mu_;
};

}  // namespace cairn::table

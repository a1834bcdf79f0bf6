#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread_annotations.h"

namespace cairn::table {

/// The account of memory that keeps the earlier content of rows while a cut is written. Bounded:
/// who finds it full waits until the writer of the cut has got on. Any thread.
class SideBuffer {
 public:
  explicit SideBuffer(std::uint64_t limit) : limit_(limit) {}

  /// Takes bytes, or returns false when that is too much. One taker is always served when nothing
  /// is taken, however small the bound.
  bool Take(std::uint64_t bytes) {
    std::uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (used != 0 && used + bytes > limit_) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }

  void Release(std::uint64_t bytes) EXCLUDES(mu_) {
    if (bytes == 0) return;
    const MutexLock lock(&mu_);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    ++releases_;
    released_.NotifyAll();
  }

  /// For the caller of Await, before it tries to take.
  std::uint64_t releases() const EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    return releases_;
  }
  /// Returns when something was released after `seen`.
  void Await(std::uint64_t seen) EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    ++waits_;
    while (releases_ == seen) released_.Wait(&mu_);
  }

  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  /// How often somebody had to wait.
  std::uint64_t waits() const EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    return waits_;
  }

 private:
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};
  mutable Mutex mu_;
  CondVar released_;
  std::uint64_t releases_ GUARDED_BY(mu_) = 0;
  std::uint64_t waits_ GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::table

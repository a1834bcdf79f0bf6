#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn {

/// Which operation a fault hits: the one with index `at`, counted from 0 since the fault was armed.
template <typename Kind>
struct FaultTrigger {
  std::uint64_t at = 0;
  std::optional<Kind> kind;   // count and hit only operations of this kind; all when empty
  bool from_then_on = false;  // hit also every later one
};

/// Counts operations and says which of them are to be hit: what FaultyFs and FaultyStore share. May
/// be called from several threads.
template <typename Kind>
class FaultPlan {
 public:
  using Delay = std::function<Clock::Duration(Kind)>;

  /// Counting starts anew.
  void Arm(FaultTrigger<Kind> trigger) {
    MutexLock lock(&mu_);
    trigger_ = trigger;
    total_ = 0;
    counts_.clear();
    hits_ = 0;
  }

  void Disarm() {
    MutexLock lock(&mu_);
    trigger_.reset();
  }

  void SetDelay(Clock* clock, Delay delay) {
    MutexLock lock(&mu_);
    clock_ = clock;
    delay_ = std::move(delay);
  }

  std::uint64_t operations() const {
    MutexLock lock(&mu_);
    return total_;
  }

  std::uint64_t operations(Kind kind) const {
    MutexLock lock(&mu_);
    auto found = counts_.find(kind);
    return found == counts_.end() ? 0 : found->second;
  }

  std::uint64_t hits() const {
    MutexLock lock(&mu_);
    return hits_;
  }

  /// Counts one operation, after its delay; true when it is to be hit.
  bool Next(Kind kind) EXCLUDES(mu_) {
    Sleep(kind);
    MutexLock lock(&mu_);
    const std::uint64_t index_of_kind = counts_[kind]++;
    const std::uint64_t index = total_++;
    if (!trigger_.has_value()) return false;
    if (trigger_->kind.has_value() && *trigger_->kind != kind) return false;
    const std::uint64_t mine = trigger_->kind.has_value() ? index_of_kind : index;
    return trigger_->from_then_on ? mine >= trigger_->at : mine == trigger_->at;
  }

  /// The hit took effect.
  void CountHit() {
    MutexLock lock(&mu_);
    ++hits_;
  }

 private:
  void Sleep(Kind kind) EXCLUDES(mu_) {
    Clock* clock = nullptr;
    Delay delay;
    {
      MutexLock lock(&mu_);
      clock = clock_;
      delay = delay_;
    }
    if (clock == nullptr || !delay) return;
    const Clock::Duration duration = delay(kind);
    if (duration > Clock::Duration::zero()) clock->Sleep(duration);
  }

  mutable Mutex mu_;
  std::optional<FaultTrigger<Kind>> trigger_ GUARDED_BY(mu_);
  std::map<Kind, std::uint64_t> counts_ GUARDED_BY(mu_);
  std::uint64_t total_ GUARDED_BY(mu_) = 0;
  std::uint64_t hits_ GUARDED_BY(mu_) = 0;
  Clock* clock_ GUARDED_BY(mu_) = nullptr;
  Delay delay_ GUARDED_BY(mu_);
};

}  // namespace cairn

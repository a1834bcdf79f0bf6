#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include <cairn/checkpoint_manager.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/layout.h"

namespace cairn {

/// What the caller's handle and the background thread share of one save. Thread-safe.
class SaveHandle::State {
 public:
  explicit State(Clock* clock) : clock_(clock), begun_(clock->Now()) {}

  void MarkCopied(Status status) EXCLUDES(mu_);
  void Finish(Result<CheckpointInfo> result) EXCLUDES(mu_);
  void AddStall(Clock::Duration stall) { stall_ns_ += stall.count(); }

  Result<CheckpointInfo> Wait() EXCLUDES(mu_);
  Status Guard() EXCLUDES(mu_);
  bool WaitFor(Clock::Duration timeout) EXCLUDES(mu_);
  bool GuardFor(Clock::Duration timeout) EXCLUDES(mu_);
  bool Done() EXCLUDES(mu_);
  std::optional<Result<CheckpointInfo>> Outcome() EXCLUDES(mu_);
  /// The failure, once: null status when there is none or somebody was told already.
  Status TakeUnreportedFailure() EXCLUDES(mu_);

  double StallSeconds() const { return static_cast<double>(stall_ns_.load()) * 1e-9; }
  double DurableSeconds() const { return static_cast<double>(durable_ns_.load()) * 1e-9; }
  WriteProgress progress;

 private:
  Clock* const clock_;
  const Clock::Duration begun_;
  std::atomic<std::int64_t> stall_ns_{0};
  std::atomic<std::int64_t> durable_ns_{0};
  Mutex mu_;
  CondVar changed_;
  std::optional<Status> copied_ GUARDED_BY(mu_);
  std::optional<Result<CheckpointInfo>> result_ GUARDED_BY(mu_);
  bool reported_ GUARDED_BY(mu_) = false;
};

/// One save on its way through the background thread.
struct SaveTask {
  SaveRequest request;
  SavePlan plan;
  std::uint64_t number = 0;  // of the attempt, the same on all ranks
  bool skipped = false;      // announced as skipped by the committer (several ranks)
  bool copy_in_background = false;
  std::shared_ptr<SaveHandle::State> state;  // shared with the caller's handles
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include <cairn/status.h>

#include "base/thread_annotations.h"

namespace cairn {

/// Fills buffers on a thread of its own, one after the other, while its owner is at those before:
/// copying memory takes as long as hashing it, and a fast disk waits for who does both. For one
/// owner, who calls from one thread at a time.
class FillAhead {
 public:
  using Fill = std::function<Status()>;

  FillAhead() = default;
  /// Waits for what is being filled; what was not begun is left out.
  ~FillAhead();
  FillAhead(const FillAhead&) = delete;
  FillAhead& operator=(const FillAhead&) = delete;

  /// Fills after all that was added before. The first one starts the thread.
  void Add(Fill fill) EXCLUDES(mu_);
  /// Waits for the oldest that was added and not waited for; there must be one. Says how it went:
  /// after a failure those behind it are filled all the same.
  Status Next() EXCLUDES(mu_);

 private:
  void Work() EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  bool stop_ GUARDED_BY(mu_) = false;
  std::deque<Fill> waiting_ GUARDED_BY(mu_);
  std::deque<Status> filled_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace cairn

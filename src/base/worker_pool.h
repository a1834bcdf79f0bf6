#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn {

/// A fixed set of threads for short data-parallel work: memory copies, hashes. The threads are
/// started once and sleep between calls. Run() may be called by one thread at a time.
class WorkerPool {
 public:
  /// `threads` in all, the caller of Run included; 0: one per core.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(0) … fn(count - 1), each once, in any order, on all threads; returns when all did.
  void Run(std::size_t count, const std::function<void(std::size_t)>& fn);

 private:
  void Work();
  void TakeItems();

  Mutex mu_;
  CondVar wake_;
  CondVar idle_;
  bool stop_ GUARDED_BY(mu_) = false;
  std::size_t round_ GUARDED_BY(mu_) = 0;
  int busy_ GUARDED_BY(mu_) = 0;
  const std::function<void(std::size_t)>* fn_ GUARDED_BY(mu_) = nullptr;
  std::size_t next_ GUARDED_BY(mu_) = 0;
  std::size_t count_ GUARDED_BY(mu_) = 0;

  std::vector<std::jthread> workers_;
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn::master {

/// Threads for work that waits: for the database, the event log, a disk. What is posted is done in
/// order, as many at once as there are threads. May be called from any thread.
class TaskThreads {
 public:
  TaskThreads(int threads, std::size_t max_waiting);
  /// Stops.
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  /// False when too many wait already, or it has stopped: the task is dropped.
  bool Post(std::function<void()> task);
  std::size_t waiting() const;
  /// Drops what waits and returns when what runs is done. A task must not call it.
  void Stop();

 private:
  void Run();

  const std::size_t max_waiting_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;
};

}  // namespace cairn::master

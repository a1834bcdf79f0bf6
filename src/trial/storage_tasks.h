#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn {

/// Runs tasks that wait for storage, several at once. Tasks of one trial run one after the other,
/// in the order in which they were given; those of one storage take at most half of the threads, so
/// that a bucket that does not answer holds up nobody else's trials.
///
/// May be called from any thread, also by tasks.
class StorageTasks {
 public:
  StorageTasks() = default;
  ~StorageTasks();
  StorageTasks(const StorageTasks&) = delete;
  StorageTasks& operator=(const StorageTasks&) = delete;

  /// Begins with what was posted.
  void Start(std::size_t threads);
  void Post(std::string trial, std::string storage, std::function<void()> task);
  /// Waits for the tasks that run; what has not begun is dropped. By the owner's thread.
  void Stop();

 private:
  struct Task {
    std::string trial;
    std::string storage;
    std::function<void()> run;
  };

  void Run();
  /// Takes the first task that may run now; false when there is none.
  bool Take(Task* task) REQUIRES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::size_t per_storage_ GUARDED_BY(mu_) = 1;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::deque<Task> waiting_ GUARDED_BY(mu_);
  std::set<std::string> busy_trials_ GUARDED_BY(mu_);
  std::map<std::string, std::size_t> busy_storages_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace cairn

#include "trial/storage_tasks.h"

#include <algorithm>
#include <utility>

namespace cairn {

void StorageTasks::Start(std::size_t threads) {
  {
    MutexLock hold(&mu_);
    per_storage_ = std::max<std::size_t>(1, threads / 2);
  }
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

StorageTasks::~StorageTasks() { Stop(); }

void StorageTasks::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();
}

void StorageTasks::Post(std::string trial, std::string storage, std::function<void()> task) {
  MutexLock hold(&mu_);
  waiting_.push_back({std::move(trial), std::move(storage), std::move(task)});
  changed_.NotifyOne();
}

bool StorageTasks::Take(Task* task) {
  std::set<std::string_view> passed;  // trials with an earlier task that waits: theirs goes first
  for (auto next = waiting_.begin(); next != waiting_.end(); ++next) {
    const auto busy = busy_storages_.find(next->storage);
    const bool full = busy != busy_storages_.end() && busy->second >= per_storage_;
    if (full || busy_trials_.contains(next->trial) || passed.contains(next->trial)) {
      passed.insert(next->trial);
      continue;
    }
    *task = std::move(*next);
    waiting_.erase(next);
    return true;
  }
  return false;
}

void StorageTasks::Run() {
  for (;;) {
    Task task;
    {
      MutexLock hold(&mu_);
      while (!stopping_ && !Take(&task)) changed_.Wait(&mu_);
      if (stopping_) return;
      busy_trials_.insert(task.trial);
      ++busy_storages_[task.storage];
      // One wakes the next: a task rarely has others to wait for it, and there are many threads.
      if (!waiting_.empty()) changed_.NotifyOne();
    }
    task.run();
    MutexLock hold(&mu_);
    busy_trials_.erase(task.trial);
    if (--busy_storages_[task.storage] == 0) busy_storages_.erase(task.storage);
  }
}

}  // namespace cairn

#include "master/task_threads.h"

#include <utility>

namespace cairn::master {

TaskThreads::TaskThreads(int threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TaskThreads::~TaskThreads() { Stop(); }

bool TaskThreads::Post(std::function<void()> task) {
  MutexLock hold(&mu_);
  if (stopping_ || tasks_.size() >= max_waiting_) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
  return true;
}

std::size_t TaskThreads::waiting() const {
  MutexLock hold(&mu_);
  return tasks_.size();
}

void TaskThreads::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    dropped.swap(tasks_);
    changed_.NotifyAll();
  }
  for (std::jthread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TaskThreads::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock hold(&mu_);
      while (tasks_.empty() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace cairn::master

#include "base/worker_pool.h"

namespace cairn {

WorkerPool::WorkerPool(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
}

void WorkerPool::Run(std::size_t count, const std::function<void(std::size_t)>& fn) {
  {
    MutexLock lock(&mu_);
    fn_ = &fn;
    next_ = 0;
    count_ = count;
    ++round_;
    ++busy_;
  }
  if (count > 1) wake_.NotifyAll();
  TakeItems();
  MutexLock lock(&mu_);
  --busy_;
  while (busy_ > 0) idle_.Wait(&mu_);
  fn_ = nullptr;
}

void WorkerPool::TakeItems() {
  for (;;) {
    const std::function<void(std::size_t)>* fn = nullptr;
    std::size_t item = 0;
    {
      MutexLock lock(&mu_);
      if (fn_ == nullptr || next_ >= count_) return;
      fn = fn_;
      item = next_++;
    }
    (*fn)(item);
  }
}

void WorkerPool::Work() {
  std::size_t seen = 0;
  for (;;) {
    {
      MutexLock lock(&mu_);
      while (!stop_ && (round_ == seen || next_ >= count_)) {
        seen = round_;
        wake_.Wait(&mu_);
      }
      if (stop_) return;
      seen = round_;
      ++busy_;
    }
    TakeItems();
    {
      MutexLock lock(&mu_);
      --busy_;
    }
    idle_.NotifyAll();
  }
}

}  // namespace cairn

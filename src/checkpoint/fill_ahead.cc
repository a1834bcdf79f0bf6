#include "checkpoint/fill_ahead.h"

#include <utility>

namespace cairn {

FillAhead::~FillAhead() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void FillAhead::Add(Fill fill) {
  {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(fill));
  }
  changed_.NotifyAll();
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
}

Status FillAhead::Next() {
  MutexLock lock(&mu_);
  while (filled_.empty()) changed_.Wait(&mu_);
  Status status = std::move(filled_.front());
  filled_.pop_front();
  return status;
}

void FillAhead::Work() {
  while (true) {
    Fill fill;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stop_) changed_.Wait(&mu_);
      if (stop_) return;
      fill = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Status status = fill();
    {
      MutexLock lock(&mu_);
      filled_.push_back(std::move(status));
    }
    changed_.NotifyAll();
  }
}

}  // namespace cairn

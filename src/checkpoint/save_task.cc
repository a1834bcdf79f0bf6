#include "checkpoint/save_task.h"

namespace cairn {

void SaveHandle::State::MarkCopied(Status status) {
  {
    MutexLock lock(&mu_);
    if (!copied_) copied_ = std::move(status);
  }
  changed_.NotifyAll();
}

void SaveHandle::State::Finish(Result<CheckpointInfo> result) {
  {
    MutexLock lock(&mu_);
    durable_ns_ = (clock_->Now() - begun_).count();
    if (!copied_) copied_ = result.status();
    result_ = std::move(result);
  }
  changed_.NotifyAll();
}

Result<CheckpointInfo> SaveHandle::State::Wait() {
  MutexLock lock(&mu_);
  while (!result_) changed_.Wait(&mu_);
  reported_ = true;
  return *result_;
}

Status SaveHandle::State::Guard() {
  const Clock::Duration begun = clock_->Now();
  MutexLock lock(&mu_);
  if (!copied_) {
    while (!copied_) changed_.Wait(&mu_);
    AddStall(clock_->Now() - begun);
  }
  // Whoever is told here must not be told again by the next save, which has nothing to do with it.
  reported_ = reported_ || !copied_->ok();
  return *copied_;
}

bool SaveHandle::State::WaitFor(Clock::Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&mu_);
  while (!result_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.WaitFor(&mu_, left);
  }
  return true;
}

bool SaveHandle::State::GuardFor(Clock::Duration timeout) {
  const auto begun = std::chrono::steady_clock::now();
  MutexLock lock(&mu_);
  if (copied_) return true;
  while (!copied_) {
    const auto left = begun + timeout - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    changed_.WaitFor(&mu_, left);
  }
  AddStall(std::chrono::steady_clock::now() - begun);
  return copied_.has_value();
}

bool SaveHandle::State::Done() {
  MutexLock lock(&mu_);
  return result_.has_value();
}

std::optional<Result<CheckpointInfo>> SaveHandle::State::Outcome() {
  MutexLock lock(&mu_);
  return result_;
}

Status SaveHandle::State::TakeUnreportedFailure() {
  MutexLock lock(&mu_);
  if (!result_ || result_->ok() || reported_) return Status::Ok();
  if (result_->status().Is(Code::kCancelled)) return Status::Ok();  // skipped, as was asked for
  reported_ = true;
  return result_->status();
}

namespace {
Status EmptyHandle() { return InvalidArgumentError("this handle belongs to no save"); }
}  // namespace

Result<CheckpointInfo> SaveHandle::Wait() const {
  if (state_ == nullptr) return EmptyHandle();
  return state_->Wait();
}
bool SaveHandle::Done() const { return state_ == nullptr || state_->Done(); }
std::optional<Result<CheckpointInfo>> SaveHandle::Outcome() const {
  if (state_ == nullptr) return EmptyHandle();
  return state_->Outcome();
}
Status SaveHandle::Guard() const { return state_ == nullptr ? EmptyHandle() : state_->Guard(); }
bool SaveHandle::WaitFor(std::chrono::nanoseconds timeout) const {
  return state_ == nullptr || state_->WaitFor(timeout);
}
bool SaveHandle::GuardFor(std::chrono::nanoseconds timeout) const {
  return state_ == nullptr || state_->GuardFor(timeout);
}
double SaveHandle::StallSeconds() const { return state_ ? state_->StallSeconds() : 0; }
double SaveHandle::DurableSeconds() const { return state_ ? state_->DurableSeconds() : 0; }
std::uint64_t SaveHandle::BytesWritten() const {
  return state_ ? state_->progress.written.load() : 0;
}
std::uint64_t SaveHandle::BytesShared() const {
  return state_ ? state_->progress.shared.load() : 0;
}

}  // namespace cairn

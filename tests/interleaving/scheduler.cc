#include "tests/interleaving/scheduler.h"

#include <thread>

namespace cairn::interleaving {

Scheduler::Scheduler(int actors, Decide decide)
    : decide_(std::move(decide)),
      turns_(static_cast<std::size_t>(actors)),
      parked_(static_cast<std::size_t>(actors)),
      expired_(static_cast<std::size_t>(actors)) {}

void Scheduler::Run(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    const int actor = static_cast<int>(i);
    {
      std::unique_lock lock(mu_);
      turn_ = actor;
    }
    threads.emplace_back([this, actor, &body = bodies[i]] {
      body();
      End(actor);
    });
    std::unique_lock lock(mu_);
    explorer_.wait(lock, [&] { return turn_ == kNobody; });
  }
  {
    std::unique_lock lock(mu_);
    starting_ = false;
    DecideNext(kNobody);
    explorer_.wait(lock, [&] { return ended_ == static_cast<int>(bodies.size()); });
  }
  for (std::thread& thread : threads) thread.join();
}

void Scheduler::Arrive(int actor) {
  if (starting_) {
    turn_ = kNobody;
    explorer_.notify_all();
  } else {
    DecideNext(actor);
  }
}

void Scheduler::DecideNext(int current) {
  if (stopped_ || ended_ == static_cast<int>(parked_.size())) return;
  const std::optional<Choice> choice = decide_(current);
  if (!choice) {
    stopped_ = true;
    for (std::condition_variable& turn : turns_) turn.notify_all();
    return;
  }
  turn_ = choice->actor;
  expired_[static_cast<std::size_t>(choice->actor)] = choice->expire;
  if (turn_ != current) turns_[static_cast<std::size_t>(turn_)].notify_all();
}

bool Scheduler::AwaitTurn(std::unique_lock<std::mutex>* lock, int actor) {
  const auto index = static_cast<std::size_t>(actor);
  turns_[index].wait(*lock, [&] { return stopped_ || (!starting_ && turn_ == actor); });
  parked_[index].kind = Parked::Kind::kRunning;
  return !stopped_;
}

bool Scheduler::Point(int actor, const StoreOp& next) {
  std::unique_lock lock(mu_);
  if (stopped_) return false;
  parked_[static_cast<std::size_t>(actor)] = {Parked::Kind::kAtOperation, next, false};
  Arrive(actor);
  return AwaitTurn(&lock, actor);
}

bool Scheduler::Sleep(int actor, bool changed, bool* expired) {
  std::unique_lock lock(mu_);
  if (stopped_) return false;
  parked_[static_cast<std::size_t>(actor)] = {Parked::Kind::kAsleep, {}, changed};
  Arrive(actor);
  const bool go_on = AwaitTurn(&lock, actor);
  *expired = expired_[static_cast<std::size_t>(actor)];
  return go_on;
}

void Scheduler::Changed(int actor) {
  std::unique_lock lock(mu_);
  for (std::size_t i = 0; i < parked_.size(); ++i) {
    if (static_cast<int>(i) != actor) parked_[i].changed = true;
  }
}

bool Scheduler::stopped() {
  std::unique_lock lock(mu_);
  return stopped_;
}

void Scheduler::End(int actor) {
  std::unique_lock lock(mu_);
  parked_[static_cast<std::size_t>(actor)] = {Parked::Kind::kEnded, {}, false};
  ++ended_;
  Arrive(actor);
  if (ended_ == static_cast<int>(parked_.size())) explorer_.notify_all();
}

}  // namespace cairn::interleaving

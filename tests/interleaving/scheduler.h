#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "storage/memory/store_op.h"

namespace cairn::interleaving {

/// What happens next: `actor` goes on to its next point. A sleeping actor wakes up; with `expire`
/// so late that all its deadlines are over.
struct Choice {
  int actor = 0;
  bool expire = false;

  friend bool operator==(const Choice&, const Choice&) = default;
};

/// Where an actor stands while it does not run.
struct Parked {
  enum class Kind { kRunning, kAtOperation, kAsleep, kEnded };
  Kind kind = Kind::kRunning;
  StoreOp next;          // kAtOperation
  bool changed = false;  // kAsleep: others changed something since it last looked
};

/// Runs actors (each a thread, together with the threads that the engine starts for it) one at a
/// time: an actor runs from one point to the next, and `decide` says who runs then. Deciding
/// happens on the thread that arrived, so an actor that goes on costs no thread switch.
///
/// Of an actor's threads only one may be at a point at a time. Point, Sleep and the bodies are for
/// the actors' threads, Run for the owner.
class Scheduler {
 public:
  /// Called while every actor is parked; `current` arrived last (-1: none yet). nullopt ends the
  /// run: every actor is told to stop.
  using Decide = std::function<std::optional<Choice>(int current)>;

  Scheduler(int actors, Decide decide);

  /// Runs the bodies to their ends. Each first runs alone, in order, to its first point.
  void Run(const std::vector<std::function<void()>>& bodies);

  /// Parks the actor before an operation. False: stop, nothing may be done any more.
  bool Point(int actor, const StoreOp& next);
  /// Parks the actor until it is woken; `expired` says whether its deadlines are over. False: stop.
  bool Sleep(int actor, bool changed, bool* expired);
  /// Another actor changed something: sleepers have a reason to look again.
  void Changed(int actor);

  const std::vector<Parked>& parked() const { return parked_; }
  bool stopped();

 private:
  static constexpr int kNobody = -1;

  void Arrive(int actor);
  bool AwaitTurn(std::unique_lock<std::mutex>* lock, int actor);
  void End(int actor);
  void DecideNext(int current);

  const Decide decide_;
  std::mutex mu_;
  std::condition_variable explorer_;
  std::vector<std::condition_variable> turns_;
  std::vector<Parked> parked_;
  std::vector<bool> expired_;
  int turn_ = kNobody;
  int ended_ = 0;
  bool starting_ = true;
  bool stopped_ = false;
};

}  // namespace cairn::interleaving

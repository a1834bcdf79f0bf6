#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>

#include <cairn/status.h>

#include "base/clock.h"

namespace cairn::serving {

/// What a follower does about a checkpoint that it could not take.
struct Setback {
  bool refused = false;  // it is what it is: not tried again
  bool aside = false;    // it may be the checkpoint: others are tried meanwhile
  bool told = false;     // it is for people to know
};

/// The checkpoints that could not be taken, and when each is tried again. Only three things are
/// final: what does not fit the model, what a guard refused, and bytes that are wrong again when
/// they are read a second time. Everything else may pass, whatever code it has: a proxy before a
/// bucket answers 404 or cuts a range short, a certificate expires, memory is short for a moment.
/// It is tried again after 1, 2, 4 … at most 30 seconds, for as long as the checkpoint is wanted.
/// One thread.
class Setbacks {
 public:
  /// `first`: the wait after a first failure, at most a second.
  Setbacks(Clock* clock, std::chrono::nanoseconds first);

  /// `guard`: the failure is the answer of one.
  Setback Note(const std::string& id, const Status& failure, bool guard);
  /// It was taken.
  void Forget(const std::string& id) { noted_.erase(id); }
  /// Of those that are not named there is nothing to remember.
  void KeepOnly(const std::set<std::string>& ids);

  std::set<std::string> NotDue() const;
  /// Something that people were told of waits for its next turn.
  bool HoldsTold() const;
  /// The time until the next one is due; `at_most` when that is sooner, or none waits.
  std::chrono::nanoseconds UntilNext(std::chrono::nanoseconds at_most) const;

 private:
  struct Noted {
    int damaged = 0;   // times that its bytes were wrong
    int vanished = 0;  // times that something of it was not there
    int failures = 0;  // all that it waits for
    bool told = false;
    Clock::Duration due{0};
  };
  void Delay(Noted* noted) const;

  Clock* const clock_;
  const std::chrono::nanoseconds first_;
  std::map<std::string, Noted> noted_;
};

}  // namespace cairn::serving

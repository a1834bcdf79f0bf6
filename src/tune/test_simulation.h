#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/value.h>

#include "tune/scheduler.h"

namespace cairn::tune {

/// A population of trials that live in numbers alone: places, reports in a random order (by seed),
/// and a scheduler that decides. Everything that it answered is written down.
struct Simulation {
  using Score = std::function<Value(int trial, int iteration, const Value& config)>;

  std::function<std::unique_ptr<Scheduler>()> make;
  Score score;
  std::function<Value(int trial)> config = [](int) { return Value(Value::Object{}); };
  int trials = 8;
  int places = 3;
  int iterations = 30;  // a trial ends by itself after so many
  std::uint64_t seed = 1;
  /// The scheduler is saved, thrown away and loaded into a new one before every call.
  bool restart_always = false;

  struct Trial {
    std::string name;
    int iteration = 0;
    Value config;
    Value last_score;
    bool ended = false;
  };
  struct Outcome {
    std::vector<std::string> transcript;
    std::vector<Trial> trials;
    Value::List log;
    Value final_state;
  };
  Outcome Run() const;
};

}  // namespace cairn::tune

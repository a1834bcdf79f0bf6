#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"

namespace cairn::tune {

/// Ends trials, or the whole experiment, by what they report.
///
/// Not thread-safe: one caller at a time. Deterministic but for TimeoutStopper; state by replaying
/// the same calls or by Save and Load.
class Stopper {
 public:
  virtual ~Stopper() = default;

  /// Asked once for each report; true: the trial has ended, well. InvalidArgument, naming the
  /// metric, when the result lacks what is decided by.
  virtual Result<bool> ShouldStop(const std::string& trial, const Value& result) = 0;
  /// InvalidArgument as of ShouldStop, with nothing counted: asked before anybody else counts it.
  virtual Status Check(const Value& /*result*/) const { return Status::Ok(); }
  /// The trial begins anew: what it reported before is another life's.
  virtual void OnRestart(const std::string& /*trial*/) {}
  /// Asked after each report and now and then: true ends all trials, and no more are made.
  virtual bool StopAll() { return false; }

  /// How long the experiment was at work before this process: counts beside what passes from now.
  virtual void OnElapsed(std::chrono::nanoseconds /*before*/) {}

  virtual Value Save() const = 0;
  virtual Status Load(const Value& state) = 0;
};

/// Each member of `bounds` is a metric ("a/b" for nested ones) with the number at or above which a
/// trial stops.
Result<std::unique_ptr<Stopper>> MakeBoundsStopper(Value::Object bounds);

/// After so many reports of a trial.
Result<std::unique_ptr<Stopper>> MakeMaximumIterationStopper(std::int64_t max_iter);

/// When the last num_results values of a trial's metric differ by no more than `std` (standard
/// deviation), not before grace_period reports, and with a threshold only when the newest is at
/// least that good.
struct TrialPlateauOptions {
  std::string metric;
  double std = 0.01;
  int num_results = 4;
  int grace_period = 4;
  Value metric_threshold;  // null: none
  bool maximize = false;
};
Result<std::unique_ptr<Stopper>> MakeTrialPlateauStopper(TrialPlateauOptions options);

/// When the best `top` values of all trials differ by no more than `std` for more than `patience`
/// reports: ends everything.
struct ExperimentPlateauOptions {
  std::string metric;
  double std = 0.001;
  int top = 10;
  bool maximize = false;
  int patience = 0;
};
Result<std::unique_ptr<Stopper>> MakeExperimentPlateauStopper(ExperimentPlateauOptions options);

/// Ends everything after so much time since it was made, with what OnElapsed tells of earlier
/// processes (time in which nothing ran does not count). `clock` outlives it.
Result<std::unique_ptr<Stopper>> MakeTimeoutStopper(std::chrono::nanoseconds timeout, Clock* clock);

/// When any of them does. All are asked each time, and none when one of them refuses the result.
std::unique_ptr<Stopper> MakeCombinedStopper(std::vector<std::unique_ptr<Stopper>> stoppers);

/// By name, for what is written down: {"name": "bounds" | "iterations" | "trial_plateau" |
/// "experiment_plateau" | "timeout" | "combined", …}. InvalidArgument for what is wrong.
Result<std::unique_ptr<Stopper>> MakeStopper(const Value& description, Clock* clock);

}  // namespace cairn::tune

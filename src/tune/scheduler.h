#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::tune {

/// What becomes of a trial that has reported.
enum class TrialAction : std::uint8_t {
  kContinue,
  kStop,   // it has ended, well
  kPause,  // its process ends after a checkpoint; ChooseTrialToRun may take it up again
};

struct Decision {
  TrialAction action = TrialAction::kContinue;
  /// A checkpoint at this result is wanted: another trial may start from it.
  bool checkpoint = false;

  friend bool operator==(const Decision&, const Decision&) = default;
};

/// The trials that are not running. Those that a searcher gives without waiting for results are
/// added ahead, also beyond the free places: a population (PBT) is compared as a whole.
struct Candidates {
  std::span<const std::string> pending;  // never started, in the order they were added
  /// In the order they were paused; also those that were interrupted by the end of the tuner.
  std::span<const std::string> paused;
  /// A trial runs, or the searcher has more: what is to be chosen from may still change.
  bool more_to_come = false;
};

/// What to do with a free place.
struct Choice {
  enum class Kind : std::uint8_t {
    kNone,  // nothing now: make another trial, or wait for what runs
    kRun,   // start `trial`
    kStop,  // `trial` is paused and will never be taken up again: it has ended, well. Ask again
  };
  Kind kind = Kind::kNone;
  std::string trial;
  /// Not empty: `trial` starts from a copy of the newest checkpoint of this one, with `config`.
  /// (Without such a checkpoint: from its own, and SetConfig tells that its config stayed.)
  std::string donor;
  Value config;

  friend bool operator==(const Choice&, const Choice&) = default;
};

/// Divides the time among the trials of an experiment: who goes on, who stops, who waits.
///
/// Not thread-safe: one caller at a time. Deterministic: the same calls in the same order give the
/// same answers; the state comes back by replaying them or by Load of what Save gave (equal in
/// effect, at every point between two calls). A call that fails has changed nothing.
///
/// Results are objects with the metrics of a report; "a/b" reaches into nested ones. NaN and
/// missing metrics rank below every number in both modes; integers are compared exactly.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// The config of a trial that is about to be added, with what the scheduler adds to it (PBT:
  /// hyperparameters that it mutates and that the search space does not have).
  virtual Value CompleteConfig(const std::string& trial, const Value& config) const;
  /// A trial exists, before its first run. AlreadyExists for one that was added before.
  virtual Status OnTrialAdd(const std::string& trial, const Value& config) = 0;
  /// A result without the metric changes nothing (PBT may require it). InvalidArgument, naming it,
  /// when the time is missing or either is no number.
  virtual Result<Decision> OnResult(const std::string& trial, const Value& result) = 0;
  /// InvalidArgument as of OnResult, with nothing changed: asked before anybody else counts it.
  virtual Status Check(const Value& /*result*/) const { return Status::Ok(); }
  /// The trial, which had failed, begins anew: what it reported before is another life's.
  virtual Status OnRestart(const std::string& /*trial*/) { return Status::Ok(); }
  /// The trial ended by itself, by a stopper or by kStop. `result`: its last report, or null.
  virtual Status OnComplete(const std::string& trial, const Value& result) = 0;
  /// The trial failed for good (its restarts are used up).
  virtual Status OnError(const std::string& trial) = 0;
  /// Asked when a place is free; the answer is carried out.
  virtual Result<Choice> ChooseTrialToRun(const Candidates& candidates) = 0;
  /// The trial's hyperparameters are others than the scheduler thinks.
  virtual Status SetConfig(const std::string& trial, const Value& config);

  /// What was decided since the last call and is worth a line of a log (PBT: who copied whom).
  virtual Value::List TakeLog() { return {}; }
  /// Whether it has such lines. They are not part of its state: the log of an experiment is made
  /// anew by replay.
  virtual bool keeps_log() const { return false; }

  /// A value that survives JSON.
  virtual Value Save() const = 0;
  /// Into a scheduler made with the same options. Corruption for what Save never gave.
  virtual Status Load(const Value& state) = 0;
};

/// What schedulers decide by.
struct ScoreOptions {
  std::string metric;
  bool maximize = true;
  /// The progress of a trial: must not go down from report to report.
  std::string time_attr = "training_iteration";
};

/// All trials run to their end, in order.
std::unique_ptr<Scheduler> MakeFifoScheduler();

/// Asynchronous successive halving. Rungs are at grace_period · reduction_factor^k up to max_t.
struct AshaOptions {
  ScoreOptions score;
  double max_t = 100;
  double grace_period = 1;
  double reduction_factor = 4;
  /// Bracket s begins its rungs at grace_period · reduction_factor^s; a trial's bracket is drawn.
  int brackets = 1;
  /// A trial that has reached max_t is stopped.
  bool stop_last_trials = true;
  /// false: a trial that is not among the best 1/reduction_factor of those that came to the rung
  ///   before it is stopped there; nothing is ever paused.
  /// true: every trial pauses at every rung, and a free place goes to the best one that is among
  /// the
  ///   best 1/reduction_factor of its rung, of the highest rung that has one. New trials otherwise.
  bool promote = false;
  std::uint64_t seed = 0;  // of the brackets
};
Result<std::unique_ptr<Scheduler>> MakeAshaScheduler(AshaOptions options);

/// Stops a trial whose best result is worse than the median of the others' running means.
struct MedianStoppingOptions {
  ScoreOptions score{.metric = "", .maximize = true, .time_attr = "time_total_s"};
  double grace_period = 60;
  int min_samples_required = 3;
  /// With fewer others to compare with, a trial pauses after so much time for those that wait.
  /// 0: it never does.
  double min_time_slice = 0;
  /// false: pause instead of stop, until nothing else is left to run.
  bool hard_stop = true;
};
Result<std::unique_ptr<Scheduler>> MakeMedianStoppingScheduler(MedianStoppingOptions options);

/// Population based training: every perturbation_interval the worst trials of the population go on
/// from a checkpoint of one of the best, with hyperparameters near its.
struct PbtOptions {
  ScoreOptions score{.metric = "", .maximize = true, .time_attr = "time_total_s"};
  double perturbation_interval = 60;
  double burn_in_period = 0;
  /// Nested like the config: a list (its neighbours are near), a domain (space.h: near is a
  /// factor), or {"__domain__": "sample_from", …}, which is left in the new config when it is
  /// resampled.
  Value hyperparam_mutations = Value::Object{};
  double quantile_fraction = 0.25;  // at most 0.5
  double resample_probability = 0.25;
  std::vector<double> perturbation_factors = {1.2, 0.8};
  /// A result without the metric is refused; otherwise it counts as the worst.
  bool require_metrics = true;
  /// All trials wait for each other at each interval: the outcome does not depend on their speed.
  bool synch = false;
  std::uint64_t seed = 0;
};
Result<std::unique_ptr<Scheduler>> MakePbtScheduler(PbtOptions options);

/// By name, for what is written down: {"name": "fifo" | "asha" | "median" | "pbt", and the members
/// of the options above}; "metric", "mode" ("min" | "max") and "time_attr" stand beside them.
/// InvalidArgument for members that are unknown, mistyped or out of range.
Result<std::unique_ptr<Scheduler>> MakeScheduler(const Value& description);

}  // namespace cairn::tune

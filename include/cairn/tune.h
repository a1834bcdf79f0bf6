#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

/// Tuning of C++ programs. The program that calls Run is also the worker: each trial is the same
/// program started again with the same arguments, which finds out in Run that it is one and never
/// returns from it. What main does before Run, each worker does too.
///
///   cairn::Status Train(cairn::tune::Trial& trial) {
///     double x = 0;
///     std::int64_t step = 0;
///     if (trial.checkpoint()) … read files of *trial.checkpoint() …
///     while (step < 100) {
///       …
///       const cairn::Status told = trial.Report(
///           cairn::Value::Object{{"loss", loss}},
///           [&](const std::string& directory) { … write files … return cairn::Status::Ok(); });
///       if (!told.ok()) return told;  // Cancelled: the trial is to end here
///     }
///     return cairn::Status::Ok();
///   }
///   int main() { auto results = cairn::tune::Run({.directory = "runs/a", .space = …}, Train); … }
///
/// Killed at any moment and started again, the program goes on: trials that had ended are not run
/// again, the others go on from their newest checkpoint, and every report that returned is there.
/// docs/guides/tuning.md is the guide.
namespace cairn::tune {

/// A run of a trial, as what trains sees it. Of one thread.
class Trial {
 public:
  virtual ~Trial() = default;
  virtual const std::string& id() const = 0;
  virtual const Value& config() const = 0;
  /// Where the trial's own files may be (a URL of an experiment in a bucket). It may be moved
  /// between two runs: do not keep its name.
  virtual const std::string& directory() const = 0;
  /// A directory with the files of the checkpoint to go on from; nullopt: begin.
  virtual const std::optional<std::string>& checkpoint() const = 0;
  /// Results so far, over all runs of the trial: the training_iteration of the last one.
  virtual std::int64_t iteration() const = 0;

  /// Writes a checkpoint's files into a directory.
  using Save = std::function<Status(const std::string& directory)>;
  /// Reports a result, and a checkpoint with it when `save` is given. {"done": true} in it ends the
  /// trial. Durable when it returned OK or Cancelled; Cancelled says that the trial is to end here
  /// (return it). InvalidArgument: refused, and the next report has its number.
  virtual Status Report(Value metrics, const Save& save = nullptr) = 0;
  /// Whether the next report should have a checkpoint: the scheduler asked for one, or it is every
  /// `every`-th iteration, counted over all runs.
  virtual bool ShouldCheckpoint(std::int64_t every = 0) const = 0;
  /// For long iterations: whether the experiment ends (time_budget, fail_fast, a signal), so that
  /// the next report would be answered with Cancelled. Return then, with OK or Cancelled. Asks the
  /// tuner, at most twice a second.
  virtual bool ShouldEnd() = 0;
};

/// Trains. Cancelled, as Report gave it, is no failure.
using TrainFunction = std::function<Status(Trial& trial)>;

/// A trial as a class, which is asked for its checkpoints: every checkpoint_frequency iterations,
/// at the end, and when it pauses. Each run of a trial is a process with one object.
class Trainable {
 public:
  virtual ~Trainable() = default;
  /// Once, before Load and the first Step. `trial` outlives the object.
  virtual Status Setup(const Trial& /*trial*/) { return Status::Ok(); }
  /// One iteration; its result, an object. {"done": true} in it ends the trial,
  /// {"should_checkpoint": true} makes a checkpoint.
  virtual Result<Value> Step() = 0;
  /// Writes the state into a directory, so that Load brings it back in another process.
  virtual Status Save(const std::string& directory) = 0;
  virtual Status Load(const std::string& directory) = 0;
  /// After the last Step of this process, however that went; not after a failed Setup.
  virtual void Cleanup() {}
};

/// Makes one; called in workers.
using MakeTrainable = std::function<std::unique_ptr<Trainable>()>;

struct Options {
  /// The experiment's directory or URL. One that holds an experiment goes on with it, wherever it
  /// was moved to.
  std::string directory;
  /// What is trained: trials are called `<trainable>_00000` and so on (letters, digits, points,
  /// dashes, underscores). An experiment of another one is refused.
  std::string trainable = "trial";
  /// Hyperparameters: values, {"grid_search": […]}, {"__domain__": "uniform", …}
  /// (docs/format/tune_search.md).
  Value space = Value::Object{};
  /// How often the space is sampled, in all: a greater number adds trials to an experiment that was
  /// finished. -1: without end.
  std::int64_t num_samples = 1;
  std::uint64_t seed = 0;
  /// Configs, or parts of configs, that come first, each in the place of one sample.
  Value::List points_to_evaluate;
  std::string metric;  // that every result must have; "": none
  /// {"name": "asha", …}; null: all trials run to their end.
  Value scheduler;
  /// {"name": "bounds", "bounds": {"training_iteration": 10}}; null: trials end by themselves.
  Value stop;
  /// All trials are ended after so much work on the experiment, over all processes that did it; 0:
  /// never.
  std::chrono::nanoseconds time_budget{0};
  /// Trials at a time. 0: as many as there are CPUs, or 16 in Slurm and Ray.
  std::size_t max_concurrent = 2;
  /// A trial that fails is tried again so often, from its newest checkpoint that can be read; -1:
  /// endlessly. A killed tuner is no failure of its trials.
  std::int64_t max_failures = 0;
  /// The first trial that failed for good ends the experiment. The others pause, and go on at the
  /// next call. Not together with max_failures.
  bool fail_fast = false;
  /// Of a Trainable alone, a function makes its checkpoints itself: one every so many iterations
  /// (0: none of these) …
  std::int64_t checkpoint_frequency = 0;
  /// … and one where the trial ends: by itself, by `stop`, the scheduler or the time budget.
  bool checkpoint_at_end = false;
  std::optional<std::uint64_t> num_to_keep;  // checkpoints of each trial; nullopt: all
  std::string score;                         // the best by this metric stay; "": the newest
  bool maximize = true;
  /// The best by `score` of all trials together stay too.
  std::optional<std::uint64_t> experiment_num_to_keep;
  /// What the checkpoints of a trial, and those of all together, may take; the oldest that are not
  /// among the best go first. The latest of each trial stays in any case.
  std::optional<std::uint64_t> max_bytes;
  std::optional<std::uint64_t> experiment_max_bytes;
  /// Trials that had not ended when the last process did: go on with them. false: they stay as they
  /// are ("PAUSED").
  bool resume_unfinished = true;
  bool resume_errored = false;   // trials that failed for good go on from their checkpoints
  bool restart_errored = false;  // … or begin anew
  /// Takes another `stop` than the one on record (otherwise refused), and another scheduler. Trials
  /// that had ended go on from their checkpoints to the new bounds, but those that are there
  /// already; so the same call again adds nothing.
  bool extend = false;
  /// What trials print is kept in `stdout` and `stderr` of their directories, to which further runs
  /// append. false: it goes to this process's own output (of a job of a cluster, to the job's).
  bool log_to_file = false;
  bool chdir_to_trial_dir = false;  // trials work in their own directories, not in this one
  /// "slurm" or "ray": each run of a trial is a job of that, which outlives this process and is
  /// taken up by the next call. "": a process of this machine.
  std::string launcher;
  /// What Slurm or Ray are asked for: {"partition": "gpu", …}, {"num_gpus": "1", …}; for Ray also
  /// where it is: address, token_file.
  std::map<std::string, std::string> resources;
  /// Records of jobs, in a directory that the nodes share; "": launches/ in `directory`.
  std::string launch_directory;
  std::string host;  // by which nodes reach this machine; "": its name
  /// While Run is at work, the first SIGINT or SIGTERM has all trials save and pause, and a second
  /// one ends them at once; Run then returns Cancelled, and the same call goes on. false: signals
  /// do what they did before, and a process that dies of one is gone on from as after kill -9.
  bool handle_signals = true;
  /// Called with everything that happens, once it is durable, by the thread that called Run:
  /// {"what": "added" | "run" | "started" | "result" | "checkpoint" | "failure" | "paused" |
  /// "exploit" | "ended", "trial": …, and by what: "config", "result", "checkpoint", "error",
  /// "iteration", "failed"}.
  std::function<void(const Value& news)> on_news;
};

struct TrialResult {
  std::string trial;
  Value config;
  std::string status;          // "TERMINATED", "ERROR", "PAUSED", "PENDING"
  std::string error;           // of "ERROR"
  std::vector<Value> results;  // all reports, in order
  std::string checkpoint;      // directory of the latest, inside of the trial's; "": none
};

/// Runs the experiment to its end. In a worker it runs the trial and exits. Each trial's directory
/// has result.json, progress.csv, params.json, error.txt and TensorBoard's events, as those of the
/// Python package, which reads them.
///
/// InvalidArgument: an option is wrong, or another one than the experiment on record was made with.
/// Cancelled: a signal ended it, everything can go on. Unavailable: another process runs it.
/// Corruption: the record is damaged, or trials are there without one.
Result<std::vector<TrialResult>> Run(Options options, const TrainFunction& train);
Result<std::vector<TrialResult>> Run(Options options, const MakeTrainable& make);

/// Whether a directory holds an experiment to go on with.
Result<bool> CanRestore(const std::string& directory);

/// The trial whose last result has the best metric ("a/b" for nested ones; numbers alone, NaN is
/// none); null: no trial has one.
const TrialResult* BestOf(const std::vector<TrialResult>& results, const std::string& metric,
                          bool maximize);

}  // namespace cairn::tune

#pragma once

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
/// program started again, which finds out in Run that it is one and never returns from it.
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
namespace cairn::tune {

/// A run of a trial, as the function that trains sees it. Of one thread.
class Trial {
 public:
  virtual ~Trial() = default;
  virtual const std::string& id() const = 0;
  virtual const Value& config() const = 0;
  /// A directory with the files of the checkpoint to go on from; nullopt: begin.
  virtual const std::optional<std::string>& checkpoint() const = 0;
  /// Results so far, over all runs of the trial: the training_iteration of the last one.
  virtual std::int64_t iteration() const = 0;

  /// Writes a checkpoint's files into a directory.
  using Save = std::function<Status(const std::string& directory)>;
  /// Reports a result, and a checkpoint with it when `save` is given. Durable when it returned OK
  /// or Cancelled; Cancelled says that the trial is to end here (return it). InvalidArgument:
  /// refused.
  virtual Status Report(Value metrics, const Save& save = nullptr) = 0;
};

/// Trains. Cancelled, as Report gave it, is no failure.
using TrainFunction = std::function<Status(Trial& trial)>;

struct Options {
  /// The experiment's directory or URL. One that holds an experiment goes on with it.
  std::string directory;
  /// Hyperparameters: values, {"grid_search": […]}, {"__domain__": "uniform", …}
  /// (docs/format/tune_search.md).
  Value space = Value::Object{};
  std::int64_t num_samples = 1;
  std::uint64_t seed = 0;
  std::string metric;  // that every result must have; "": none
  /// {"name": "asha", …}; null: all trials run to their end.
  Value scheduler;
  /// {"name": "bounds", "bounds": {"training_iteration": 10}}; null: trials end by themselves.
  Value stop;
  std::size_t max_concurrent = 2;
  std::uint64_t max_failures = 0;
  std::optional<std::uint64_t> num_to_keep;  // checkpoints of each trial; nullopt: all
  std::string score;                         // the best by this metric stay; "": the newest
  bool maximize = true;
  bool resume_errored = false;  // trials that failed for good go on
  /// "slurm" or "ray": each run of a trial is a job of that, which outlives this process and is
  /// taken up by the next call. "": a process of this machine.
  std::string launcher;
  /// What Slurm or Ray are asked for: {"partition": "gpu", …}, {"num_gpus": "1", …}; for Ray also
  /// where it is: address, token_file.
  std::map<std::string, std::string> resources;
  /// Records of jobs, in a directory that the nodes share; "": launches/ in `directory`.
  std::string launch_directory;
  std::string host;  // by which nodes reach this machine; "": its name
};

struct TrialResult {
  std::string trial;
  Value config;
  std::string status;          // "TERMINATED", "ERROR", "PAUSED"
  std::string error;           // of "ERROR"
  std::vector<Value> results;  // all reports, in order
  std::string checkpoint;      // directory of the latest, inside of the trial's; "": none
};

/// Runs the experiment to its end. In a worker it runs the trial and exits.
Result<std::vector<TrialResult>> Run(Options options, const TrainFunction& train);

}  // namespace cairn::tune

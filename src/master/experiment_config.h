#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "master/config_node.h"
#include "master/hyperparameters.h"
#include "trial/retention_policy.h"
#include "trial/trial_config.h"

namespace cairn::master {

/// The launcher whose trials are jobs of Slurm.
inline constexpr std::string_view kSlurmLauncher = "slurm";
/// The launcher whose trials are jobs of Ray.
inline constexpr std::string_view kRayLauncher = "ray";

/// How the trials of an experiment are chosen.
struct SearcherConfig {
  enum class Kind : std::uint8_t { kSingle, kRandom, kGrid, kAdaptiveAsha };
  Kind kind = Kind::kSingle;
  std::string metric;  // that decides which trial is best; "": none does
  bool smaller_is_better = true;
  std::uint64_t max_trials = 1;              // as many as there will be
  std::uint64_t max_concurrent_trials = 16;  // not ended at once
  std::uint64_t seed = 0;
  // Of adaptive_asha. Rungs are at max_length, max_length / divisor, …, in steps.
  std::int64_t max_length = 0;
  int max_rungs = 5;
  double divisor = 4;
  /// How many brackets: 1, half as many as rungs, as many.
  enum class Mode : std::uint8_t { kAggressive, kStandard, kConservative };
  Mode mode = Mode::kStandard;
};
std::string_view SearcherName(SearcherConfig::Kind kind);

/// An experiment as its YAML file says it (docs/guides/experiment_config.md). A value.
struct ExperimentConfig {
  std::string name;
  std::string description;
  std::vector<std::string> labels;
  std::string project;
  std::vector<std::string> entrypoint;  // a text in the file is cut into words, or given to /bin/sh
  Hyperparameters hyperparameters;
  SearcherConfig searcher;
  std::uint64_t max_restarts = 5;
  std::string storage;  // directory or URL; "": the master's
  RetentionPolicy retention;
  int slots = 1;  // of each trial; also its processes
  int priority = 0;
  std::string launcher;                          // kSlurmLauncher, kRayLauncher; "": this machine
  std::map<std::string, std::string> resources;  // what its launcher is asked for
  LaunchLimits limits;                           // of its processes
  std::map<std::string, std::string> environment;
  /// Its one trial is a process that joins by itself: there is nothing to start. Written by the
  /// master for such processes, never by people.
  bool detached = false;
  double preemption_timeout = 600;  // seconds
  double kill_grace = 30;           // seconds
  /// What the file said, without comments; ExperimentFromValue of it gives the same again.
  Value source = Value::Object{};

  /// The `index`-th trial's hyperparameters. `index` < searcher.max_trials.
  Value HparamsOf(std::uint64_t index) const;
  /// The trial for the engine, but for where its code lies and who asks for it.
  TrialConfig TrialOf(const std::string& experiment, std::uint64_t index,
                      const std::string& default_storage) const;
};

/// InvalidArgument says of each mistake the line, what is wrong, and what was probably meant
/// (ConfigProblems).
Result<ExperimentConfig> ParseExperiment(std::string_view yaml);
Result<ExperimentConfig> ExperimentFromValue(const Value& source);

/// The rules of `checkpoint_policy`; also what the REST API takes.
Result<RetentionPolicy> ParseRetention(const ConfigNode& node, const SearcherConfig& searcher);

/// What the file said and, for all that it left out, the value that is used instead: for people who
/// look at an experiment. Parsed, it is the same config again.
Value WithDefaults(const ExperimentConfig& config);

/// Lays `over` over `source`: maps member by member, everything else as a whole. Names with points
/// ("hyperparameters.lr") reach into maps.
void OverrideConfig(const Value& over, Value* source);

}  // namespace cairn::master

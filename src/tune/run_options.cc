#include "tune/run_options.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "storage/open_store.h"
#include "trial/trial_config.h"
#include "tune/stopper.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

/// Of records; Python's are "function" and "class".
constexpr char kKind[] = "program";
/// Populations are compared as a whole.
constexpr std::uint64_t kAhead = 200;
constexpr std::uint64_t kEndless = std::uint64_t{1} << 60;
/// Jobs at a time, which wait in the cluster's own queue where they find no room.
constexpr std::size_t kClusterTrials = 16;

std::size_t Cpus() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return 1;
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&mine)));
}

Value StopWithBudget(const Options& options) {
  if (options.time_budget.count() == 0) return options.stop;
  Value::List stoppers;
  if (!options.stop.is_null()) stoppers.push_back(options.stop);
  stoppers.push_back(
      Value::Object{{"name", "timeout"},
                    {"timeout", std::chrono::duration<double>(options.time_budget).count()}});
  return Value::Object{{"name", "combined"}, {"stoppers", std::move(stoppers)}};
}

Status Another(const Options& options, std::string_view what, const Value& given,
               const Value& before, std::string_view advice) {
  return InvalidArgumentError(
      fmt::format("{} holds an experiment with another {} ({} instead of {}): {}",
                  options.directory, what, EncodeJson(given), EncodeJson(before), advice));
}

}  // namespace

Status Validate(const Options& options, bool saves_on_demand) {
  if (options.directory.empty()) return InvalidArgumentError("tune: name a directory");
  if (!IsTrialId(options.trainable + "_00000")) {
    return InvalidArgumentError(
        fmt::format("tune: {} cannot begin the names of trials: letters, digits, points, dashes, "
                    "underscores",
                    QuoteForMessage(options.trainable)));
  }
  if (options.num_samples < 1 && options.num_samples != -1) {
    return InvalidArgumentError("tune: num_samples must be positive, or -1 for ever");
  }
  if (options.max_failures < -1) {
    return InvalidArgumentError("tune: max_failures must be -1 (endlessly) or more");
  }
  if (options.fail_fast && options.max_failures != 0) {
    return InvalidArgumentError("tune: fail_fast and max_failures exclude each other");
  }
  if (options.time_budget.count() < 0) {
    return InvalidArgumentError("tune: time_budget must not be negative");
  }
  if (options.checkpoint_frequency < 0) {
    return InvalidArgumentError("tune: checkpoint_frequency must not be negative");
  }
  if (!saves_on_demand && (options.checkpoint_frequency > 0 || options.checkpoint_at_end)) {
    return InvalidArgumentError(
        fmt::format("tune: {} does not work with a function, which makes its checkpoints itself: "
                    "Report(metrics, save), ShouldCheckpoint(every) says when; a Trainable is "
                    "asked for them",
                    options.checkpoint_at_end ? "checkpoint_at_end" : "checkpoint_frequency"));
  }
  if (options.resume_errored && options.restart_errored) {
    return InvalidArgumentError("tune: resume_errored and restart_errored exclude each other");
  }
  if (!options.launcher.empty() && options.launcher != "slurm" && options.launcher != "ray") {
    return InvalidArgumentError("tune: launcher is \"slurm\", \"ray\" or nothing, not \"" +
                                options.launcher + "\"");
  }
  if (options.launcher.empty() && !options.resources.empty()) {
    return InvalidArgumentError("tune: resources are for the launchers \"slurm\" and \"ray\"");
  }
  if (IsRemote(options.directory) && (options.log_to_file || options.chdir_to_trial_dir)) {
    return InvalidArgumentError(
        fmt::format("tune: {}: trials in {} have no directory on this machine; leave it out",
                    options.log_to_file ? "log_to_file" : "chdir_to_trial_dir", options.directory));
  }
  return Status::Ok();
}

Value DescribePolicy(const Options& options) {
  const bool population = TextOf(options.scheduler, "name") == "pbt";
  return Value::Object{
      {"space", options.space},         {"num_samples", options.num_samples},
      {"seed", options.seed},           {"points_to_evaluate", options.points_to_evaluate},
      {"scheduler", options.scheduler}, {"stop", StopWithBudget(options)},
      {"metric", options.metric},       {"pending_ahead", population ? kAhead : 0}};
}

Value Describe(const Options& options) {
  return Value::Object{{"format", 1},
                       {"kind", kKind},
                       {"trainable", options.trainable},
                       {"space", options.space},
                       {"num_samples", options.num_samples},
                       {"seed", options.seed},
                       {"points_to_evaluate", options.points_to_evaluate},
                       {"metric", options.metric},
                       {"scheduler", options.scheduler},
                       {"stop", options.stop},
                       {"max_failures", options.max_failures},
                       {"launcher", options.launcher}};
}

Status CheckSame(const Options& options, const Value& recorded) {
  if (recorded.is_null()) return Status::Ok();
  const Value given = Describe(options);
  const auto before = [&](std::string_view name) -> const Value* {
    const Value* value = recorded.Find(name);  // older ones say less
    return value == nullptr || *value == *given.Find(name) ? nullptr : value;
  };
  if (before("kind") != nullptr) {
    return InvalidArgumentError(
        fmt::format("{} holds an experiment of the Python package (of {}): go on with it there, or "
                    "name another directory",
                    options.directory, QuoteForMessage(TextOf(recorded, "trainable"))));
  }
  constexpr std::string_view kGoOn = "go on with that, or name another directory";
  for (const auto& [name, said] :
       {std::pair("trainable", "trainable"), std::pair("space", "search space"),
        std::pair("seed", "seed"), std::pair("points_to_evaluate", "list of points to evaluate"),
        std::pair("metric", "metric"), std::pair("max_failures", "max_failures"),
        std::pair("launcher", "launcher")}) {
    if (const Value* was = before(name)) {
      return Another(options, said, *given.Find(name), *was, kGoOn);
    }
  }
  if (!options.extend) {
    constexpr std::string_view kExtend =
        "go on with that, name another directory, or set `extend` to have its trials go on with it";
    for (const char* name : {"scheduler", "stop"}) {
      if (const Value* was = before(name)) {
        return Another(options, name, *given.Find(name), *was, kExtend);
      }
    }
    return Status::Ok();
  }
  const std::int64_t there = IntOf(recorded, "num_samples", 1);
  const bool fewer = options.num_samples >= 0 && (there < 0 || options.num_samples < there);
  if (!fewer) return Status::Ok();
  return InvalidArgumentError(
      fmt::format("extend: num_samples is {}, and the experiment in {} has {} already: it counts "
                  "all samples, those that were there too",
                  options.num_samples, options.directory, there));
}

Status CheckEmpty(const Options& options) {
  if (IsRemote(options.directory)) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string path, LocalPath(options.directory));
  const std::string prefix = options.trainable + "_";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + 5) continue;
    if (name.find_first_not_of("0123456789", prefix.size()) != std::string::npos) continue;
    return CorruptionError(
        fmt::format("{} has directories of trials ({} …) and no record of the experiment they "
                    "belong to: name another directory, or put \"events\" back",
                    options.directory, name));
  }
  return Status::Ok();
}

Result<Extension> Extends(const Options& options, const Value& recorded, const Value& trials) {
  Extension extension;
  if (!options.extend || recorded.is_null() || options.stop.is_null()) return extension;
  const Value* before = recorded.Find("stop");
  if (before != nullptr && *before == options.stop) return extension;
  extension.extends = true;
  // Others count what they saw: which of the trials they would let go on cannot be told.
  if (TextOf(options.stop, "name") != "bounds") return extension;
  ASSIGN_OR_RETURN(const auto stopper, MakeStopper(options.stop, Clock::System()));
  for (const Value& trial : *trials.if_list()) {
    const Value* last = trial.Find("last_result");
    if (last == nullptr || !last->is_object()) continue;
    const auto stops = stopper->ShouldStop(TextOf(trial, "trial"), *last);
    if (stops.ok() && *stops) extension.except.insert(TextOf(trial, "trial"));
  }
  return extension;
}

TunerOptions SettingsOf(const Options& options) {
  TunerOptions settings;
  settings.description = Describe(options);
  settings.policy_origin = DescribePolicy(options);
  settings.trial_prefix = options.trainable;
  settings.max_concurrent = options.max_concurrent;
  if (settings.max_concurrent == 0) {
    settings.max_concurrent = options.launcher.empty() ? Cpus() : kClusterTrials;
  }
  settings.max_failures =
      options.max_failures < 0 ? kEndless : static_cast<std::uint64_t>(options.max_failures);
  settings.fail_fast = options.fail_fast;
  settings.resume_unfinished = options.resume_unfinished;
  settings.resume_errored = options.resume_errored;
  settings.restart_errored = options.restart_errored;
  RetentionPolicy& retention = settings.retention;
  retention.score = options.score;
  retention.maximize = options.maximize;
  (options.score.empty() ? retention.keep_last : retention.keep_best) = options.num_to_keep;
  retention.experiment_best = options.experiment_num_to_keep;
  retention.max_bytes = options.max_bytes;
  retention.experiment_bytes = options.experiment_max_bytes;
  return settings;
}

}  // namespace cairn::tune

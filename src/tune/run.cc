#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <utility>

#include <cairn/tune.h>

#include "base/status_macros.h"
#include "format/json.h"
#include "launch/local_launcher.h"
#include "launch/ray_launcher.h"
#include "launch/rendezvous.h"
#include "launch/slurm_launcher.h"
#include "storage/open_store.h"
#include "tune/run_worker.h"
#include "tune/search_policy.h"
#include "tune/tuner.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

constexpr auto kStep = std::chrono::milliseconds(500);
/// Populations are compared as a whole.
constexpr std::size_t kAhead = 200;

Result<std::unique_ptr<TunePolicy>> MakePolicy(const Options& options) {
  SearchPolicyParts parts;
  VariantOptions variants{.num_samples = options.num_samples, .seed = options.seed};
  ASSIGN_OR_RETURN(variants.space, SearchSpace::Parse(options.space));
  ASSIGN_OR_RETURN(parts.searcher, MakeVariantSearcher(std::move(variants)));
  if (!options.scheduler.is_null()) {
    ASSIGN_OR_RETURN(parts.scheduler, MakeScheduler(options.scheduler));
    if (TextOf(options.scheduler, "name") == "pbt") parts.pending_ahead = kAhead;
  }
  if (!options.stop.is_null()) {
    ASSIGN_OR_RETURN(parts.stopper, MakeStopper(options.stop, Clock::System()));
  }
  parts.metric = options.metric;
  return MakeSearchPolicy(std::move(parts));
}

Value Describe(const Options& options) {
  return Value::Object{{"format", 1},
                       {"space", options.space},
                       {"seed", options.seed},
                       {"metric", options.metric},
                       {"scheduler", options.scheduler}};
}

/// What was decided so far follows from these.
Status CheckSame(const std::string& directory, const Value& given, const Value& recorded) {
  if (recorded.is_null()) return Status::Ok();
  for (const auto& [name, said] :
       {std::pair("space", "search space"), std::pair("seed", "seed"),
        std::pair("metric", "metric"), std::pair("scheduler", "scheduler")}) {
    const Value* before = recorded.Find(name);  // older ones say less
    if (before == nullptr || *before == *given.Find(name)) continue;
    return InvalidArgumentError(fmt::format(
        "{} holds an experiment with another {} ({} instead of {}): go on with that, or "
        "name another directory",
        directory, said, EncodeJson(*given.Find(name)), EncodeJson(*before)));
  }
  return Status::Ok();
}

/// Says who starts workers. Gives a directory that is to be removed afterwards; "": none.
Result<std::string> ChooseLauncher(const Options& options, const std::string& directory,
                                   TunerOptions* settings) {
  if (options.launcher.empty()) {
    // Of this life alone: workers end with it.
    std::string made =
        (std::filesystem::temp_directory_path() / "cairn-tune-launches-XXXXXX").string();
    if (mkdtemp(made.data()) == nullptr) return UnavailableError("no temporary directory");
    const auto slots = static_cast<int>(options.max_concurrent);
    settings->open_launcher = [made, slots](LaunchListener listener) {
      return OpenLocalLauncher(
          {.directory = made, .slots = slots, .listener = std::move(listener)});
    };
    return made;
  }
  if (options.launcher != "slurm" && options.launcher != "ray") {
    return InvalidArgumentError("tune: launcher is \"slurm\", \"ray\" or nothing, not \"" +
                                options.launcher + "\"");
  }
  std::string launches = options.launch_directory;
  if (launches.empty()) {
    if (IsUrl(directory)) {
      return InvalidArgumentError("tune: name a launch_directory that the nodes share");
    }
    launches = directory + "/launches";
  }
  settings->host = options.host;
  if (settings->host.empty()) {
    ASSIGN_OR_RETURN(settings->host, HostName());
  }
  settings->resources = options.resources;
  if (options.launcher == "ray") {
    RayLauncherOptions ray = {.directory = launches};
    TakeRayOptions(&settings->resources, &ray);
    settings->open_launcher = [ray](LaunchListener listener) {
      RayLauncherOptions with = ray;
      with.listener = std::move(listener);
      return OpenRayLauncher(std::move(with));
    };
    return std::string();
  }
  settings->open_launcher = [launches](LaunchListener listener) {
    return OpenSlurmLauncher({.directory = launches, .listener = std::move(listener)});
  };
  return std::string();
}

std::vector<TrialResult> ResultsOf(const Value& trials) {
  std::vector<TrialResult> results;
  for (const Value& trial : *trials.if_list()) {
    TrialResult result{.trial = TextOf(trial, "trial"),
                       .config = *trial.Find("config"),
                       .status = TextOf(trial, "status"),
                       .error = TextOf(trial, "error"),
                       .results = *trial.Find("results")->if_list()};
    const Value::List& checkpoints = *trial.Find("checkpoints")->if_list();
    if (!checkpoints.empty()) result.checkpoint = TextOf(checkpoints.back(), "path");
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

Result<std::vector<TrialResult>> Run(Options options, const TrainFunction& train) {
  if (IsWorker()) ::_exit(RunWorker(train));
  if (options.directory.empty()) return InvalidArgumentError("tune: name a directory");
  ASSIGN_OR_RETURN(const std::unique_ptr<TunePolicy> policy, MakePolicy(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tuner> tuner,
                   Tuner::Open({.directory = options.directory}));
  const Value description = Describe(options);
  RETURN_IF_ERROR(CheckSame(options.directory, description, tuner->description()));
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  std::error_code absolute_error;
  const std::string directory =
      options.directory.find("://") == std::string::npos
          ? std::filesystem::absolute(options.directory, absolute_error).string()
          : options.directory;
  TunerOptions settings;
  settings.policy = policy.get();
  settings.argv = {program};
  settings.env = {{kWorkerVariable, directory}};
  if (!options.score.empty()) settings.env[kScoreVariable] = options.score;
  settings.description = description;
  settings.max_concurrent = options.max_concurrent;
  settings.max_failures = options.max_failures;
  settings.resume_errored = options.resume_errored;
  settings.retention.score = options.score;
  settings.retention.maximize = options.maximize;
  (options.score.empty() ? settings.retention.keep_last : settings.retention.keep_best) =
      options.num_to_keep;
  ASSIGN_OR_RETURN(const std::string temporary, ChooseLauncher(options, directory, &settings));
  Status status = tuner->Start(std::move(settings));
  bool finished = false;
  while (status.ok() && !finished) {
    TuneNews news;
    Result<bool> step = tuner->Step(kStep, &news);
    status = step.status();
    if (step.ok()) finished = *step;
  }
  Result<std::vector<TrialResult>> results = status;
  if (status.ok()) results = ResultsOf(tuner->Trials(true));
  tuner->Stop();
  if (!temporary.empty()) std::filesystem::remove_all(temporary, error);
  return results;
}

}  // namespace cairn::tune

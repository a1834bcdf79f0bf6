#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include <cairn/tune.h>

#include "base/log.h"
#include "base/signal_watch.h"
#include "base/status_macros.h"
#include "launch/local_launcher.h"
#include "launch/ray_launcher.h"
#include "launch/rendezvous.h"
#include "launch/slurm_launcher.h"
#include "storage/open_store.h"
#include "tune/directory_of_this_life.h"
#include "tune/run_options.h"
#include "tune/run_worker.h"
#include "tune/score.h"
#include "tune/search_policy.h"
#include "tune/trial_files.h"
#include "tune/tuner.h"
#include "tune/value_members.h"
#include "tune/worker_launcher.h"

namespace cairn::tune {
namespace {

constexpr auto kStep = std::chrono::milliseconds(200);
/// So long trials have to save and pause after a signal.
constexpr auto kPausePatience = std::chrono::seconds(30);

using OpenLauncher = std::function<Result<std::unique_ptr<Launcher>>(LaunchListener listener)>;

/// Who starts workers.
Result<OpenLauncher> ChooseLauncher(const Options& options, const std::string& directory,
                                    DirectoryOfThisLife* own, TunerOptions* settings) {
  if (options.launcher.empty()) {
    RETURN_IF_ERROR(own->Make());
    const auto slots = static_cast<int>(settings->max_concurrent);
    return OpenLauncher([made = own->path(), slots](LaunchListener listener) {
      return OpenLocalLauncher(
          {.directory = made, .slots = slots, .listener = std::move(listener)});
    });
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
    return OpenLauncher([ray](LaunchListener listener) {
      RayLauncherOptions with = ray;
      with.listener = std::move(listener);
      return OpenRayLauncher(std::move(with));
    });
  }
  return OpenLauncher([launches](LaunchListener listener) {
    return OpenSlurmLauncher({.directory = launches, .listener = std::move(listener)});
  });
}

/// This program, with the arguments that it was given.
std::vector<std::string> OwnCommand() {
  std::error_code error;
  std::vector<std::string> command = {
      std::filesystem::read_symlink("/proc/self/exe", error).string()};
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string argument;
  std::getline(file, argument, '\0');  // the name that it was called by
  while (std::getline(file, argument, '\0')) command.push_back(argument);
  return command;
}

std::string Absolute(const std::string& directory) {
  if (IsUrl(directory)) return directory;
  std::error_code error;
  return std::filesystem::absolute(directory, error).string();
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
    if (!checkpoints.empty()) {
      const std::string path = TextOf(checkpoints.back(), "path");
      result.checkpoint = path.substr(path.rfind('/') + 1);  // some records have all of it
    }
    results.push_back(std::move(result));
  }
  return results;
}

/// What is told of an experiment while it runs.
struct Observers {
  TrialFiles* files;
  TunePolicy* policy;
  WorkerLauncher* workers;  // whose output is to be seen here; null: none's
  const std::function<void(const Value& news)>& on_news;

  void Tell(const TuneNews& news) const {
    files->Tell(news);
    if (!news.empty()) files->TellPolicy(policy->TakeLog());
    if (workers != nullptr) workers->Relay();
    if (!on_news) return;
    for (const Value& item : news) on_news(item);
  }
};

/// The first has all trials pause, a second ends them, and a third Ctrl-C ends this process.
SignalWatchOptions StopRequests(const Options& options) {
  if (!options.handle_signals) return {};
  return {.signals = {SIGINT, SIGTERM}, .leave_ignored = true, .sigint_ends_after = 2};
}

/// Until all is done, or a signal ends it: Cancelled.
Status Loop(Tuner* tuner, const SignalWatch& requests, const Observers& observers) {
  std::optional<Clock::Duration> asked;
  for (;;) {
    TuneNews news;
    ASSIGN_OR_RETURN(const bool finished, tuner->Step(kStep, &news));
    observers.Tell(news);
    const std::uint32_t count = requests.count();
    if (finished && count == 0) return Status::Ok();
    if (finished) return CancelledError("a signal ended it: the same call goes on with its trials");
    if (count > 0 && !asked) {
      LogWarning("tune: trials save and pause; another signal ends them at once");
      asked = Clock::System()->Now();
      tuner->Interrupt();
    }
    if (asked && (count > 1 || Clock::System()->Now() - *asked > kPausePatience)) {
      return CancelledError(
          "signals ended it at once: the same call goes on with its trials from their checkpoints");
    }
  }
}

Result<std::vector<TrialResult>> RunTuner(const Options& options) {
  const SignalWatch requests(StopRequests(options));
  TunerOptions settings = SettingsOf(options);
  RETURN_IF_ERROR(settings.retention.Validate());
  ASSIGN_OR_RETURN(const std::unique_ptr<TunePolicy> policy,
                   MakeSearchPolicy(settings.policy_origin, Clock::System()));
  settings.policy = policy.get();
  // Outlives the tuner, whose workers have their records there.
  DirectoryOfThisLife own("cairn-tune-launches-");
  const std::string directory = Absolute(options.directory);
  ASSIGN_OR_RETURN(const OpenLauncher open, ChooseLauncher(options, directory, &own, &settings));
  ASSIGN_OR_RETURN(const bool there, Tuner::Exists(options.directory));
  if (!there) RETURN_IF_ERROR(CheckEmpty(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tuner> tuner,
                   Tuner::Open({.directory = options.directory}));
  if (tuner->description().is_null()) RETURN_IF_ERROR(CheckEmpty(options));
  RETURN_IF_ERROR(CheckSame(options, tuner->description()));
  const Value known = tuner->Trials(false);
  ASSIGN_OR_RETURN(Extension extension, Extends(options, tuner->description(), known));
  settings.extend_ended = extension.extends;
  settings.extend_except = std::move(extension.except);

  WorkerLauncher* workers = nullptr;
  settings.open_launcher = [&](LaunchListener listener) -> Result<std::unique_ptr<Launcher>> {
    ASSIGN_OR_RETURN(std::unique_ptr<Launcher> beneath, open(std::move(listener)));
    auto made = std::make_unique<WorkerLauncher>(std::move(beneath), OwnCommand(),
                                                 WorkerEnvironment(options, directory));
    workers = made.get();
    return std::unique_ptr<Launcher>(std::move(made));
  };
  TrialFiles files(options.directory, [&](const std::string& trial) {
    const Value results = tuner->Results(trial);
    return results.is_list() ? *results.if_list() : Value::List();
  });
  files.Meet(known);
  Status status = tuner->Start(std::move(settings));
  if (status.ok()) {
    files.MeetPolicy(policy->TakeLog());
    WorkerLauncher* const heard = options.launcher.empty() ? workers : nullptr;
    status = Loop(tuner.get(), requests, {&files, policy.get(), heard, options.on_news});
    files.Finish();
  }
  Result<std::vector<TrialResult>> results = status;
  if (status.ok()) results = ResultsOf(tuner->Trials(true));
  tuner->Stop();
  return results;
}

}  // namespace

Result<std::vector<TrialResult>> Run(Options options, const TrainFunction& train) {
  if (IsWorker()) ::_exit(RunWorker(train));
  RETURN_IF_ERROR(Validate(options, false));
  return RunTuner(options);
}

Result<std::vector<TrialResult>> Run(Options options, const MakeTrainable& make) {
  if (IsWorker()) ::_exit(RunWorker(make));
  RETURN_IF_ERROR(Validate(options, true));
  return RunTuner(options);
}

Result<bool> CanRestore(const std::string& directory) { return Tuner::Exists(directory); }

const TrialResult* BestOf(const std::vector<TrialResult>& results, const std::string& metric,
                          bool maximize) {
  const TrialResult* best = nullptr;
  Value best_score;
  for (const TrialResult& result : results) {
    if (result.results.empty()) continue;
    const auto score = MetricOf(result.results.back(), metric);
    if (!score.ok() || !score->is_number() || IsNan(*score)) continue;
    const int order = best == nullptr ? 1 : CompareNumbers(*score, best_score);
    if (best != nullptr && (maximize ? order <= 0 : order >= 0)) continue;
    best = &result;
    best_score = *score;
  }
  return best;
}

}  // namespace cairn::tune

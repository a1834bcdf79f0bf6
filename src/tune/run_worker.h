#pragma once

#include <map>
#include <string>

#include <cairn/tune.h>

namespace cairn::tune {

/// The variable by which a process knows that it is a worker: the experiment's directory.
inline constexpr char kWorkerVariable[] = "CAIRN_TUNE_DIRECTORY";

/// What of the options a worker has to know, as JSON.
inline constexpr char kSettingsVariable[] = "CAIRN_TUNE_SETTINGS";

/// Both of them; `directory` is absolute, or a URL.
std::map<std::string, std::string> WorkerEnvironment(const Options& options,
                                                     const std::string& directory);

/// Whether this process is a worker of a tuner.
bool IsWorker();

/// Runs the trial that the environment names; returns the exit code.
int RunWorker(const TrainFunction& train);
int RunWorker(const MakeTrainable& make);

}  // namespace cairn::tune

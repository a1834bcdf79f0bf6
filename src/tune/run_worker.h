#pragma once

#include <cairn/tune.h>

namespace cairn::tune {

/// The variable by which a process knows that it is a worker: the experiment's directory.
inline constexpr char kWorkerVariable[] = "CAIRN_TUNE_DIRECTORY";

/// The metric by which a worker's checkpoints are kept; not set: none.
inline constexpr char kScoreVariable[] = "CAIRN_TUNE_SCORE";

/// Whether this process is a worker of a tuner.
bool IsWorker();

/// Runs the trial that the environment names; returns the exit code.
int RunWorker(const TrainFunction& train);

}  // namespace cairn::tune

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/launcher.h"
#include "launch/slurm_script.h"

namespace cairn {

/// Launches that go to Slurm with one call of sbatch: one job, or one array of jobs.
struct SlurmBatch {
  std::string name;  // of the job; no other has it
  std::vector<std::string> flags;
  bool array = false;
  std::vector<std::string> ids;
  std::vector<SlurmTask> tasks;  // of the ids, in their order
  bool tried = false;
  bool look_first = false;  // its answer was lost: Slurm may have it
  std::chrono::nanoseconds not_before{0};

  /// The place of the first of them.
  int first_index() const { return array ? 0 : -1; }
};

/// The flags of a launch, but for what is said of its batch. Launches with equal flags may go
/// together. `warning`: Slurm's --signal, where its
/// resources do not say it. These are known to be good.
std::vector<std::string> FlagsOfLaunch(const LaunchSpec& spec, std::chrono::seconds warning);

/// Cuts launches that have equal flags into batches, with names and flags, without ids and tasks.
SlurmBatch NewBatch(const std::vector<LaunchSpec>& specs, const std::vector<std::string>& flags,
                    const std::string& outputs);

/// Where what a job says before its shim begins is, below `outputs`.
std::string JobOutput(const std::string& outputs, const std::string& job, int index);

/// The last words in it, for a message; "" when there are none.
std::string LastWords(const std::string& path);

}  // namespace cairn

#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "base/clock.h"
#include "launch/launcher.h"

namespace cairn {

struct SlurmLauncherOptions {
  /// Where each launch has its directory; on a file system that the nodes share with this machine,
  /// under the same path. Made when missing, for this user alone. One launcher at a time. What it
  /// holds: docs/format/launches.md.
  std::string directory;
  /// Slots of launches that are handed to Slurm at once; the others wait here. Slurm has a queue of
  /// its own, so there are many.
  int slots = 10'000;
  std::string shim;      // as LocalLauncherOptions::shim; lies under the same path on the nodes
  std::string programs;  // the directory of sbatch, squeue, scancel; "": on the PATH
  /// Where slurmrestd listens ("unix:/PATH", see slurm_rest.h), instead of programs. "": what
  /// CAIRN_SLURMRESTD says; programs when that says nothing.
  std::string rest;
  /// Time before its time limit, or from a preemption on, that a run has to save: Slurm's --signal.
  /// Launches may say another one (resources, `warning`).
  std::chrono::seconds warning{60};
  /// Calls of Slurm, at most, whatever the number of launches; two may come at once.
  double calls_per_second = 2;
  /// How often Slurm is asked for all jobs together. What goes well is seen sooner, by files.
  std::chrono::nanoseconds poll = std::chrono::seconds(1);
  /// How often the directories of living launches are looked at.
  std::chrono::nanoseconds look = std::chrono::milliseconds(100);
  LaunchListener listener;
  Clock* clock = Clock::System();  // borrowed

  Status Validate() const;
};

/// Launches as jobs of Slurm, each kept on its node by a shim, with what launcher.h promises and
/// these differences:
///  - A launch that was handed to Slurm and waits there is kQueued, with Slurm's reason, and
///    survives the owner. Those that wait here (no slot, Slurm does not answer) do not.
///  - A job is never requeued: a node that is taken back or lost ends the launch (`stopped`: it is
///    nobody's failure), and whoever wants it again submits another one. A job that somebody
///    requeues by force is taken out of the queue.
///  - When a node vanishes, nobody can know that its processes are gone: the launch is kLost when
///    Slurm says so, and its shim, should it live, ends it as soon as it sees the file system.
///  - With outlive_owner false the end of the owner is noticed within 5 s.
///  - LaunchSpec::resources: see SlurmFlags.
Result<std::unique_ptr<Launcher>> OpenSlurmLauncher(SlurmLauncherOptions options);

}  // namespace cairn

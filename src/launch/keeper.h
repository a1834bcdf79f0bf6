#pragma once

#include <string>

#include <cairn/status.h>

#include "base/clock.h"

namespace cairn {

struct KeeperOptions {
  std::string directory;  // of the launch, made by the launcher
  /// One end of a socket pair whose other end the launcher's process has; -1: none. A byte is sent
  /// when the ranks run; its end means that the launcher's process is gone.
  int owner = -1;
  /// The launcher is on another machine, and a cluster's scheduler started this process: commands
  /// come through a file, the environment too (but for what the scheduler says about the job), and
  /// SIGTERM, SIGUSR1 and SIGUSR2 are the scheduler's warning that it takes the machine back.
  bool remote = false;
  /// Of a remote one: the key of the launch that it was started for. A directory of that name may
  /// be another launch's by now, when a job comes late.
  std::string key;
  /// Of a launch over several nodes: which one this is. One shim keeps the launch, that of node 0
  /// or (LaunchRecord::starter) one that has no ranks.
  int node = 0;
  /// The others are started by it (node_links.h) and keep their ranks for it, told by their input
  /// and telling by their output.
  bool linked = false;
  Clock* clock = Clock::System();
};

/// What the shim does: keeps one launch from its first process to its last, whatever becomes of the
/// launcher, and writes down what it said and how it ended. Returns when all that is done. For a
/// process of its own with one thread, which it makes the reaper of all descendants.
///
/// Aborted: the launch was started before (an id is started at most once).
Status KeepLaunch(const KeeperOptions& options);

}  // namespace cairn

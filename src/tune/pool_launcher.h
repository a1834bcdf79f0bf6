#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "launch/launcher.h"

namespace cairn::tune {

struct PoolLauncherOptions {
  /// The zygote's command. It finds the launcher's end of a socket as descriptor 3, and as
  /// descriptor 4 the reading end of a pipe that nobody writes to: it ends with this process.
  std::vector<std::string> argv;
  /// Sent to the zygote before anything else: what its workers have to know. Opaque.
  std::string payload;
  /// The zygote is started by the opening and not by the first launch, which then need not wait for
  /// what it imports. For those who know that there will be one.
  bool spawn_at_once = false;
  LaunchListener listener;
  Clock* clock = Clock::System();  // borrowed

  Status Validate() const;
};

/// Launches that are forks of one process, the zygote, which has imported what they need
/// (docs/format/tune.md, "The zygote's socket"). Of a LaunchSpec it takes id, env and grace; argv
/// is not looked at.
///
/// What differs from other launchers: nothing outlives this object's process (the zygote and its
/// forks end with it, within moments), so a launcher that is opened knows of no launches; there are
/// no queue and no logs (workers write to this process's own output). A zygote that was killed is
/// started again; its workers end with it, and that counts as stopped, as nobody's failure. A
/// zygote that cannot begin, or dies again and again, ends all launches with kNotStarted and what
/// it said.
Result<std::unique_ptr<Launcher>> OpenPoolLauncher(PoolLauncherOptions options);

}  // namespace cairn::tune

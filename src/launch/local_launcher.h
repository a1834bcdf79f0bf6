#pragma once

#include <memory>
#include <string>

#include <cairn/status.h>

#include "base/clock.h"
#include "launch/launcher.h"

namespace cairn {

struct LocalLauncherOptions {
  /// Where each launch has its directory (records and log); made when missing, with access for this
  /// user alone, because environments hold tokens. One launcher at a time: a second one is told
  /// Unavailable. What it holds: docs/format/launches.md.
  std::string directory;
  int slots = 1;  // that launches share; what one stands for (a core, a GPU) is the caller's choice
  /// The program that keeps a launch. "": CAIRN_SHIM, or cairn-shim beside this program or library,
  /// or on the PATH.
  std::string shim;
  LaunchListener listener;
  Clock* clock = Clock::System();  // borrowed; times in records

  Status Validate() const;
};

/// Processes of this machine, each launch kept by a shim (shim.h) that outlives this object.
Result<std::unique_ptr<Launcher>> OpenLocalLauncher(LocalLauncherOptions options);

}  // namespace cairn

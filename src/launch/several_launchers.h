#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn {

/// One of several launchers.
struct NamedLauncher {
  std::string name;
  /// Opens it. Its listener is told of its launches as ever.
  std::function<Result<std::unique_ptr<Launcher>>()> open;
  /// False: opened by the first launch that is meant for it. One that may have launches from before
  /// must be opened at once, or they would not be known.
  bool at_once = true;
};

/// Puts launchers together: LaunchSpec::launcher says which is meant ("": the first), ids are
/// unique among all, and LaunchInfo::launcher tells whose a launch is (but not to listeners). A
/// launcher that cannot be opened when it is wanted fails that Submit and is tried again by the
/// next.
Result<std::unique_ptr<Launcher>> OpenSeveralLaunchers(std::vector<NamedLauncher> launchers);

}  // namespace cairn

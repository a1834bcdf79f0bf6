#pragma once

#include <memory>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/environment.h"
#include "checkpoint/layout.h"
#include "storage/open_store.h"

namespace cairn {

/// CheckpointManager::Open over a given store, clock and id source. `limits` exists for tests that
/// want many files from few bytes.
Result<std::unique_ptr<CheckpointManager>> OpenManager(ManagerOptions options, Environment env,
                                                       LayoutLimits limits = {});

/// The environment of this process for a path or URL: its store, the system's clock and ids.
Result<Environment> EnvironmentAt(const std::string& where, const OpenStoreOptions& options);

}  // namespace cairn

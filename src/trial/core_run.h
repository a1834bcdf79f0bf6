#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/checkpoint_manager.h>
#include <cairn/core.h>
#include <cairn/status.h>

#include "trial/client_run.h"

namespace cairn::core {

/// What a process is when it begins: a run that an engine started, one that joined a trial because
/// somebody started it by hand, or one that works alone.
struct CoreRun {
  std::optional<ClusterInfo> info;    // nullopt: alone
  std::unique_ptr<RunClient> client;  // null: alone
  std::string storage;                // where its checkpoints are
  std::optional<std::string> latest;  // with which one to begin, as the engine says
  std::string elsewhere;              // the repository of `latest`, when it is another trial's
  bool detached = false;              // nobody but the process itself tells how it ended
  ManagerOptions manager;             // how the repository is to be opened

  /// Meets the engine, where there is one. Called by all ranks: of those that join by hand the
  /// chief does it, and tells the others as whom. `ranks`: borrowed.
  static Result<CoreRun> Begin(const InitOptions& options, DistributedContext* ranks);
};

/// The trial_seed of a trial that nobody gave one.
std::uint32_t SeedOf(std::string_view experiment, std::string_view trial);

/// The machine's name, as reports have it.
std::string HostName();

}  // namespace cairn::core

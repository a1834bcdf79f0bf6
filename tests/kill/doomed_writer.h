#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/transfer.h"
#include "tests/kill/strike.h"

namespace cairn::kill {

/// A writer of full checkpoints and increments that goes on until it is killed, as its arguments
/// say:
///   DIR BLACKBOARD SEED KILL_STEP KILL_COUNT KILL_DELAY_US COMPACT
/// With COMPACT = 1 the latest chain is put together first; steps of that are called "compact …".
/// When the KILL_STEP-th protocol step has begun for the KILL_COUNT-th time, the process sends
/// SIGKILL to itself KILL_DELAY_US later.
struct DoomedWriter {
  Blackboard* board = nullptr;
  std::uint64_t seed = 0;
  std::unique_ptr<Strike> strike;  // before the manager, which calls it
  std::unique_ptr<CheckpointManager> manager;

  static Result<DoomedWriter> Open(int argc, char** argv) {
    if (argc != 8) return InvalidArgumentError("seven arguments are needed");
    DoomedWriter writer;
    writer.board = MapBoard(argv[2]);
    if (writer.board == nullptr) return NotFoundError("no blackboard");
    writer.seed = std::strtoull(argv[3], nullptr, 10);
    writer.strike =
        std::make_unique<Strike>(writer.board, argv[4], std::atol(argv[5]), std::atol(argv[6]));
    ASSIGN_OR_RETURN(Environment env, EnvironmentAt(argv[1], {.create = true}));
    env.on_step = [strike = writer.strike.get()](std::string_view name) { strike->Begin(name); };
    if (std::atoi(argv[7]) != 0) {
      writer.strike->prefix = "compact ";
      const auto compacted = CompactIn(env, {}, {});
      if (!compacted.ok() && !compacted.status().Is(Code::kNotFound)) return compacted.status();
      writer.strike->prefix.clear();
    }
    ManagerOptions options;
    options.retention.keep_last = 3;
    ASSIGN_OR_RETURN(writer.manager, OpenManager(options, env));
    return writer;
  }
};

}  // namespace cairn::kill

#pragma once

#include <string>
#include <utility>

#include "checkpoint/manager.h"
#include "tests/kill/job_state.h"

/// A job whose state is a function of its step, for tests of the engine on real servers.
namespace cairn::remote {

inline constexpr std::uint64_t kSeed = 5;

inline Result<CheckpointInfo> SaveStep(CheckpointManager* manager, std::int64_t step) {
  kill::JobState state;
  state.Compute(kSeed, step, 0);
  auto handle = manager->Save({.step = step, .tensors = state.Views(0, 1)});
  if (!handle.ok()) return handle.status();
  return handle->Wait();
}

/// The step that was restored, bit-equal; -1 when there is nothing; an error otherwise.
inline Result<std::int64_t> RestoreLatest(CheckpointManager* manager) {
  kill::JobState state;
  auto restored = manager->Restore({.into = state.Targets(0, 1)});
  if (!restored.ok()) return restored.status();
  if (!restored->has_value()) return std::int64_t{-1};
  kill::JobState expected;
  expected.Compute(kSeed, (*restored)->step, 0);
  if (!(state == expected)) return CorruptionError("the restored state is not that of its step");
  return (*restored)->step;
}

}  // namespace cairn::remote

#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "checkpoint/manager.h"
#include "storage/s3/test_s3_server.h"
#include "tests/kill/job_state.h"

/// What the tests of the engine on a bucket share: a job whose state is a function of its step.
namespace cairn::s3 {

inline constexpr std::uint64_t kSeed = 5;

inline Environment EnvironmentOn(S3StoreOptions options) {
  Environment env;
  auto store = S3Store::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  if (store.ok()) env.store = *std::move(store);
  env.host = "test";
  env.pid = 1;
  return env;
}

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

}  // namespace cairn::s3

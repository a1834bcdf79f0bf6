#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/manager.h"

namespace cairn::kill {

/// Looks at a repository from outside, after its writer was killed: the latest checkpoint is not
/// older than the step that was acknowledged (-1: none), and `check` passes for each that is
/// listed. Fails the test.
inline void CheckListed(
    const std::string& directory, std::int64_t acknowledged,
    const std::function<void(CheckpointManager* manager, const CheckpointInfo& info)>& check) {
  auto env = EnvironmentAt(directory, {.create = false});
  ASSERT_TRUE(env.ok()) << env.status().ToString();
  auto manager = OpenManager({.directory = directory, .read_only = true}, *env);
  if (!manager.ok() && acknowledged < 0) return;  // killed before cairn.json
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  const auto latest = (*manager)->Latest();
  ASSERT_TRUE(latest.ok()) << latest.status().ToString();
  if (acknowledged >= 0) {
    ASSERT_TRUE(latest->has_value()) << "acknowledged step " << acknowledged << " is gone";
    ASSERT_GE((*latest)->step, acknowledged);
  }
  const auto infos = (*manager)->List();
  ASSERT_TRUE(infos.ok()) << infos.status().ToString();
  for (const CheckpointInfo& info : *infos) {
    ASSERT_NO_FATAL_FAILURE(check(manager->get(), info)) << info.path;
  }
}

}  // namespace cairn::kill

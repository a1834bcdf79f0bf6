#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/environment.h"
#include "checkpoint/manager.h"
#include "storage/memory/memory_store.h"

namespace cairn {

/// A store in memory that stays from one opening of a job to the next.
class TestJobStore {
 public:
  explicit TestJobStore(bool object_store) {
    MemoryStore::Options options;
    options.object_store = object_store;
    store_ = MemoryStore::Open(options).value();
  }

  Environment Env() const {
    Environment env;
    env.store = store_;
    env.host = "here";
    env.pid = 1;
    return env;
  }
  std::unique_ptr<CheckpointManager> Open(ManagerOptions options = {}) const {
    auto manager = OpenManager(std::move(options), Env());
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return manager.ok() ? *std::move(manager) : nullptr;
  }
  static std::vector<std::int64_t> Steps(CheckpointManager* manager) {
    std::vector<std::int64_t> steps;
    auto infos = manager->List();
    EXPECT_TRUE(infos.ok()) << infos.status().ToString();
    if (!infos.ok()) return steps;
    for (const CheckpointInfo& info : *infos) steps.push_back(info.step);
    return steps;
  }

 protected:
  std::shared_ptr<MemoryStore> store_;  // shared with the environments
};

/// Runs every test on a store with links and on one like an object store.
class OnBothStores : public testing::TestWithParam<bool>, protected TestJobStore {
 protected:
  OnBothStores() : TestJobStore(GetParam()) {}
};

}  // namespace cairn

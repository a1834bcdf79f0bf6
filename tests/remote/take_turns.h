#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/remote/job.h"

namespace cairn::remote {

/// Writers that overtake each other while they save, each save removing the one before, and a
/// reader that always finds a whole checkpoint. Each writer is left alone until its checkpoints
/// refer to files of removed ones. `open_store`: a store as another process would have.
inline void TakeTurnsWhileAReaderReads(
    const std::string& url, int writers_in_turn,
    const std::function<Result<std::shared_ptr<Store>>()>& open_store) {
  const auto open = [&](ManagerOptions options) -> Result<std::unique_ptr<CheckpointManager>> {
    auto store = open_store();
    if (!store.ok()) return store.status();
    Environment env;
    env.store = *std::move(store);
    env.host = "test";
    env.pid = 1;
    options.directory = url;
    return OpenManager(std::move(options), std::move(env));
  };
  {
    ASSERT_TRUE(SaveStep(open({})->get(), 1).ok());
  }
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> step = 1;
  std::atomic<int> reads = 0;
  std::atomic<int> overtaken = 0;
  std::atomic<std::uint64_t> shared = 0;
  ManagerOptions options;
  options.retention.keep_last = 1;  // every save removes the one before
  std::jthread reader([&] {
    while (!stop) {
      auto manager = open({.read_only = true});
      ASSERT_TRUE(manager.ok()) << manager.status().ToString();
      const auto restored = RestoreLatest(manager->get());
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      EXPECT_GE(*restored, 1);
      ++reads;
    }
  });
  const auto write = [&](const std::function<void()>& shares) {
    auto manager = open(options);
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    for (int save = 1; !stop; ++save) {
      std::uint64_t bytes = 0;
      const auto saved = SaveStep(manager->get(), ++step, &bytes);
      if (saved.status().Is(Code::kAborted)) {
        ++overtaken;
        break;
      }
      ASSERT_TRUE(saved.ok()) << saved.status().ToString();
      shared += bytes;
      if (save == kSavesUntilShared) shares();
    }
    (*manager)->Close().IgnoreError("it may have been overtaken");
  };
  {
    std::deque<std::latch> turns;
    std::vector<std::jthread> writers;
    for (int turn = 0; turn < writers_in_turn; ++turn) {
      std::latch& next = turns.emplace_back(1);
      writers.emplace_back([&] {
        bool told = false;
        const auto tell = [&] {
          if (!std::exchange(told, true)) next.count_down();
        };
        write(tell);
        tell();  // also after a failure
      });
      next.wait();
    }
    stop = true;
  }
  reader.join();
  EXPECT_GT(reads, 0);
  EXPECT_EQ(overtaken, writers_in_turn - 1);
  EXPECT_GT(shared, 0u);
  auto manager = open(options);
  ASSERT_TRUE(manager.ok());
  EXPECT_TRUE(RestoreLatest(manager->get()).ok());
  ASSERT_TRUE((*manager)->Close().ok());
  const auto contents = VerifyAll(open_store()->get());
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_THAT(contents->garbage, ::testing::IsEmpty());
}

}  // namespace cairn::remote

#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/remote/job.h"

namespace cairn::remote {

/// Two writers that overtake each other, each save removing the one before, and a reader that
/// always finds a whole checkpoint. `open`: a manager on the same repository, as another process
/// would.
inline void TakeTurnsWhileAReaderReads(
    const std::function<Result<std::unique_ptr<CheckpointManager>>(ManagerOptions)>& open) {
  {
    ASSERT_TRUE(SaveStep(open({})->get(), 1).ok());
  }
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> step = 1;
  std::atomic<int> reads = 0;
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
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 2; ++i) {
      writers.emplace_back([&] {
        for (int turn = 0; turn < 4; ++turn) {
          auto manager = open(options);
          if (manager.status().Is(Code::kAborted)) continue;  // overtaken while it opened
          ASSERT_TRUE(manager.ok()) << manager.status().ToString();
          for (int save = 0; save < 3; ++save) {
            const auto saved = SaveStep(manager->get(), ++step);
            if (saved.status().Is(Code::kAborted)) break;  // fenced
            ASSERT_TRUE(saved.ok()) << saved.status().ToString();
          }
          (*manager)->Close().IgnoreError("it may have been overtaken");
        }
      });
    }
  }
  stop = true;
  reader.join();
  EXPECT_GT(reads, 0);
  auto manager = open(options);
  ASSERT_TRUE(manager.ok());
  EXPECT_TRUE(RestoreLatest(manager->get()).ok());
}

}  // namespace cairn::remote

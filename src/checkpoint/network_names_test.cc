// Machines that share a directory over a network file system. Each remembers for a while which
// names were missing and what directories held; no decision may rest on such a memory.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/name_cache_store.h"

namespace cairn {
namespace {

class NetworkNames : public testing::Test {
 protected:
  using OnStep = std::function<void(std::string_view)>;

  NetworkNames() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~NetworkNames() override { SetLogSink(nullptr); }

  /// The directory as one machine sees it.
  std::shared_ptr<Store> Machine() const { return std::make_shared<NameCacheStore>(server_.get()); }
  static Environment EnvOf(std::shared_ptr<Store> machine, OnStep on_step = nullptr) {
    Environment env;
    env.store = std::move(machine);
    env.host = "here";
    env.pid = 1;
    env.on_step = std::move(on_step);
    return env;
  }
  static std::unique_ptr<CheckpointManager> Open(ManagerOptions options,
                                                 std::shared_ptr<Store> machine,
                                                 OnStep on_step = nullptr) {
    auto manager = OpenManager(std::move(options), EnvOf(std::move(machine), std::move(on_step)));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return manager.ok() ? *std::move(manager) : nullptr;
  }
  static CheckpointInfo Save(CheckpointManager* manager, std::int64_t step) {
    const std::vector<float> values(10, static_cast<float>(step));
    const auto handle = manager->Save({.step = step,
                                       .tensors = {{.name = "w",
                                                    .dtype = DType::kF32,
                                                    .shape = {10},
                                                    .data = values.data(),
                                                    .group = TensorGroup::kState}},
                                       .blocking = true});
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    return handle.ok() ? handle->Wait().value() : CheckpointInfo();
  }
  static std::vector<std::int64_t> StepsSeenBy(Store* machine) {
    std::vector<std::int64_t> steps;
    const auto view = RepositoryReader(machine).Read();
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    if (!view.ok()) return steps;
    for (const Checkpoint& checkpoint : view->checkpoints) {
      if (checkpoint.counts) steps.push_back(checkpoint.manifest->step);
    }
    return steps;
  }
  /// A job on one machine saves steps 1 and 2 and ends, while another machine lists the
  /// checkpoints: once at the beginning of the second save, and once just before its commit.
  void SaveTwiceWhileListedBy(const std::shared_ptr<Store>& other) {
    const auto manager = Open({}, Machine(), [&](std::string_view step) {
      if (step != "save: plan" && step != "save: manifest") return;
      if (server_->Stat("checkpoint_000001/manifest.json").ok()) {
        EXPECT_EQ(StepsSeenBy(other.get()), (std::vector<std::int64_t>{1}));
      }
    });
    Save(manager.get(), 1);
    Save(manager.get(), 2);
    EXPECT_TRUE(manager->Close().ok());
  }

  const std::unique_ptr<MemoryStore> server_ = MemoryStore::Open({.object_store = false}).value();
};

TEST_F(NetworkNames, AnOpenerSealsASaveThatItsMachineRemembersAsUnfinished) {
  const auto other = Machine();
  SaveTwiceWhileListedBy(other);
  const auto next = Open({}, other);
  std::vector<std::int64_t> steps;
  for (const CheckpointInfo& info : next->List().value()) steps.push_back(info.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2}));
  const auto seal = Decode<SealRecord>(server_->Get(names::Seal(2), kMaxRecordBytes).value());
  EXPECT_EQ(seal->commits.size(), 2u);
  EXPECT_TRUE(seal->retired.empty()) << seal->retired.front();
}

TEST_F(NetworkNames, AReaderSeesASaveThatItsMachineRemembersAsUnfinished) {
  const auto other = Machine();
  SaveTwiceWhileListedBy(other);
  EXPECT_EQ(StepsSeenBy(other.get()), (std::vector<std::int64_t>{1, 2}));
}

TEST_F(NetworkNames, AnOpenerSeesARemovalThatBeganAfterItsMachineLooked) {
  const auto other = Machine();
  std::unique_ptr<CheckpointManager> next;
  std::string removed;
  {
    ManagerOptions options;
    options.retention.keep_last = 1;
    const auto manager = Open(options, Machine(), [&](std::string_view step) {
      if (step == "remove: note") {
        const auto view = RepositoryReader(other.get()).Read(ReadFor::kOwning).value();
        EXPECT_FALSE(view.checkpoints.front().removed);
        removed = view.checkpoints.front().manifest->id;
      }
      // It has looked at the fences for the last time, and then somebody opens.
      if (step == "remove: manifest") next = Open({.takeover = true}, other);
    });
    Save(manager.get(), 1);
    Save(manager.get(), 2);
    EXPECT_TRUE(manager->Close().ok());
  }
  ASSERT_NE(next, nullptr);
  ASSERT_FALSE(removed.empty());
  const auto seal = Decode<SealRecord>(server_->Get(names::Seal(2), kMaxRecordBytes).value());
  ASSERT_EQ(seal->commits.size(), 1u) << "what is being removed is named";
  EXPECT_NE(seal->commits.front(), removed);
}

TEST_F(NetworkNames, RanksOnMachinesOfTheirOwnMeetSaveAndRestore) {
  const auto run = [&](int rank, int saves) {
    const auto machine = Machine();
    EXPECT_TRUE(machine->List("").ok());
    EXPECT_TRUE(machine->List("generations/joins").ok());
    const auto manager = Open({.rank = rank, .world_size = 2}, machine);
    ASSERT_NE(manager, nullptr);
    float value = 0;
    const auto restored = manager->Restore({.into = {{.name = "own",
                                                      .dtype = DType::kF32,
                                                      .shape = {1},
                                                      .data = &value,
                                                      .group = TensorGroup::kState}}});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    const std::int64_t before = restored->has_value() ? (*restored)->step : 0;
    EXPECT_EQ(value, static_cast<float>(before));
    for (std::int64_t step = before + 1; step <= before + saves; ++step) {
      value = static_cast<float>(step);
      const auto handle = manager->Save({.step = step,
                                         .tensors = {{.name = "own",
                                                      .dtype = DType::kF32,
                                                      .shape = {1},
                                                      .data = &value,
                                                      .group = TensorGroup::kState}},
                                         .blocking = true});
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      EXPECT_TRUE(StepsSeenBy(machine.get()).back() >= step);
    }
    EXPECT_TRUE(manager->Close().ok());
  };
  for (int job = 0; job < 2; ++job) {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(run, rank, 3);
  }
  EXPECT_EQ(StepsSeenBy(server_.get()).back(), 6);
}

}  // namespace
}  // namespace cairn

// A repository that was deleted and made again while a writer of the first one is still alive. Both
// are generation 1, and their checkpoints have the same names: the old writer must neither be told
// that it saved anything nor take anything from the new run.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/log.h"
#include "base/settable_clock.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

enum class World { kDisk, kLinks, kObjects };

class ReplacedDirectory : public testing::TestWithParam<World> {
 protected:
  ReplacedDirectory() {
    SetLogSink([](LogLevel, std::string_view) {});
    if (GetParam() != World::kDisk) {
      memory_ = MemoryStore::Open({.object_store = GetParam() == World::kObjects}).value();
    }
  }
  ~ReplacedDirectory() override { SetLogSink(nullptr); }

  /// `on_step`: called at the steps of the protocol.
  Environment Env(std::function<void(std::string_view)> on_step = nullptr) const {
    Environment env;
    env.store = Opened();
    env.host = "here";
    env.pid = 1;
    env.rules = rules_;
    env.on_step = std::move(on_step);
    return env;
  }
  /// All have named the same job, as trainings started by a script do: that alone tells nobody
  /// apart. `takeover`: what is deleted with the directory is the lock too, which the memory store
  /// and the registry inside this process do not know.
  std::unique_ptr<CheckpointManager> Open(ManagerOptions options = {},
                                          std::function<void(std::string_view)> on_step = nullptr,
                                          Clock* clock = Clock::System()) const {
    options.job = "training";
    options.takeover = true;
    Environment env = Env(std::move(on_step));
    env.clock = clock;
    auto manager = OpenManager(std::move(options), std::move(env));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return manager.ok() ? *std::move(manager) : nullptr;
  }
  static ManagerOptions Keep(std::uint64_t last) {
    ManagerOptions options;
    options.retention.keep_last = last;
    return options;
  }
  static Status Save(CheckpointManager* manager, std::int64_t step, float value) {
    const std::vector<float> values(100, value);
    const std::vector<int> frozen(100, 7);  // the same in all: to be shared
    auto handle = manager->Save(
        {.step = step,
         .tensors = {{.name = "w", .dtype = DType::kF32, .shape = {100}, .data = values.data()},
                     {.name = "f", .dtype = DType::kI32, .shape = {100}, .data = frozen.data()}},
         .state_files = {{"who", value == kNew ? "new" : "old"}},
         .blocking = true});
    if (!handle.ok()) return handle.status();
    manager->WaitAll().IgnoreError("of retention: what it left is what is judged");
    return handle->Wait().status();
  }

  /// As another process has it.
  std::shared_ptr<Store> Opened() const {
    if (memory_ != nullptr) return memory_;
    return OpenStore(root(), {.create = true}).value();
  }
  /// rm -rf
  void DeleteEverything() const {
    if (GetParam() == World::kDisk) {
      std::filesystem::remove_all(root());
      return;
    }
    for (const std::string& name : Names()) {
      ASSERT_TRUE(memory_->Delete(name).ok()) << name;
    }
  }
  std::vector<std::string> Names(const std::string& prefix = "") const {
    std::vector<std::string> names;
    const Listing listing = Opened()->List(prefix).value();
    for (const ObjectInfo& object : listing.objects) names.push_back(object.name);
    for (const std::string& sub : listing.prefixes) {
      for (std::string& name : Names(sub)) names.push_back(std::move(name));
    }
    return names;
  }
  /// Deletes everything and starts the training again, up to the save of these steps.
  std::unique_ptr<CheckpointManager> Replace(const std::vector<std::int64_t>& steps) const {
    DeleteEverything();
    auto manager = Open(Keep(9));
    EXPECT_EQ(manager->generation(), 1u);
    for (const std::int64_t step : steps) {
      EXPECT_TRUE(Save(manager.get(), step, kNew).ok());
    }
    return manager;
  }

  /// The repository is the new run's, with these steps, whole, and goes on.
  void ExpectNew(std::unique_ptr<CheckpointManager> manager,
                 const std::vector<std::int64_t>& steps) const {
    const auto there = [&] {
      std::vector<std::int64_t> found;
      const auto store = Opened();
      const RepositoryView view = RepositoryReader(store.get()).Read().value();
      for (const Checkpoint& checkpoint : view.checkpoints) {
        if (checkpoint.counts) found.push_back(checkpoint.manifest->step);
      }
      EXPECT_TRUE(view.damaged.empty());
      return found;
    };
    EXPECT_EQ(there(), steps);
    for (const std::int64_t step : steps) ExpectNewState(step);
    if (manager != nullptr) {
      EXPECT_TRUE(Save(manager.get(), 900, kNew).ok());
      EXPECT_TRUE(manager->Close().ok());
    }
    ExpectNewState(900);
    const auto again = Open(Keep(9));
    EXPECT_TRUE(Save(again.get(), 950, kNew).ok());
    ExpectNewState(950);
  }
  void ExpectNewState(std::int64_t step) const {
    auto reader = OpenManager({.read_only = true}, Env()).value();
    std::vector<float> values(100);
    std::vector<int> frozen(100);
    auto restored = reader->Restore(
        {.into = {{.name = "w", .dtype = DType::kF32, .shape = {100}, .data = values.data()},
                  {.name = "f", .dtype = DType::kI32, .shape = {100}, .data = frozen.data()}},
         .step = step});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(values, std::vector<float>(100, kNew)) << step;
    EXPECT_EQ(frozen, std::vector<int>(100, 7)) << step;
    EXPECT_EQ((*restored)->state_files["who"], "new") << step;
  }
  static void ExpectToldOfReplacement(const Status& status) {
    EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
    EXPECT_NE(status.ToString().find("was replaced"), std::string::npos) << status.ToString();
  }

  std::string root() const { return directory_ / "run"; }

  static constexpr float kOld = 1;
  static constexpr float kNew = 2;
  TempDirectory directory_;
  ProtocolRules rules_;            // of who opens next
  std::shared_ptr<Store> memory_;  // shared with the environments; null on a disk
};

TEST_P(ReplacedDirectory, TheOldWriterIsFencedAndChangesNothing) {
  auto old = Open(Keep(2));
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  ASSERT_TRUE(Save(old.get(), 200, kOld).ok());
  const std::string id = old->Latest().value()->id;
  auto now = Replace({100, 200});
  const std::vector<std::string> before = Names();
  ExpectToldOfReplacement(Save(old.get(), 300, kOld));
  ExpectToldOfReplacement(Save(old.get(), 400, kOld));
  ExpectToldOfReplacement(old->Delete(id));
  old->Close().IgnoreError("it was told");
  EXPECT_EQ(Names(), before);
  ExpectNew(std::move(now), {100, 200});
}

TEST_P(ReplacedDirectory, WithoutTheLookAtItsOwnFenceAnOldWriterWouldBeHeard) {
  rules_.know_own_fence = false;
  auto old = Open(Keep(2));
  rules_ = {};
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  ASSERT_TRUE(Save(old.get(), 200, kOld).ok());
  auto now = Replace({100, 200});
  EXPECT_TRUE(Save(old.get(), 300, kOld).ok());
  EXPECT_EQ(now->Latest().value()->step, 300) << "in the new run's repository, as its latest";
}

TEST_P(ReplacedDirectory, OneThatTheNewRunHasPassedIsFencedToo) {
  auto old = Open(Keep(2));
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  DeleteEverything();
  auto first = Open(Keep(9));
  auto second = Open(Keep(9));
  EXPECT_EQ(second->generation(), 2u);
  EXPECT_EQ(Save(old.get(), 200, kOld).code(), Code::kAborted);
  ASSERT_TRUE(Save(second.get(), 200, kNew).ok());
  ExpectNew(std::move(second), {200});
}

TEST_P(ReplacedDirectory, WhatIsRemovedIsTheCheckpointThatWasMeant) {
  // The directory is replaced when the removal of step 100 has looked at its fence.
  std::unique_ptr<CheckpointManager> now;
  bool armed = false;
  auto old = Open(Keep(2), [&](std::string_view step) {
    if (armed && step == "remove: manifest") {
      armed = false;
      now = Replace({100, 200});
    }
  });
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  ASSERT_TRUE(Save(old.get(), 200, kOld).ok());
  armed = true;
  ASSERT_TRUE(Save(old.get(), 300, kOld).ok()) << "it was there when it was acknowledged";
  ASSERT_NE(now, nullptr);
  ExpectToldOfReplacement(Save(old.get(), 400, kOld));
  ExpectNew(std::move(now), {100, 200});
}

TEST_P(ReplacedDirectory, WhatIsLeftOfARemovedCheckpointIsNotLookedForInAnother) {
  // Step 100 is gone but for a file that later ones share, where files are shared by reference. The
  // directory is replaced before the last of those goes.
  std::unique_ptr<CheckpointManager> now;
  int removals = 0;
  auto old = Open(Keep(1), [&](std::string_view step) {
    if (step == "remove: files" && ++removals == 2) now = Replace({100, 200, 300});
  });
  for (const std::int64_t step : {100, 200}) ASSERT_TRUE(Save(old.get(), step, kOld).ok());
  // Without anything that is shared.
  const std::vector<float> other(3, kOld);
  auto handle = old->Save(
      {.step = 300,
       .tensors = {{.name = "x", .dtype = DType::kF32, .shape = {3}, .data = other.data()}},
       .blocking = true});
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  old->WaitAll().IgnoreError("what it left is what is judged");
  ASSERT_NE(now, nullptr);
  ExpectNew(std::move(now), {100, 200, 300});
}

TEST_P(ReplacedDirectory, ASaveInFlightTakesNothingBackThatIsNotItsOwn) {
  // Both save step 300 under one name, with files of the same names; the new one is first.
  std::unique_ptr<CheckpointManager> now;
  bool armed = false;
  auto old = Open(Keep(2), [&](std::string_view step) {
    if (armed && step == "save: manifest") {
      armed = false;
      now = Replace({300});
    }
  });
  ASSERT_TRUE(Save(old.get(), 200, kOld).ok());
  armed = true;
  EXPECT_FALSE(Save(old.get(), 300, kOld).ok());
  ASSERT_NE(now, nullptr);
  ExpectNew(std::move(now), {300});
}

TEST_P(ReplacedDirectory, ACommitThatLandsInItIsTakenBack) {
  std::unique_ptr<CheckpointManager> now;
  bool armed = false;
  auto old = Open(Keep(2), [&](std::string_view step) {
    if (armed && step == "save: manifest") {
      armed = false;
      now = Replace({100});
    }
  });
  ASSERT_TRUE(Save(old.get(), 200, kOld).ok());
  armed = true;
  // On a disk its directory is gone, so that it does not land: no other reason is told.
  ExpectToldOfReplacement(Save(old.get(), 300, kOld));
  ASSERT_NE(now, nullptr);
  ExpectNew(std::move(now), {100});
}

TEST_P(ReplacedDirectory, OneThatIsGoneIsNotMadeAgain) {
  auto old = Open(Keep(2));
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  DeleteEverything();
  // Where a disk was mounted.
  if (GetParam() == World::kDisk) std::filesystem::create_directory(root());
  const Status gone = Save(old.get(), 200, kOld);
  EXPECT_EQ(gone.code(), Code::kUnavailable) << gone.ToString();
  EXPECT_NE(gone.ToString().find("its records are gone"), std::string::npos) << gone.ToString();
  old->Close().IgnoreError("it was told");
  EXPECT_EQ(Names(), std::vector<std::string>()) << "nobody would find it there";
}

TEST_P(ReplacedDirectory, OneThatGoesInTheMiddleOfASaveIsNotMadeAgain) {
  bool armed = false;
  auto old = Open(Keep(2), [&](std::string_view step) {
    if (!armed || step != "save: manifest") return;
    DeleteEverything();
    if (GetParam() == World::kDisk) std::filesystem::create_directory(root());
  });
  ASSERT_TRUE(Save(old.get(), 100, kOld).ok());
  armed = true;
  const Status gone = Save(old.get(), 200, kOld);
  EXPECT_EQ(gone.code(), Code::kUnavailable) << gone.ToString();
  old->Close().IgnoreError("it was told");
  // Buckets have no directories whose absence would tell.
  if (GetParam() != World::kDisk) return;
  EXPECT_EQ(Names(), std::vector<std::string>()) << "a manifest without its files";
}

TEST_P(ReplacedDirectory, AFenceThatRottedIsStillOurs) {
  auto manager = Open(Keep(2));
  ASSERT_TRUE(Save(manager.get(), 100, kNew).ok());
  ASSERT_TRUE(Opened()->Put(names::Fence(1), "{}").ok());
  EXPECT_TRUE(Save(manager.get(), 200, kNew).ok());
  EXPECT_TRUE(manager->Close().ok());
}

/// Two ranks each.
class ReplacedRanks : public ReplacedDirectory {
 protected:
  using Ranks = std::vector<std::unique_ptr<CheckpointManager>>;

  Ranks OpenRanks(Clock* clock = Clock::System()) {
    Ranks ranks(2);
    {
      std::vector<std::jthread> openers;
      for (int rank = 0; rank < 2; ++rank) {
        openers.emplace_back([this, rank, clock, &ranks] {
          ManagerOptions options = Keep(9);
          options.rank = rank;
          options.world_size = 2;
          ranks[static_cast<std::size_t>(rank)] = Open(std::move(options), nullptr, clock);
        });
      }
    }
    return ranks;
  }
  static std::vector<Status> SaveAll(const Ranks& ranks, std::int64_t step, float value) {
    std::vector<Status> statuses(ranks.size());
    std::vector<std::jthread> savers;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      savers.emplace_back([&, rank] {
        auto handle = ranks[rank]->Save({.step = step,
                                         .tensors = {{.name = "own",
                                                      .dtype = DType::kF32,
                                                      .shape = {1},
                                                      .data = &value,
                                                      .group = TensorGroup::kState}},
                                         .blocking = true});
        statuses[rank] = handle.status();
      });
    }
    savers.clear();
    return statuses;
  }
};

TEST_P(ReplacedRanks, OldRanksTakeNoPartInWhatTheNewOnesDo) {
  const Ranks old = OpenRanks();
  for (const Status& saved : SaveAll(old, 10, kOld)) ASSERT_TRUE(saved.ok()) << saved.ToString();
  DeleteEverything();
  const Ranks now = OpenRanks();
  // The old ranks are at their second save, and so are the new ones: announced under one name.
  for (const Status& saved : SaveAll(now, 10, kNew)) ASSERT_TRUE(saved.ok()) << saved.ToString();
  for (const Status& saved : SaveAll(now, 20, kNew)) ASSERT_TRUE(saved.ok()) << saved.ToString();
  const std::vector<std::string> before = Names();
  const std::vector<Status> lost = SaveAll(old, 20, kOld);
  ExpectToldOfReplacement(lost[0]);
  ExpectToldOfReplacement(lost[1]);
  EXPECT_EQ(Names(), before);
  for (const Status& saved : SaveAll(now, 30, kNew)) EXPECT_TRUE(saved.ok()) << saved.ToString();
}

TEST_P(ReplacedRanks, NewRanksAreNotAdmittedByTheOldCommitter) {
  // The old committer waits for the part of its rank 1, and looks for ranks that were restarted.
  SettableClock clock;
  const Ranks old = OpenRanks(&clock);
  for (const Status& saved : SaveAll(old, 10, kOld)) ASSERT_TRUE(saved.ok()) << saved.ToString();
  Status lost;
  std::jthread waiting([&] {
    const float value = kOld;
    lost = old[0]
               ->Save({.step = 20,
                       .tensors = {{.name = "own",
                                    .dtype = DType::kF32,
                                    .shape = {1},
                                    .data = &value,
                                    .group = TensorGroup::kState}},
                       .blocking = true})
               .status();
  });
  const auto announced = [&] {
    return Opened()->Stat(names::Part("checkpoint_000020", "rank_0")).ok();
  };
  while (!announced()) std::this_thread::yield();
  DeleteEverything();
  const Ranks now = OpenRanks();
  for (const Status& saved : SaveAll(now, 20, kNew)) EXPECT_TRUE(saved.ok()) << saved.ToString();
  clock.Advance(std::chrono::hours(1));  // its deadline, where it has not seen the new fence
  waiting.join();
  EXPECT_FALSE(lost.ok());
  for (const Status& saved : SaveAll(now, 30, kNew)) EXPECT_TRUE(saved.ok()) << saved.ToString();
  EXPECT_EQ(now[0]->List().value().size(), 2u);
}

std::string NameOfWorld(const testing::TestParamInfo<World>& info) {
  switch (info.param) {
    case World::kDisk:
      return "Disk";
    case World::kLinks:
      return "Links";
    case World::kObjects:
      return "Objects";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Stores, ReplacedDirectory,
                         testing::Values(World::kDisk, World::kLinks, World::kObjects),
                         NameOfWorld);
INSTANTIATE_TEST_SUITE_P(Stores, ReplacedRanks,
                         testing::Values(World::kDisk, World::kLinks, World::kObjects),
                         NameOfWorld);

}  // namespace
}  // namespace cairn

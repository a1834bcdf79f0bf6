// Disks without a byte free: what is there can still be removed.

#include "checkpoint/reserve.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/transfer.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

constexpr std::uint64_t kCapacity = 8u << 20;

class FullDisk : public testing::Test {
 protected:
  FullDisk() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~FullDisk() override { SetLogSink(nullptr); }

  Environment Env(bool frees_room) {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = &disk_;
    Environment env;
    env.store = LocalStore::Open(std::move(options)).value();
    env.frees_room = frees_room;
    return env;
  }
  Result<std::unique_ptr<CheckpointManager>> Open(bool frees_room = false,
                                                  ManagerOptions options = {},
                                                  LayoutLimits limits = {}) {
    return OpenManager(std::move(options), Env(frees_room), limits);
  }
  static Status TrySave(CheckpointManager* manager, std::int64_t step) {
    const std::vector<std::int64_t> values(20'000, step);
    return manager
        ->Save({.step = step,
                .tensors = {{.name = "w",
                             .dtype = DType::kI64,
                             .shape = {values.size()},
                             .data = values.data()}},
                .blocking = true})
        .status();
  }
  static void Save(CheckpointManager* manager, std::int64_t step) {
    const Status saved = TrySave(manager, step);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    ASSERT_TRUE(manager->WaitAll().ok());
  }
  /// A job that has ended left these.
  void Saved(const std::vector<std::int64_t>& steps) {
    auto manager = Open();
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    for (const std::int64_t step : steps) Save(manager->get(), step);
    ASSERT_TRUE((*manager)->Close().ok());
  }
  /// Somebody else takes all that is free, but for `left` bytes.
  void FillUp(std::uint64_t left = 0) {
    const std::uint64_t free = disk_.FreeBytes("/").value() - left;
    const auto file = disk_.Open("/others" + std::to_string(++fillers_),
                                 {.write = true, .create = true, .exclusive = true});
    ASSERT_TRUE(file.ok());
    const std::vector<std::byte> bytes(free);
    ASSERT_TRUE((*file)->WriteAt(0, bytes).ok());
    ASSERT_EQ(disk_.FreeBytes("/").value(), left);
  }
  bool HasReserve() { return disk_.Stat("/run/" + std::string(names::kReserve)).ok(); }
  static std::vector<std::int64_t> Steps(CheckpointManager* manager) {
    std::vector<std::int64_t> steps;
    for (const CheckpointInfo& info : manager->List().value()) steps.push_back(info.step);
    return steps;
  }

  SimFs disk_{SimFs::Options{.capacity = kCapacity}};
  int fillers_ = 0;
};

TEST_F(FullDisk, WhoComesToRemoveFindsRoomForItsRecords) {
  Saved({10, 20});
  FillUp();
  auto manager = Open(/*frees_room=*/true);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  const auto list = (*manager)->List().value();
  ASSERT_EQ(list.size(), 2u);
  const Status deleted = (*manager)->Delete(list[0].id);
  EXPECT_TRUE(deleted.ok()) << deleted.ToString();
  EXPECT_EQ(Steps(manager->get()), (std::vector<std::int64_t>{20}));
  EXPECT_GT(disk_.FreeBytes("/").value(), 100'000u) << "the checkpoint's bytes are still taken";
  std::vector<std::int64_t> values(20'000);
  EXPECT_TRUE((*manager)
                  ->Restore({.into = {{.name = "w",
                                       .dtype = DType::kI64,
                                       .shape = {values.size()},
                                       .data = values.data()}}})
                  .ok());
  EXPECT_EQ(values.back(), 20);
}

TEST_F(FullDisk, WhoComesToSaveDoesNotTakeTheRoomOfARemoval) {
  Saved({10});
  FillUp();
  EXPECT_EQ(Open().status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(HasReserve());
  EXPECT_TRUE(Open(/*frees_room=*/true).ok());
}

TEST_F(FullDisk, AnOpeningThatEndedBetweenFenceAndSealIsClosedToo) {
  Saved({10, 20});
  ASSERT_TRUE(Env(false).store->Create(names::Fence(2), Encode(FenceRecord{.generation = 2})).ok());
  FillUp();
  auto manager = Open(/*frees_room=*/true);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  EXPECT_TRUE((*manager)->Delete((*manager)->List().value()[0].id).ok());
}

TEST_F(FullDisk, AnOwnerRemovesWhatItHasTooMuchOf) {
  auto manager = Open().value();
  Save(manager.get(), 10);
  Save(manager.get(), 20);
  FillUp();
  const Status deleted = manager->Delete(manager->List().value()[0].id);
  EXPECT_TRUE(deleted.ok()) << deleted.ToString();
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{20}));
}

TEST_F(FullDisk, GarbageIsCollected) {
  Saved({10});
  {
    // What an attempt of an older generation left.
    auto env = Env(false);
    ASSERT_TRUE(env.store
                    ->Put("checkpoint_000020/" + std::string(names::kMarker),
                          Encode(MarkerRecord{.generation = 1, .attempt = "a", .copies = ""}))
                    .ok());
    ASSERT_TRUE(env.store->Put("checkpoint_000020/__model__/x", std::string(50'000, 'x')).ok());
  }
  FillUp();
  const auto report = CollectGarbageIn(Env(false));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(report->bytes, 50'000u);
}

TEST_F(FullDisk, WithoutAReserveTheErrorSaysWhatToDo) {
  Saved({10});
  ASSERT_TRUE(disk_.Unlink("/run/" + std::string(names::kReserve)).ok());
  FillUp();
  const Status refused = Open(/*frees_room=*/true).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("free 64 KiB"), std::string::npos) << refused.ToString();
}

TEST_F(FullDisk, ATrainingThatCannotBeginIsToldWhatToDo) {
  Saved({10});
  FillUp();
  const Status refused = Open(/*frees_room=*/false).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("`cairn checkpoint rm`"), std::string::npos)
      << refused.ToString();
}

TEST_F(FullDisk, AReserveThatIsNotEnoughSaysWhatToDoToo) {
  Saved({10});
  // Of what a crash left, or of a disk whose files are counted, nothing is gained.
  const std::string reserve = "/run/" + std::string(names::kReserve);
  ASSERT_TRUE(disk_.Unlink(reserve).ok());
  ASSERT_TRUE(disk_.Open(reserve, {.write = true, .create = true, .exclusive = true}).ok());
  FillUp();
  const Status refused = Open(/*frees_room=*/true).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("free 64 KiB"), std::string::npos) << refused.ToString();
  EXPECT_FALSE(HasReserve());
}

TEST_F(FullDisk, RecycledFilesAreGivenUpFirst) {
  Saved({10, 20});
  ASSERT_TRUE(disk_.Unlink("/run/" + std::string(names::kReserve)).ok());
  ASSERT_TRUE(
      Env(false)
          .store->Put("pool/1/0198c0de-0000-4000-8000-000000000001", std::string(50'000, 'x'))
          .ok());
  FillUp();
  auto manager = Open(/*frees_room=*/true);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  EXPECT_TRUE((*manager)->Delete((*manager)->List().value()[0].id).ok());
}

TEST_F(FullDisk, RecycledFilesThatWereGivenUpAreNotCountedOnByTheNextSave) {
  LayoutLimits limits;
  limits.recycle_from_bytes = 4096;
  auto manager = Open(false, {.retention = {.keep_last = 2}}, limits).value();
  for (const std::int64_t step : {10, 20, 30}) Save(manager.get(), step);
  const auto pooled = Env(false).store->List("pool/1").value().objects;
  ASSERT_EQ(pooled.size(), 1u);
  FillUp();
  const Status deleted = manager->Delete(manager->List().value()[0].id);
  ASSERT_TRUE(deleted.ok()) << deleted.ToString();
  ASSERT_TRUE(Env(false).store->List("pool/1").value().objects.empty());
  FillUp(/*left=*/20'000);
  const Status refused = TrySave(manager.get(), 40);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.message().starts_with("no space: the checkpoint needs"))
      << "found out only while it was written: " << refused.ToString();
}

TEST_F(FullDisk, TheReserveIsMadeAgainOnceThereIsRoom) {
  Saved({10});
  ASSERT_TRUE(HasReserve());
  FillUp();
  ASSERT_TRUE(Open(/*frees_room=*/true).ok());
  EXPECT_FALSE(HasReserve()) << "it was needed, and its room is not there yet";
  ASSERT_TRUE(disk_.Unlink("/others1").ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(HasReserve());
}

TEST_F(FullDisk, AReserveThatACrashMadeShorterIsMadeAgain) {
  Saved({10});
  const std::string path = "/run/" + std::string(names::kReserve);
  ASSERT_TRUE((*disk_.Open(path, {.write = true}))->Truncate(0).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(disk_.Stat(path)->bytes, kReserveBytes);
}

}  // namespace
}  // namespace cairn

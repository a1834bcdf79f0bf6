#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "checkpoint/test_transfer.h"
#include "checkpoint/transfer.h"
#include "storage/local/local_store.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Copies of one checkpoint of many files whose target ends at any instant.
class CutCopyTest : public testing::Test {
 protected:
  static constexpr int kTensors = 6;

  CutCopyTest() : source_(MemoryStore::Open({}).value()) {
    SetLogSink([](LogLevel, std::string_view) {});
    LayoutLimits limits;
    limits.own_file_bytes = 4096;
    auto manager = OpenManager({}, Env(source_), limits).value();
    std::vector<std::vector<float>> numbers;
    SaveRequest request{.step = 10, .blocking = true};
    for (int i = 0; i < kTensors; ++i) numbers.push_back(Numbers(3000, i));
    for (int i = 0; i < kTensors; ++i) {
      request.tensors.push_back(View("w" + std::to_string(i), numbers[static_cast<size_t>(i)]));
    }
    EXPECT_TRUE(manager->Save(std::move(request)).ok());
    EXPECT_TRUE(manager->Close().ok());
    view_ = RepositoryReader(source_.get()).Read().value();
  }
  ~CutCopyTest() override { SetLogSink(nullptr); }

  static Environment Env(std::shared_ptr<Store> store) {
    Environment env;
    env.store = std::move(store);
    return env;
  }
  Result<CopyReport> Copy(std::shared_ptr<Store> target) {
    const auto chosen = ChooseForCopy(view_, "source", {});
    if (!chosen.ok()) return chosen.status();
    // Nobody knows of the one that was cut short that it does not live.
    return CopyInto(Env(source_), view_, *chosen, Env(std::move(target)), {.takeover = true}, {});
  }
  std::uint64_t Bytes() const { return view_.checkpoints[0].manifest->Bytes(); }

  /// What a target may have after a crash, and after the copy was started again; the bytes that
  /// did not have to be written.
  std::uint64_t GoOn(std::shared_ptr<Store> target, const std::string& what) {
    const auto before = RepositoryReader(target.get()).Read();
    if (before.ok()) {
      for (const Checkpoint& checkpoint : before->checkpoints) {
        if (checkpoint.counts) ExpectWhole(target.get(), checkpoint, what + ", at once");
      }
    }
    auto report = Copy(target);
    EXPECT_TRUE(report.ok()) << what << ": " << report.status().ToString();
    if (!report.ok()) return 0;
    const RepositoryView after = RepositoryReader(target.get()).Read().value();
    for (const std::string& directory : after.unfinished) {
      // A claim that ended between the directory and its marker: it could be somebody's, and stays.
      const Listing inside = target->List(directory).value();
      EXPECT_THAT(inside.objects, IsEmpty()) << what << ": " << directory;
      EXPECT_THAT(inside.prefixes, IsEmpty()) << what << ": " << directory;
    }
    EXPECT_EQ(after.checkpoints.size(), 1u) << what;
    for (const Checkpoint& checkpoint : after.checkpoints) {
      EXPECT_TRUE(checkpoint.counts) << what;
      ExpectWhole(target.get(), checkpoint, what);
    }
    if (report->copied.empty()) return 0;
    EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes()) << what;
    return report->bytes_resumed;
  }
  static void ExpectWhole(Store* store, const Checkpoint& checkpoint, const std::string& what) {
    auto open = OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest);
    ASSERT_TRUE(open.ok()) << what << ": " << open.status().ToString();
    std::vector<VerifyProblem> problems;
    ASSERT_TRUE(VerifyFiles(store, **open, {}, &problems).ok()) << what;
    EXPECT_THAT(problems, IsEmpty()) << what;
  }

  std::shared_ptr<MemoryStore> source_;
  RepositoryView view_;
};

TEST_F(CutCopyTest, OnAnObjectStoreOrAMemoryDiskItGoesOnWithTheFilesThatArrived) {
  for (const bool object_store : {true, false}) {
    std::shared_ptr<MemoryStore> target =
        MemoryStore::Open({.object_store = object_store, .part_bytes = 4096}).value();
    std::vector<std::pair<std::string, std::shared_ptr<const MemoryImage>>> cuts;
    target->SetHook([&](const StoreOp& op) {
      if (IsMutation(op.kind)) cuts.emplace_back(DescribeStoreOp(op), target->Snapshot());
    });
    ASSERT_TRUE(Copy(target).ok());
    target->SetHook(nullptr);
    std::uint64_t most = 0;
    for (const auto& [operation, image] : cuts) {
      most = std::max(most, GoOn(MemoryStore::FromSnapshot(*image), "before " + operation));
    }
    EXPECT_EQ(most, Bytes()) << "of all files in place only the manifest is missing";
  }
}

TEST_F(CutCopyTest, ACopyThatIsCutShortAgainAndAgainGetsToItsEnd) {
  std::shared_ptr<MemoryStore> target = MemoryStore::Open({}).value();
  // Each run ends when two more files have appeared.
  for (int run = 0; run < kTensors; ++run) {
    std::shared_ptr<const MemoryImage> image;
    int appeared = 0;
    target->SetHook([&](const StoreOp& op) {
      if (op.kind == StoreOp::Kind::kPublish && ++appeared == 3) image = target->Snapshot();
    });
    const auto report = Copy(target);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    target->SetHook(nullptr);
    if (image == nullptr) {
      EXPECT_GT(run, 1);
      EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes());
      EXPECT_LT(report->bytes, Bytes() / 2);
      return;
    }
    target = MemoryStore::FromSnapshot(*image);
  }
  FAIL() << "it never came to its end";
}

TEST_F(CutCopyTest, WhatALivingCopierDeletesByNameIsNotMissed) {
  std::shared_ptr<MemoryStore> target = MemoryStore::Open({.object_store = true}).value();
  std::shared_ptr<const MemoryImage> image;
  target->SetHook([&](const StoreOp& op) {
    if (op.kind == StoreOp::Kind::kCreate && op.name.ends_with("manifest.json")) {
      image = target->Snapshot();
    }
  });
  ASSERT_TRUE(Copy(target).ok());
  ASSERT_NE(image, nullptr);
  std::shared_ptr<MemoryStore> again = MemoryStore::FromSnapshot(*image);
  // The first copier wakes up after the second has taken its files over, and cleans up.
  again->SetHook([&](const StoreOp& op) {
    if (op.kind != StoreOp::Kind::kCreate || !op.name.ends_with("manifest.json")) return;
    for (const ManifestFile& file : view_.checkpoints[0].manifest->files) {
      again->OpenAgain()
          ->Delete(names::Path(view_.checkpoints[0].directory, file.path))
          .IgnoreError("it was taken over");
    }
  });
  const auto report = Copy(again);
  again->SetHook(nullptr);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->bytes_resumed, Bytes());
  GoOn(again, "after the first copier's end");
}

TEST_F(CutCopyTest, OnADiskNoPowerLossMakesAHalfCopyCount) {
  SimFs disk;
  SeededIds ids(1);
  const auto store = [&ids](SimFs* fs) -> std::shared_ptr<Store> {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = fs;
    options.ids = &ids;
    options.part_bytes = 8192;
    options.direct_from_bytes = 8192;
    return LocalStore::Open(std::move(options)).value();
  };
  std::vector<std::pair<std::string, std::shared_ptr<const SimImage>>> cuts;
  const auto target = store(&disk);
  disk.SetHook([&](const SimOp& op) { cuts.emplace_back(DescribeSimOp(op), disk.Snapshot()); });
  ASSERT_TRUE(Copy(target).ok());
  disk.SetHook(nullptr);
  std::uint64_t most = 0;
  for (const auto& [operation, image] : cuts) {
    const auto killed = SimFs::FromKill(*image);
    most = std::max(most, GoOn(store(killed.get()), "killed before " + operation));
    for (const CrashMode mode : {CrashMode::kForget, CrashMode::kTorn}) {
      const auto after = SimFs::FromCrash(*image, mode, 7);
      GoOn(store(after.get()), "power loss before " + operation);
      // What was taken over and acknowledged is durable.
      const auto then = SimFs::FromCrash(*after->Snapshot(), CrashMode::kForget, 1);
      const RepositoryView view = RepositoryReader(store(then.get()).get()).Read().value();
      ASSERT_EQ(view.checkpoints.size(), 1u) << operation;
      ExpectWhole(store(then.get()).get(), view.checkpoints[0], "twice, before " + operation);
    }
    if (HasFailure()) return;
  }
  EXPECT_EQ(most, Bytes());
}

/// A checkpoint with one file of three chunks, copied to a disk that ends at any instant.
TEST_F(CutCopyTest, OnADiskItGoesOnInsideAFile) {
  constexpr std::size_t kNumbers = (2 * kChunkBytes + 5000) / sizeof(float);
  {
    auto manager = OpenManager({}, Env(source_)).value();
    const std::vector<float> numbers = Numbers(kNumbers, 3);
    SaveRequest request{.step = 20, .tensors = {View("large", numbers)}, .blocking = true};
    ASSERT_TRUE(manager->Save(std::move(request)).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  view_ = RepositoryReader(source_.get()).Read().value();
  view_.checkpoints.erase(view_.checkpoints.begin());
  SeededIds ids(1);
  const auto store = [&ids](SimFs* fs, bool direct) -> std::shared_ptr<Store> {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = fs;
    options.ids = &ids;
    options.part_bytes = kChunkBytes;
    options.write_mode = direct ? WriteMode::kDirect : WriteMode::kBuffered;
    return LocalStore::Open(std::move(options)).value();
  };
  for (const bool direct : {true, false}) {
    SimFs disk;
    std::vector<std::pair<std::string, std::shared_ptr<const SimImage>>> cuts;
    const auto target = store(&disk, direct);
    disk.SetHook([&](const SimOp& op) { cuts.emplace_back(DescribeSimOp(op), disk.Snapshot()); });
    ASSERT_TRUE(Copy(target).ok());
    disk.SetHook(nullptr);
    std::set<std::uint64_t> resumed;
    for (const auto& [operation, image] : cuts) {
      const auto killed = SimFs::FromKill(*image);
      resumed.insert(GoOn(store(killed.get(), direct), "killed before " + operation) / kChunkBytes);
      const auto after = SimFs::FromCrash(*image, CrashMode::kTorn, 7);
      GoOn(store(after.get(), direct), "power loss before " + operation);
      const auto then = SimFs::FromCrash(*after->Snapshot(), CrashMode::kForget, 1);
      const RepositoryView view = RepositoryReader(store(then.get(), direct).get()).Read().value();
      ASSERT_EQ(view.checkpoints.size(), 1u) << operation;
      ExpectWhole(store(then.get(), direct).get(), view.checkpoints[0], "twice, " + operation);
      if (HasFailure()) return;
    }
    EXPECT_THAT(resumed, ElementsAre(0, 1, 2)) << "of two chunks none, one, or both";
  }
}

}  // namespace
}  // namespace cairn

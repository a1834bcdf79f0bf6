// What others put into a repository under names like ours: ignored, never deleted, never fatal. And
// what is ours and damaged is not taken for theirs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/test_job_store.h"
#include "checkpoint/transfer.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr std::string_view kApp = R"({"name": "app", "icons": [], "files": {}, "step": 3})";

Status Save(CheckpointManager* manager, std::int64_t step) {
  const std::vector<std::int64_t> values(100, step);
  return manager
      ->Save(
          {.step = step,
           .tensors = {{.name = "w", .dtype = DType::kI64, .shape = {100}, .data = values.data()}},
           .blocking = true})
      .status();
}

/// Restores the latest: its step, 0 for nothing.
Result<std::int64_t> RestoredStep(CheckpointManager* manager) {
  const auto restored = manager->Restore({.allocate = true});
  if (!restored.ok()) return restored.status();
  return *restored ? (*restored)->step : 0;
}

class ForeignManifests : public OnBothStores {
 protected:
  ForeignManifests() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~ForeignManifests() override { SetLogSink(nullptr); }

  void Plant(const std::string& name, std::string_view bytes) const {
    ASSERT_TRUE(store_->Put(name, std::string(bytes)).ok());
  }
  std::string Bytes(const std::string& name) const {
    const auto bytes = store_->Get(name, kMaxManifestBytes);
    return bytes.ok() ? *bytes : bytes.status().ToString();
  }
  RepositoryView View() const { return RepositoryReader(store_.get()).Read().value(); }
};

TEST_P(ForeignManifests, AreNoCheckpointsAndNoDamage) {
  const std::vector<std::string> names = {"checkpoint_app/manifest.json",
                                          "checkpoint_000001/manifest.json",
                                          "increment_000002/manifest.json"};
  Plant(names[0], kApp);
  Plant(names[1], "version: 3\n");
  Plant(names[2], "");
  Plant("checkpoint_app/icons/1.png", "a picture");
  auto manager = Open();
  const auto reader = Open({.read_only = true});
  EXPECT_EQ(RestoredStep(manager.get()).value(), 0);
  EXPECT_EQ(RestoredStep(reader.get()).value(), 0);
  EXPECT_THAT(View().damaged, IsEmpty());
  for (std::int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(Save(manager.get(), step).ok());
  ASSERT_TRUE(manager->Close().ok());
  EXPECT_THAT(Steps(reader.get()), ElementsAre(3, 4, 5));
  manager = Open();
  EXPECT_EQ(RestoredStep(manager.get()).value(), 5);
  EXPECT_EQ(Bytes(names[0]), kApp);
  EXPECT_EQ(Bytes(names[1]), "version: 3\n");
  EXPECT_EQ(Bytes(names[2]), "");
}

TEST_P(ForeignManifests, AreIgnoredByRanksThatRestoreTogether) {
  Plant("checkpoint_app/manifest.json", kApp);
  std::vector<std::unique_ptr<CheckpointManager>> ranks(2);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] { ranks[rank] = Open({.rank = rank, .world_size = 2}); });
    }
  }
  for (const auto& rank : ranks) EXPECT_EQ(RestoredStep(rank.get()).value(), 0);
}

/// Ours, with a manifest that can no longer be read.
class DamagedManifests : public ForeignManifests {
 protected:
  DamagedManifests() {
    auto manager = Open();
    EXPECT_TRUE(Save(manager.get(), 7).ok());
    EXPECT_TRUE(manager->Close().ok());
    manifest_ = Bytes(kManifest);
  }
  void Replace(std::string_view bytes) const {
    ASSERT_TRUE(store_->Delete(kManifest).ok());
    Plant(kManifest, bytes);
  }
  /// Nobody begins anew, whoever asks.
  void IsDamage(const std::string& what) const {
    for (const bool read_only : {true, false}) {
      const auto manager = Open({.read_only = read_only});
      const auto step = RestoredStep(manager.get());
      EXPECT_EQ(step.status().code(), Code::kCorruption)
          << what << ": " << step.status().ToString();
      EXPECT_THAT(std::string(step.status().message()), HasSubstr("checkpoint_000007")) << what;
    }
  }

  const std::string kManifest = "checkpoint_000007/manifest.json";
  std::string manifest_;
};

TEST_P(DamagedManifests, AreNotTakenForAnothers) {
  std::string flipped = manifest_;
  flipped[5] ^= 1;
  std::string zeros(manifest_.size(), '\0');
  for (const std::string& bytes :
       {flipped, zeros, std::string(), manifest_.substr(0, 3), manifest_.substr(100),
        manifest_.substr(0, manifest_.size() / 2), std::string(kApp)}) {
    Replace(bytes);
    IsDamage(std::to_string(bytes.size()) + " bytes");
  }
}

TEST_P(DamagedManifests, AreKnownByTheirBytesOrByWhatLiesBesideThem) {
  ASSERT_TRUE(store_->Delete("checkpoint_000007/.cairn-attempt").ok());
  Replace("");
  IsDamage("without the marker");
  for (const std::string directory : {"checkpoint_000007/__model__", "checkpoint_000007/rank_0"}) {
    const Listing listing = store_->List(directory).value();
    for (const ObjectInfo& object : listing.objects) {
      ASSERT_TRUE(store_->Delete(object.name).ok());
    }
  }
  Replace(manifest_.substr(0, 40));
  IsDamage("alone");
}

TEST_P(DamagedManifests, StayDamageWhenAllRecordsOfGenerationsAreLost) {
  Replace(manifest_.substr(0, manifest_.size() - 1));
  const Listing listing = store_->List("generations").value();
  for (const ObjectInfo& object : listing.objects) ASSERT_TRUE(store_->Delete(object.name).ok());
  for (const bool record : {true, false}) {
    if (!record) {
      ASSERT_TRUE(store_->Delete("cairn.json").ok());
    }
    const auto manager = Open();
    EXPECT_EQ(RestoredStep(manager.get()).status().code(), Code::kCorruption);
  }
}

/// Checkpoints without any record of their repository: lost, or only the directories were copied.
TEST_P(ForeignManifests, OfAJobWithoutRecordsAreNamedBeforeANewOneBegins) {
  std::vector<std::string> log;
  SetLogSink([&](LogLevel, std::string_view line) { log.emplace_back(line); });
  {
    auto manager = Open({.job = "night"});
    ASSERT_TRUE(Save(manager.get(), 3).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  const auto lose_records = [&] {
    for (const ObjectInfo& object : store_->List("generations").value().objects) {
      ASSERT_TRUE(store_->Delete(object.name).ok());
    }
    ASSERT_TRUE(store_->Delete("cairn.json").ok());
  };
  lose_records();
  log.clear();
  EXPECT_EQ(RestoredStep(Open().get()).value(), 0);
  EXPECT_THAT(log, testing::Contains(testing::AllOf(HasSubstr("checkpoint_000003 (step 3)"),
                                                    HasSubstr("\"night\""),
                                                    HasSubstr("delete cairn.json"))));
  lose_records();
  EXPECT_EQ(RestoredStep(Open({.job = "night"}).get()).value(), 3);
}

std::string NameOfStore(const testing::TestParamInfo<bool>& which) {
  return which.param ? "Objects" : "Links";
}
INSTANTIATE_TEST_SUITE_P(Stores, ForeignManifests, testing::Values(false, true), NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, DamagedManifests, testing::Values(false, true), NameOfStore);

/// On a disk, where directories are things of their own.
class ForeignDirectories : public testing::Test {
 protected:
  ForeignDirectories() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~ForeignDirectories() override { SetLogSink(nullptr); }

  std::unique_ptr<CheckpointManager> Open(int keep_last = 2) const {
    auto manager =
        CheckpointManager::Open({.directory = run_, .retention = {.keep_last = keep_last}});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return *std::move(manager);
  }
  std::string Make(const std::string& name) const {
    fs::create_directories(run_ + "/" + name);
    return run_ + "/" + name;
  }
  bool IsThere(const std::string& name) const { return fs::exists(run_ + "/" + name); }

  TempDirectory directory_;
  const std::string run_ = directory_ / "run";
};

TEST_F(ForeignDirectories, AreNotSweptWhenTheyAreEmpty) {
  Make("checkpoint_000002");
  Make("checkpoint_000003/a/b");
  Make("increment_000004");
  Make("checkpoint_7");
  Make("checkpoint_mine");
  for (int opening = 0; opening < 3; ++opening) {
    auto manager = Open();
    if (opening == 1) {
      for (std::int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(Save(manager.get(), step).ok());
    }
    ASSERT_TRUE(manager->Close().ok());
  }
  ASSERT_TRUE(CollectGarbage(run_, /*takeover=*/false).ok());
  for (const std::string name : {"checkpoint_000002", "checkpoint_000003/a/b", "increment_000004",
                                 "checkpoint_7", "checkpoint_mine"}) {
    EXPECT_TRUE(IsThere(name)) << name;
  }
  EXPECT_TRUE(fs::is_empty(run_ + "/checkpoint_000002"));
  EXPECT_TRUE(IsThere("checkpoint_000002-2/manifest.json"));
  EXPECT_TRUE(IsThere("checkpoint_000003-2/manifest.json"));
}

TEST_F(ForeignDirectories, WithAManifestThatIsNoFileAreIgnored) {
  ASSERT_EQ(mkfifo((Make("checkpoint_mine") + "/manifest.json").c_str(), 0666), 0);
  ASSERT_EQ(mkfifo((Make("checkpoint_000009") + "/manifest.json").c_str(), 0666), 0);
  fs::create_symlink("manifest.json", Make("checkpoint_8") + "/manifest.json");
  fs::create_symlink("notes", Make("checkpoint_7") + "/notes");
  for (const std::int64_t step : {1, 2}) {
    auto manager = Open();
    EXPECT_EQ(RestoredStep(manager.get()).value(), step - 1);
    ASSERT_TRUE(Save(manager.get(), step).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  EXPECT_THAT(Verify(run_, true).value().problems, IsEmpty());
}

TEST_F(ForeignDirectories, StayInARemovedCheckpointAlsoEmpty) {
  auto manager = Open(1);
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  Make("checkpoint_000001/mine/empty");
  ASSERT_TRUE(Save(manager.get(), 2).ok());
  ASSERT_TRUE(manager->WaitAll().ok());
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(run_ + "/checkpoint_000001")) {
    left.push_back(fs::relative(entry.path(), run_ + "/checkpoint_000001").string());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("mine", "mine/empty"));
}

TEST_F(ForeignDirectories, FilesAmongRecordsAreNeitherRecordsNorDeleted) {
  auto manager = Open(1);
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  const std::vector<std::string> theirs = {
      "checkpoint_000001/notes/.DS_Store",    "checkpoint_000001/notes/000001.json~",
      "checkpoint_000001/notes/to do.txt",    "checkpoint_000001/parts/x.txt",
      "generations/mine/attempts/1.json",     "generations/000001/attempts/x.txt",
      "generations/18446744073709551615.json"};
  for (const std::string& name : theirs) {
    Make(fs::path(name).parent_path().string());
    std::ofstream(run_ + "/" + name) << "theirs";
  }
  EXPECT_FALSE(manager->Latest().value()->pinned);
  EXPECT_THAT(Verify(run_, true).value().problems, IsEmpty());
  ASSERT_TRUE(Save(manager.get(), 2).ok());
  ASSERT_TRUE(manager->Close().ok());
  manager = Open(1);
  EXPECT_EQ(RestoredStep(manager.get()).value(), 2);
  const auto left = manager->List();
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left->size(), 1u) << "it was not pinned";
  for (const std::string& name : theirs) EXPECT_TRUE(IsThere(name)) << name;
}

TEST_F(ForeignDirectories, UnderTheNameOfARecordAreNamed) {
  Make("cairn.json");
  const auto refused = CheckpointManager::Open({.directory = run_});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("cairn.json is no file"));
}

TEST_F(ForeignDirectories, CalledPoolStay) {
  std::ofstream(Make("pool/12") + "/cat.jpg") << "theirs";
  Make("pool/photos");
  for (int opening = 0; opening < 2; ++opening) {
    auto manager = Open();
    ASSERT_TRUE(manager->Close().ok());
  }
  EXPECT_TRUE(IsThere("pool/12/cat.jpg"));
  EXPECT_TRUE(IsThere("pool/photos"));
}

TEST_F(ForeignDirectories, MadeDuringTheRunUnderTheNextNameAreLeftAlone) {
  auto manager = Open();
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  std::ofstream(Make("checkpoint_000002") + "/manifest.json") << kApp;
  std::ofstream(Make("checkpoint_000002/__model__") + "/rank_0-00001.safetensors") << "theirs";
  fs::create_directories(Make("checkpoint_000003") + "/empty");
  ASSERT_TRUE(Save(manager.get(), 2).ok());
  ASSERT_TRUE(Save(manager.get(), 3).ok());
  EXPECT_TRUE(IsThere("checkpoint_000002-2/manifest.json"));
  EXPECT_TRUE(IsThere("checkpoint_000003-2/manifest.json"));
  EXPECT_EQ(fs::file_size(run_ + "/checkpoint_000002/__model__/rank_0-00001.safetensors"), 6u);
  EXPECT_FALSE(IsThere("checkpoint_000002/.cairn-attempt"));
  EXPECT_FALSE(IsThere("checkpoint_000003/.cairn-attempt"));
  EXPECT_TRUE(IsThere("checkpoint_000003/empty"));
}

}  // namespace
}  // namespace cairn

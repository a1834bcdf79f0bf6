#include "checkpoint/shelves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "format/manifest.h"
#include "format/records.h"
#include "storage/forwarding_store.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

/// Counts what is fetched, and lets something happen before a fetch or fail it.
class WatchedStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    ++gets_;
    if (before_get) {
      Status status = before_get(name);
      if (!status.ok()) return status;
    }
    return inner()->Get(name, limit);
  }
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override {
    auto all = ForwardingStore::ListBelow(prefix, limit);
    if (all.ok() && change_listing) change_listing(&*all);
    return all;
  }
  int TakeGets() { return gets_.exchange(0); }

  std::function<Status(const std::string&)> before_get;
  std::function<void(std::vector<TaggedObject>*)> change_listing;

 private:
  std::atomic<int> gets_{0};
};

std::string DirectoryOf(int step) { return names::CheckpointDirectory(false, false, step, 1); }

class ShelvesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RepositoryRecord record;
    record.job = "job";
    ASSERT_TRUE(watched_->Put(std::string(names::kRepository), Encode(record)).ok());
    ASSERT_TRUE(
        watched_->Put(names::Seal(1), Encode(SealRecord{.generation = 1, .uuid = "seal"})).ok());
  }
  void PutCheckpoint(int step, const std::string& id) {
    Manifest manifest;
    manifest.id = id;
    manifest.job = "job";
    manifest.attempt = "attempt";
    manifest.generation = 1;
    manifest.sequence = static_cast<std::uint64_t>(step) + 1;
    manifest.step = step;
    ASSERT_TRUE(
        watched_->Put(names::Path(DirectoryOf(step), names::kManifest), EncodeManifest(manifest))
            .ok());
  }
  void Fill(int count) {
    for (int i = 0; i < count; ++i) PutCheckpoint(i, "id-" + std::to_string(i));
  }
  void Drop(int step) {
    ASSERT_TRUE(watched_->Delete(names::Path(DirectoryOf(step), names::kManifest)).ok());
  }
  Status Tidy() { return TidyShelves(watched_.get(), IdSource::System()); }
  std::vector<ObjectInfo> Shelves() {
    return watched_->List(std::string(names::kShelves)).value().objects;
  }
  /// The view, and in `gets` how many objects were fetched for it.
  RepositoryView Read(int* gets) {
    watched_->TakeGets();
    RepositoryView view = RepositoryReader(watched_.get()).Read().value();
    *gets = watched_->TakeGets();
    return view;
  }

  void PutNote(int step, NoteKind kind, const std::string& id) {
    NoteRecord note;
    note.kind = kind;
    note.number = 1;
    note.uuid = "note";
    note.checkpoint = id;
    note.generation = 1;
    ASSERT_TRUE(watched_->Put(names::Note(DirectoryOf(step), 1), Encode(note)).ok());
  }
  /// What a removal does after its note, to its end.
  void FinishRemoval(int step) {
    ASSERT_TRUE(memory_->Delete(names::Path(DirectoryOf(step), names::kManifest)).ok());
    memory_->Delete(names::Note(DirectoryOf(step), 1)).IgnoreError("it may have none");
  }

  static MemoryStoreOptions Options() {
    MemoryStoreOptions options;
    options.listing = DeepListingCosts();  // as a bucket has it
    return options;
  }

  std::unique_ptr<MemoryStore> memory_ = MemoryStore::Open(Options()).value();
  std::unique_ptr<WatchedStore> watched_ = std::make_unique<WatchedStore>(memory_.get());
};

/// With thresholds that few checkpoints reach.
class FewShelvesTest : public ShelvesTest {
 protected:
  void SetUp() override {
    MemoryStoreOptions options;
    options.listing = {.many_directories = 1, .many_objects = 2};
    options.page_objects = 1;
    memory_ = MemoryStore::Open(options).value();
    watched_ = std::make_unique<WatchedStore>(memory_.get());
    ShelvesTest::SetUp();
  }
};

TEST_F(ShelvesTest, AListingFetchesShelvesInsteadOfManifests) {
  Fill(1500);
  int gets = 0;
  EXPECT_EQ(Read(&gets).checkpoints.size(), 1500u);
  EXPECT_GE(gets, 1500);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 2u);
  const RepositoryView view = Read(&gets);
  EXPECT_LT(gets, 10);
  ASSERT_EQ(view.checkpoints.size(), 1500u);
  for (int i = 0; i < 1500; ++i) {
    EXPECT_EQ(view.checkpoints[i].manifest->id, "id-" + std::to_string(i));
    EXPECT_TRUE(view.checkpoints[i].counts);
  }
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 2u) << "nothing new to put on a shelf";
}

TEST_F(ShelvesTest, ACopyCountsOnlyWhileItIsWhatLiesThere) {
  Fill(300);
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  PutCheckpoint(7, "another");
  Drop(8);
  PutCheckpoint(300, "newer");
  int gets = 0;
  const RepositoryView view = Read(&gets);
  EXPECT_LT(gets, 20);
  ASSERT_EQ(view.checkpoints.size(), 300u);
  EXPECT_EQ(view.checkpoints[7].manifest->id, "another");
  EXPECT_EQ(view.Find("id-8"), nullptr);
  EXPECT_EQ(view.Latest()->manifest->id, "newer");
}

TEST_F(ShelvesTest, ADamagedOrMissingShelfCostsOnlyTime) {
  Fill(300);
  ASSERT_TRUE(Tidy().ok());
  const std::string shelf = Shelves().at(0).name;
  std::string bytes = watched_->Get(shelf, 1u << 30).value();
  for (const std::size_t at : {std::size_t{3}, bytes.size() / 2, bytes.size() - 20}) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    ASSERT_TRUE(watched_->Put(shelf, damaged).ok());
    int gets = 0;
    EXPECT_EQ(Read(&gets).checkpoints.size(), 300u) << at;
    EXPECT_GE(gets, 300);
  }
  // The next opening for writing mends it.
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  EXPECT_NE(Shelves().at(0).name, shelf);
  ASSERT_TRUE(watched_->Delete(Shelves().at(0).name).ok());
  int gets = 0;
  EXPECT_EQ(Read(&gets).checkpoints.size(), 300u);
}

TEST_F(ShelvesTest, ShelvesOfWhichNothingIsLeftAreDeleted) {
  Fill(600);
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  for (int i = 600; i < 900; ++i) PutCheckpoint(i, "id-" + std::to_string(i));
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 2u);
  for (int i = 0; i < 400; ++i) Drop(i);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 2u) << "a third is left on it";
  for (int i = 400; i < 600; ++i) Drop(i);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 1u);
}

TEST_F(ShelvesTest, AShelfOfWhichLittleIsLeftGivesWayToANewOne) {
  Fill(600);
  ASSERT_TRUE(Tidy().ok());
  const std::string shelf = Shelves().at(0).name;
  for (int i = 0; i < 500; ++i) Drop(i);
  for (int i = 600; i < 800; ++i) PutCheckpoint(i, "id-" + std::to_string(i));
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  EXPECT_NE(Shelves().at(0).name, shelf);
  int gets = 0;
  EXPECT_EQ(Read(&gets).checkpoints.size(), 300u);
  EXPECT_LT(gets, 10);
}

TEST_F(ShelvesTest, ShelvesOfBetterTimesAreDeleted) {
  Fill(300);
  ASSERT_TRUE(Tidy().ok());
  for (int i = 0; i < 298; ++i) Drop(i);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_TRUE(Shelves().empty());
}

TEST_F(ShelvesTest, AShelfThatCannotBeReachedNowStays) {
  Fill(300);
  ASSERT_TRUE(Tidy().ok());
  watched_->before_get = [](const std::string& name) {
    return name.starts_with(names::kShelves) ? UnavailableError("no answer") : Status::Ok();
  };
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 2u) << "perhaps the first can be read again tomorrow";
  watched_->before_get = nullptr;
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 1u) << "what is on another is superfluous";
}

TEST_F(ShelvesTest, TagsThatDoNotTellManifestsApartAreNotBelieved) {
  watched_->change_listing = [](std::vector<TaggedObject>* all) {
    for (TaggedObject& object : *all) object.tag = "the same for all";
  };
  Fill(300);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_TRUE(Shelves().empty());
}

TEST_F(ShelvesTest, WhatIsNoCheckpointOrTooLargeIsNotFetchedForAShelf) {
  for (int i = 0; i < 300; ++i) {
    const std::string other = "other_" + std::to_string(i);
    ASSERT_TRUE(memory_->Put(names::Path(other, names::kManifest), "{}" + other).ok());
  }
  for (int i = 0; i < 3; ++i) {
    const std::string large(std::size_t{1200} << 10, static_cast<char>('a' + i));
    ASSERT_TRUE(memory_->Put(names::Path(DirectoryOf(i), names::kManifest), large).ok());
  }
  watched_->TakeGets();
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(watched_->TakeGets(), 0);
  EXPECT_TRUE(Shelves().empty());
}

TEST_F(ShelvesTest, NobodyListsARepositoryOfManyObjectsWhole) {
  Fill(300);
  for (int i = 0; i < 300 * 33; ++i) {
    memory_->Plant(names::Path(DirectoryOf(i % 300), "files/" + std::to_string(i)), "x");
  }
  ASSERT_TRUE(Tidy().ok());
  EXPECT_TRUE(Shelves().empty());
  int gets = 0;
  EXPECT_EQ(Read(&gets).checkpoints.size(), 300u);
}

TEST_F(FewShelvesTest, ARemovalBetweenTwoPagesOfTheListingIsNotOverlooked) {
  Fill(3);
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  PutNote(2, NoteKind::kRemove, "id-2");
  // The manifest was listed; then the removal goes on to its end, before the notes are.
  bool done = false;
  memory_->SetHook([&](const StoreOp& op) {
    if (done || op.kind != StoreOp::Kind::kList) return;
    if (op.name != names::Path(DirectoryOf(2), names::kManifest)) return;
    done = true;
    FinishRemoval(2);
  });
  const RepositoryView view = RepositoryReader(watched_.get()).Read(ReadFor::kOwning).value();
  memory_->SetHook(nullptr);
  ASSERT_TRUE(done);
  EXPECT_EQ(view.Find("id-2"), nullptr);
  EXPECT_EQ(view.Latest()->manifest->id, "id-1");
}

TEST_F(FewShelvesTest, ANoteThatVanishedMayHaveBeenARemoval) {
  Fill(3);
  ASSERT_TRUE(Tidy().ok());
  PutNote(2, NoteKind::kRemove, "id-2");
  bool done = false;
  watched_->before_get = [&](const std::string& name) {
    if (!done && name == names::Note(DirectoryOf(2), 1)) {
      done = true;
      FinishRemoval(2);
    }
    return Status::Ok();
  };
  const RepositoryView view = RepositoryReader(watched_.get()).Read().value();
  ASSERT_TRUE(done);
  EXPECT_EQ(view.Find("id-2"), nullptr);
}

TEST_F(FewShelvesTest, NotesCountForManifestsOnShelves) {
  Fill(3);
  ASSERT_TRUE(Tidy().ok());
  PutNote(0, NoteKind::kPin, "id-0");
  PutNote(1, NoteKind::kRemove, "id-1");
  int gets = 0;
  const RepositoryView view = Read(&gets);
  EXPECT_TRUE(view.Find("id-0")->pinned);
  EXPECT_FALSE(view.Find("id-1")->counts);
  EXPECT_TRUE(view.Find("id-2")->counts);
}

TEST_F(FewShelvesTest, ACopiedRepositoryReadsAsTheFirst) {
  Fill(3);
  ASSERT_TRUE(Tidy().ok());
  // As a tool copies a bucket: every object, and one checkpoint is left out.
  auto copy = MemoryStore::FromSnapshot(*memory_->Snapshot());
  ASSERT_TRUE(copy->Delete(names::Path(DirectoryOf(1), names::kManifest)).ok());
  const RepositoryView view = RepositoryReader(copy.get()).Read().value();
  EXPECT_EQ(view.checkpoints.size(), 2u);
  EXPECT_EQ(view.Find("id-1"), nullptr);
}

TEST_F(ShelvesTest, FewCheckpointsNeedNone) {
  Fill(200);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_TRUE(Shelves().empty());
  const auto plain = MemoryStore::Open({}).value();
  EXPECT_TRUE(TidyShelves(plain.get(), IdSource::System()).ok()) << "a store that cannot tell";
}

}  // namespace
}  // namespace cairn

#include "checkpoint/shelves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/checksum.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "format/manifest.h"
#include "format/records.h"
#include "storage/forwarding_store.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

/// A bucket in memory that lists whole trees and counts what is fetched.
class TaggingStore final : public ForwardingStore, public DeepListingStore {
 public:
  using ForwardingStore::ForwardingStore;

  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    ++gets_;
    return inner()->Get(name, limit);
  }
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override {
    std::vector<TaggedObject> out;
    Status status = Below(prefix, &out);
    if (!status.ok()) return status;
    if (out.size() > limit) return ResourceExhaustedError("more");
    return out;
  }
  int TakeGets() { return gets_.exchange(0); }

 private:
  Status Below(const std::string& prefix, std::vector<TaggedObject>* out) {
    const Listing listing = inner()->List(prefix).value();
    for (const ObjectInfo& object : listing.objects) {
      const std::string bytes = inner()->Get(object.name, 1u << 30).value();
      out->push_back({object.name, object.bytes,
                      std::to_string(Xxh3Wide(std::as_bytes(std::span(bytes))).low)});
    }
    for (const std::string& sub : listing.prefixes) {
      if (Status status = Below(sub, out); !status.ok()) return status;
    }
    return Status::Ok();
  }

  std::atomic<int> gets_{0};
};

std::string DirectoryOf(int step) { return names::CheckpointDirectory(false, false, step, 1); }

class ShelvesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RepositoryRecord record;
    record.job = "job";
    ASSERT_TRUE(store_.Put(std::string(names::kRepository), Encode(record)).ok());
    ASSERT_TRUE(
        store_.Put(names::Seal(1), Encode(SealRecord{.generation = 1, .uuid = "seal"})).ok());
  }
  void PutCheckpoint(int step, const std::string& id) {
    Manifest manifest;
    manifest.id = id;
    manifest.job = "job";
    manifest.attempt = "attempt";
    manifest.generation = 1;
    manifest.sequence = static_cast<std::uint64_t>(step) + 1;
    manifest.step = step;
    ASSERT_TRUE(store_
                    .Put(names::Path(DirectoryOf(step), names::kManifest),
                         EncodeManifest(manifest))
                    .ok());
  }
  void Fill(int count) {
    for (int i = 0; i < count; ++i) PutCheckpoint(i, "id-" + std::to_string(i));
  }
  void Drop(int step) {
    ASSERT_TRUE(store_.Delete(names::Path(DirectoryOf(step), names::kManifest)).ok());
  }
  Status Tidy() { return TidyShelves(&store_, IdSource::System()); }
  std::vector<ObjectInfo> Shelves() {
    return store_.List(std::string(names::kShelves)).value().objects;
  }
  /// The view, and in `gets` how many objects were fetched for it.
  RepositoryView Read(int* gets) {
    store_.TakeGets();
    RepositoryView view = RepositoryReader(&store_).Read().value();
    *gets = store_.TakeGets();
    return view;
  }

  std::unique_ptr<MemoryStore> memory_ =
      MemoryStore::Open({.object_store = true}).value();
  TaggingStore store_{memory_.get()};
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
  std::string bytes = store_.Get(shelf, 1u << 30).value();
  for (const std::size_t at : {std::size_t{3}, bytes.size() / 2, bytes.size() - 20}) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    ASSERT_TRUE(store_.Put(shelf, damaged).ok());
    int gets = 0;
    EXPECT_EQ(Read(&gets).checkpoints.size(), 300u) << at;
    EXPECT_GE(gets, 300);
  }
  // The next opening for writing mends it.
  ASSERT_TRUE(Tidy().ok());
  ASSERT_EQ(Shelves().size(), 1u);
  EXPECT_NE(Shelves().at(0).name, shelf);
  ASSERT_TRUE(store_.Delete(Shelves().at(0).name).ok());
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
  for (int i = 0; i < 599; ++i) Drop(i);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 2u) << "one is left on it";
  Drop(599);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_EQ(Shelves().size(), 1u);
}

TEST_F(ShelvesTest, FewCheckpointsNeedNone) {
  Fill(200);
  ASSERT_TRUE(Tidy().ok());
  EXPECT_TRUE(Shelves().empty());
  EXPECT_TRUE(TidyShelves(memory_.get(), IdSource::System()).ok()) << "a store that cannot tell";
}

}  // namespace
}  // namespace cairn

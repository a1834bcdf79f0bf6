// Saves that stream memory through the ring of buffers: files of many more parts than the ring has.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manager.h"
#include "checkpoint/test_checkpoint.h"
#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_store.h"

namespace cairn {
namespace {

constexpr std::size_t kPart = 4096;
constexpr std::size_t kLargePart = 1u << 20;  // copied past the caches

enum class Place { kDisk, kMemory, kBucket };

class StreamedSave : public testing::TestWithParam<Place> {
 protected:
  explicit StreamedSave(std::size_t part_bytes = kPart) {
    if (GetParam() == Place::kDisk) {
      LocalStoreOptions options;
      options.fs = PosixFs();
      options.root = directory_.path();
      options.part_bytes = part_bytes;
      options.queue_depth = 2;
      store_ = LocalStore::Open(options).value();
    } else {
      store_ = MemoryStore::Open(
                   {.object_store = GetParam() == Place::kBucket, .part_bytes = part_bytes})
                   .value();
    }
    // Odd sizes: parts begin and end inside of tensors, and hold several of them.
    const std::size_t unit = part_bytes / kPart;
    const std::size_t sizes[] = {300'001 * unit, 4096, 1, 0, 99'999 * unit, 17, 250'000};
    for (std::size_t i = 0; i < std::size(sizes); ++i) bytes_.push_back(RandomBytes(sizes[i], i));
  }

  std::unique_ptr<CheckpointManager> Open(std::shared_ptr<Store> store) {
    Environment env;
    env.store = std::move(store);
    env.host = "here";
    env.pid = 1;
    return OpenManager({}, std::move(env)).value();
  }
  Status Save(CheckpointManager* manager, std::int64_t step) {
    SaveRequest request{.step = step, .blocking = true};
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      request.tensors.push_back({.name = "t" + std::to_string(i),
                                 .dtype = DType::kU8,
                                 .shape = {bytes_[i].size()},
                                 .data = bytes_[i].data()});
    }
    return manager->Save(std::move(request)).status();
  }
  void Change(char by) {
    for (std::string& bytes : bytes_) {
      for (char& byte : bytes) byte = static_cast<char>(byte + by);
    }
  }
  void ExpectRestored(CheckpointManager* manager, std::int64_t step) {
    std::vector<std::string> back;
    RestoreRequest request;
    for (const std::string& bytes : bytes_) back.emplace_back(bytes.size(), '\0');
    for (std::size_t i = 0; i < back.size(); ++i) {
      request.into.push_back({.name = "t" + std::to_string(i),
                              .dtype = DType::kU8,
                              .shape = {back[i].size()},
                              .data = back[i].data()});
    }
    const auto restored = manager->Restore(std::move(request));
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    ASSERT_TRUE(restored->has_value());
    EXPECT_EQ((*restored)->step, step);
    for (std::size_t i = 0; i < back.size(); ++i) EXPECT_TRUE(back[i] == bytes_[i]) << i;
  }

  TempDirectory directory_;
  std::shared_ptr<Store> store_;
  std::vector<std::string> bytes_;
};

TEST_P(StreamedSave, HoldsEveryByteAndItsHash) {
  const auto manager = Open(store_);
  for (std::int64_t step = 1; step <= 3; ++step) {
    Change(1);
    ASSERT_TRUE(Save(manager.get(), step).ok());
    ExpectRestored(manager.get(), step);  // which compares every chunk with its hash
  }
  EXPECT_TRUE(manager->Close().ok());
}

TEST_P(StreamedSave, SurvivesAFailureOfAnyPart) {
  const auto faulty = std::make_shared<FaultyStore>(store_.get());
  const auto manager = Open(faulty);
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  std::int64_t step = 1;
  std::uint64_t at = 0;
  while (true) {
    faulty->Arm({.status = UnavailableError("the disk is away"),
                 .trigger = {.at = at, .kind = StoreOp::Kind::kAppend}});
    const std::vector<std::string> before = bytes_;
    Change(1);
    const Status saved = Save(manager.get(), step + 1);
    const bool hit = faulty->failures() > 0;
    faulty->Disarm();
    if (!hit) {
      EXPECT_TRUE(saved.ok()) << saved.ToString();
      break;
    }
    EXPECT_FALSE(saved.ok()) << at;
    bytes_ = before;
    ExpectRestored(manager.get(), step);
    at += at < 10 ? 1 : 13;
  }
  EXPECT_GT(at, 150u) << "there were not that many parts";
  ExpectRestored(manager.get(), step + 1);
  EXPECT_TRUE(manager->Close().ok());
}

class StreamedSaveOfLargeParts : public StreamedSave {
 protected:
  StreamedSaveOfLargeParts() : StreamedSave(kLargePart) {}
};

TEST_P(StreamedSaveOfLargeParts, HoldsEveryByteAndItsHash) {
  const auto manager = Open(store_);
  for (std::int64_t step = 1; step <= 2; ++step) {
    Change(1);
    ASSERT_TRUE(Save(manager.get(), step).ok());
    ExpectRestored(manager.get(), step);
  }
  EXPECT_TRUE(manager->Close().ok());
}

const auto kPlaces = testing::Values(Place::kDisk, Place::kMemory, Place::kBucket);

std::string NameOf(const testing::TestParamInfo<Place>& tested) {
  switch (tested.param) {
    case Place::kDisk:
      return "Disk";
    case Place::kMemory:
      return "Memory";
    default:
      return "Bucket";
  }
}

INSTANTIATE_TEST_SUITE_P(Places, StreamedSave, kPlaces, NameOf);
INSTANTIATE_TEST_SUITE_P(Places, StreamedSaveOfLargeParts, kPlaces, NameOf);

}  // namespace
}  // namespace cairn

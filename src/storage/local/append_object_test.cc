#include "storage/append_object.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/sim/faulty_fs.h"

// Objects of the local store that grow by appending; what every store promises about them is in the
// conformance suite.

namespace cairn {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 30;

class AppendObjectTest : public ::testing::Test {
 protected:
  std::unique_ptr<AppendObject> Open(LocalStore* store) {
    EXPECT_TRUE(store->Create("log", "begins").ok());
    auto object = store->OpenAppend("log");
    EXPECT_TRUE(object.ok()) << object.status().ToString();
    return *std::move(object);
  }
  static std::string Record(int number) {
    return std::string(100'000, static_cast<char>('a' + number % 26));
  }

  TempDirectory directory_;
  FaultyFs faulty_{PosixFs()};
  std::unique_ptr<LocalStore> store_ =
      LocalStore::Open({.root = directory_.path(), .fs = &faulty_}).value();
};

TEST_F(AppendObjectTest, WhatWasReservedAndNotNeededIsGivenBack) {
  auto object = Open(store_.get());
  std::uint64_t bytes = object->bytes();
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(object->Append(Record(i)).ok());
    bytes += Record(i).size();
  }
  ASSERT_TRUE(object->Sync("the test").ok());
  object = nullptr;
  struct stat now{};
  ASSERT_EQ(stat((directory_ / "log").c_str(), &now), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(now.st_size), bytes);
  EXPECT_LE(static_cast<std::uint64_t>(now.st_blocks) * 512, bytes + (1 << 20));
}

TEST_F(AppendObjectTest, SyncsBesideAppendsLoseNothing) {
  std::string expected = "begins";
  {
    auto object = Open(store_.get());
    std::atomic<bool> done = false;
    std::jthread syncs([&] {
      while (!done) EXPECT_TRUE(object->Sync("beside").ok());
    });
    // More than is dropped from the kernel's memory at once, twice.
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(object->Append(Record(i)).ok());
      expected += Record(i);
    }
    done = true;
  }
  EXPECT_EQ(store_->Get("log", kNoLimit).value(), expected);
}

TEST_F(AppendObjectTest, AFailedSyncCondemnsItForAppendsToo) {
  auto object = Open(store_.get());
  ASSERT_TRUE(object->Append("x").ok());
  faulty_.Arm({.failure = FsFailure::kFailedSync});
  EXPECT_FALSE(object->Sync("fails").ok());
  faulty_.Disarm();
  EXPECT_FALSE(object->Append("y").ok());
  EXPECT_FALSE(object->Sync("again").ok());
}

}  // namespace
}  // namespace cairn

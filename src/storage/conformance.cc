// The suite itself, and what concerns a store as a whole; the rest stands in conformance_*.cc.
#include "storage/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <ostream>
#include <utility>

#include "storage/conformance_checks.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

}  // namespace

void PrintTo(const StoreFactory& factory, std::ostream* out) { *out << factory.name; }

std::string StoreConformance::Name(const ::testing::TestParamInfo<StoreFactory>& info) {
  return info.param.name;
}

void StoreConformance::SetUp() {
  under_test_ = GetParam().make();
  store_ = OpenAnother();
  ASSERT_NE(store_, nullptr);
  // Some stores find out what they can do when it is first tried.
  (void)store_->Create("probe", "x").ok();
  (void)store_->Link("probe", "probe-2").ok();
  (void)store_->TryLock("probe-3").ok();
  for (const char* name : {"probe", "probe-2", "probe-3"}) (void)store_->Delete(name).ok();
}

std::unique_ptr<Store> StoreConformance::OpenAnother() {
  Result<std::unique_ptr<Store>> opened = under_test_.open();
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return opened.ok() ? *std::move(opened) : nullptr;
}

void StoreConformance::WriteObjects(const std::vector<std::pair<std::string, std::string>>& objects,
                                    bool padded) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part_bytes = (*session)->part_bytes();
  std::vector<std::uint32_t> handles;
  std::vector<std::size_t> at(objects.size(), 0);
  std::vector<std::unique_ptr<AlignedMemory>> buffers;  // by tag
  for (const auto& [name, bytes] : objects) {
    Result<std::uint32_t> handle = (*session)->Open(name, {.bytes = bytes.size()});
    ASSERT_HAS(handle);
    handles.push_back(*handle);
  }
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::string& bytes = objects[i].second;
      if (at[i] == bytes.size()) continue;
      const std::size_t count = std::min(part_bytes, bytes.size() - at[i]);
      const std::string_view part = std::string_view(bytes).substr(at[i], count);
      auto buffer = std::make_unique<AlignedMemory>(count);
      buffer->Fill(part);
      ASSERT_OK((*session)->Append(handles[i], padded ? buffer->span() : AsBytes(part), padded,
                                   buffers.size()));
      buffers.push_back(std::move(buffer));
      at[i] += count;
      more = more || at[i] < bytes.size();
    }
  }
  for (const std::uint32_t handle : handles) ASSERT_OK((*session)->Close(handle));
  ASSERT_OK((*session)->Drain());
  ASSERT_OK(store().SyncNames("", "conformance"));
}

std::string StoreConformance::ReadObject(const std::string& name) {
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader(name);
  if (!reader.ok()) return std::string(CodeName(reader.status().code()));
  std::string text((*reader)->bytes(), '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(text)));
  return read.ok() ? text : std::string(CodeName(read.code()));
}

TEST_P(StoreConformance, SaysWhereItIs) { EXPECT_FALSE(store().Describe().empty()); }

TEST_P(StoreConformance, StartsEmpty) {
  Result<Listing> listing = store().List("");
  ASSERT_HAS(listing);
  EXPECT_THAT(listing->objects, IsEmpty());
  EXPECT_THAT(listing->prefixes, IsEmpty());
}

TEST_P(StoreConformance, LockIsHeldByOneUntilItIsReleased) {
  Result<std::unique_ptr<StoreLock>> lock = store().TryLock("locks/writer");
  if (!store().traits().locks) {
    EXPECT_EQ(CodeOf(lock), Code::kUnimplemented);
    return;
  }
  ASSERT_HAS(lock);
  EXPECT_EQ(CodeOf(store().TryLock("locks/writer")), Code::kUnavailable);
  EXPECT_EQ(CodeOf(OpenAnother()->TryLock("locks/writer")), Code::kUnavailable);
  EXPECT_TRUE(store().TryLock("locks/another").ok());
  lock->reset();
  EXPECT_TRUE(OpenAnother()->TryLock("locks/writer").ok());
  EXPECT_TRUE(store().TryLock("locks/writer").ok());
}

TEST_P(StoreConformance, OneOfManyConcurrentLockersWins) {
  if (!store().traits().locks) GTEST_SKIP() << "no locks";
  std::atomic<int> holders = 0;
  std::atomic<int> acquired = 0;
  RunInThreads(kThreads, [&](int) {
    for (int i = 0; i < 50; ++i) {
      Result<std::unique_ptr<StoreLock>> lock = store().TryLock("lock");
      if (!lock.ok()) {
        EXPECT_EQ(lock.status().code(), Code::kUnavailable) << lock.status().ToString();
        continue;
      }
      EXPECT_EQ(++holders, 1);
      ++acquired;
      --holders;
    }
  });
  EXPECT_GE(acquired, 1);
}

TEST_P(StoreConformance, FreeBytesIsKnownOrNot) {
  Result<std::optional<std::uint64_t>> free = store().FreeBytes();
  ASSERT_HAS(free);
  if (free->has_value()) {
    EXPECT_GT(**free, 0u);
  }
}

TEST_P(StoreConformance, RefreshShowsWhatOthersWrote) {
  auto other = OpenAnother();
  EXPECT_OK(store().Refresh("missing"));
  ASSERT_OK(other->Put("d/a", "x"));
  EXPECT_OK(store().Refresh("d"));
  EXPECT_OK(store().Refresh(""));
  EXPECT_THAT(ObjectNames(*store().List("d")), ElementsAre("d/a"));
}

}  // namespace cairn

#include "storage/memory/memory_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "storage/conformance.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

StoreFactory Factory(std::string name, MemoryStore::Options options) {
  return {.name = std::move(name), .make = [options] {
            std::shared_ptr<MemoryStore> first = *MemoryStore::Open(options);
            StoreUnderTest under_test;
            under_test.ground = first;
            under_test.open = [first] {
              return Result<std::unique_ptr<Store>>(first->OpenAgain());
            };
            under_test.plant = [first](const std::string& name) { first->Plant(name, "x"); };
            under_test.long_listing = 1100;
            if (options.max_links < 100) {
              under_test.max_links = static_cast<int>(options.max_links);
            }
            return under_test;
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Memory, StoreConformance,
    ::testing::Values(
        Factory("object_store", {.object_store = true}),
        Factory("object_store_out_of_order",
                {.object_store = true, .part_bytes = 8192, .queue_seed = 5}),
        Factory("object_store_without_create_only", {.object_store = true, .create_only = false}),
        Factory("plain", {.object_store = false}),
        Factory("plain_few_links", {.object_store = false, .part_bytes = 4096, .max_links = 3})),
    StoreConformance::Name);

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::unique_ptr<MemoryStore> Open(MemoryStore::Options options) {
  return *MemoryStore::Open(options);
}

TEST(MemoryStore, ObjectStoreShowsAnObjectOnlyWhenItIsDrained) {
  auto store = Open({.object_store = true});
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("a", {.bytes = 3});
  ASSERT_TRUE(session->Append(object, Bytes("abc"), false, 1).ok());
  ASSERT_TRUE(session->Close(object).ok());
  EXPECT_EQ(store->Stat("a").status().code(), Code::kNotFound);
  ASSERT_TRUE(session->Drain().ok());
  EXPECT_EQ(*store->Get("a", kNoLimit), "abc");
}

TEST(MemoryStore, PlainModeShowsAnObjectInTheMaking) {
  auto store = Open({.object_store = false, .part_bytes = 4096});
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  const std::string part(4096, 'x');
  const std::uint32_t object = *session->Open("a", {.bytes = 8192});
  EXPECT_EQ(store->Stat("a")->bytes, 0u);
  ASSERT_TRUE(session->Append(object, Bytes(part), false, 1).ok());
  ASSERT_EQ(*session->WaitPart(), 1u);
  EXPECT_EQ(store->Stat("a")->bytes, 4096u);
}

TEST(MemoryStore, ObjectStoreRefusesAnObjectThatAppearedMeanwhile) {
  auto store = Open({.object_store = true});
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("a", {.bytes = 0});
  ASSERT_TRUE(session->Close(object).ok());
  ASSERT_TRUE(store->Put("a", "other").ok());
  EXPECT_EQ(session->Drain().code(), Code::kAlreadyExists);
  EXPECT_EQ(*store->Get("a", kNoLimit), "other");
}

TEST(MemoryStore, ReaderOutlivesTheNameOnlyInPlainMode) {
  for (const bool object_store : {true, false}) {
    auto store = Open({.object_store = object_store});
    ASSERT_TRUE(store->Put("a", "x").ok());
    auto reader = *store->OpenReader("a");
    ASSERT_TRUE(store->Delete("a").ok());
    std::byte byte{};
    EXPECT_EQ(reader->Read(0, {&byte, 1}).code(), object_store ? Code::kNotFound : Code::kOk);
  }
}

TEST(MemoryStore, BorrowedPartsAreReadOnlyWhenTheyComplete) {
  auto store = Open({.object_store = true});
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  std::string text = "abc";
  const std::uint32_t object = *session->Open("a", {.bytes = 3});
  ASSERT_TRUE(session->Append(object, Bytes(text), false, 1).ok());
  text = "xyz";  // too early: the mistake shows
  ASSERT_TRUE(session->Close(object).ok());
  ASSERT_TRUE(session->Drain().ok());
  EXPECT_EQ(*store->Get("a", kNoLimit), "xyz");
}

TEST(MemoryStore, HookSeesEveryOperationBeforeItHappens) {
  auto store = Open({.object_store = true});
  std::vector<std::string> seen;
  std::vector<std::shared_ptr<const MemoryImage>> images;
  store->SetHook([&](const StoreOp& op) {
    seen.push_back(DescribeStoreOp(op));
    images.push_back(store->Snapshot());
  });
  ASSERT_TRUE(store->Create("a", "xy").ok());
  ASSERT_TRUE(store->Get("a", 10).ok());
  ASSERT_TRUE(store->List("").ok());
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("b", {.bytes = 1});
  ASSERT_TRUE(session->Append(object, Bytes("b"), false, 1).ok());
  ASSERT_TRUE(session->Close(object).ok());
  ASSERT_TRUE(session->Drain().ok());
  ASSERT_TRUE(store->SyncNames("", "names").ok());
  auto reader = *store->OpenReader("b");
  std::byte byte{};
  ASSERT_TRUE(reader->Read(0, {&byte, 1}).ok());
  ASSERT_TRUE(store->Delete("a").ok());
  EXPECT_THAT(seen,
              ElementsAre("create a (2 bytes)", "get a", "list", "open object b (1 bytes)",
                          "append b (1 bytes)", "close object b", "drain", "publish b (1 bytes)",
                          "sync names (names)", "open reader b", "read b (1 bytes)", "delete a"));
  EXPECT_THAT(MemoryStore::FromSnapshot(*images[0])->List("")->objects, IsEmpty());
  EXPECT_EQ(MemoryStore::FromSnapshot(*images[7])->Stat("b").status().code(), Code::kNotFound);
  EXPECT_TRUE(MemoryStore::FromSnapshot(*images[8])->Stat("b").ok());
  EXPECT_TRUE(MemoryStore::FromSnapshot(*images[11])->Stat("a").ok());
}

TEST(MemoryStore, EachStoreObjectHasItsOwnHook) {
  auto store = Open({});
  auto other = store->OpenAgain();
  int calls = 0;
  store->SetHook([&](const StoreOp&) { ++calls; });
  ASSERT_TRUE(other->Put("a", "x").ok());
  EXPECT_EQ(calls, 0);
  ASSERT_TRUE(store->Get("a", 10).ok());
  EXPECT_EQ(calls, 1);
}

TEST(MemoryStore, WithoutCreateOnlyTwoCreatorsMayBothWin) {
  auto store = Open({.create_only = false});
  auto other = store->OpenAgain();
  store->SetHook([&](const StoreOp& op) {
    // The other one comes in between the look and the put.
    if (op.kind == StoreOp::Kind::kPut) {
      EXPECT_TRUE(other->Create("a", "other").ok());
    }
  });
  EXPECT_TRUE(store->Create("a", "mine").ok());
  EXPECT_EQ(*store->Get("a", kNoLimit), "mine");
  EXPECT_FALSE(store->traits().create_only);
}

TEST(MemoryStore, SnapshotsAreIndependentOfTheStore) {
  auto store = Open({.object_store = false, .part_bytes = 4096});
  ASSERT_TRUE(store->Put("a", "one").ok());
  ASSERT_TRUE(store->Link("a", "b").ok());
  auto lock = store->TryLock("lock");
  auto session = *store->NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("s", {.bytes = 5});
  const auto image = store->Snapshot();
  ASSERT_TRUE(session->Append(object, Bytes("bytes"), false, 1).ok());
  ASSERT_TRUE(session->Close(object).ok());
  ASSERT_TRUE(session->Drain().ok());
  ASSERT_TRUE(store->Put("a", "two").ok());
  ASSERT_TRUE(store->Delete("b").ok());

  auto copy = MemoryStore::FromSnapshot(*image);
  EXPECT_EQ(*copy->Get("a", kNoLimit), "one");
  EXPECT_EQ(*copy->LinkCount("b"), 2u);
  EXPECT_EQ(copy->Stat("s")->bytes, 0u);
  EXPECT_TRUE(copy->TryLock("lock").ok());
  ASSERT_TRUE(copy->Put("c", "copy").ok());
  EXPECT_EQ(store->Stat("c").status().code(), Code::kNotFound);
  EXPECT_EQ(*store->Get("s", kNoLimit), "bytes");
}

TEST(MemoryStore, RefusesUnusableOptions) {
  EXPECT_EQ(MemoryStore::Open({.part_bytes = 100}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MemoryStore::Open({.parts_in_flight = 0}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace cairn

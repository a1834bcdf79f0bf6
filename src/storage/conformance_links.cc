// Links, bytes that are adopted under another name, and the pool of objects to write over.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "storage/adopting_store.h"
#include "storage/conformance.h"
#include "storage/conformance_checks.h"

namespace cairn {

TEST_P(StoreConformance, LinkGivesASecondName) {
  ASSERT_OK(store().Put("d/a", "x"));
  if (!store().traits().hard_links) {
    EXPECT_EQ(store().Link("d/a", "e/b").code(), Code::kUnimplemented);
    EXPECT_EQ(*store().LinkCount("d/a"), 1u);
    return;
  }
  EXPECT_EQ(*store().LinkCount("d/a"), 1u);
  ASSERT_OK(store().Link("d/a", "e/f/b"));
  EXPECT_EQ(*store().LinkCount("d/a"), 2u);
  EXPECT_EQ(*store().LinkCount("e/f/b"), 2u);
  ASSERT_OK(store().SyncNames("e", "conformance"));
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_EQ(*store().Get("e/f/b", kNoLimit), "x");
  EXPECT_EQ(*store().LinkCount("e/f/b"), 1u);
}

TEST_P(StoreConformance, LinkReplacesNothing) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no links";
  ASSERT_OK(store().Put("a", "x"));
  ASSERT_OK(store().Put("b", "y"));
  EXPECT_EQ(store().Link("a", "b").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("b", kNoLimit), "y");
  EXPECT_EQ(store().Link("missing", "c").code(), Code::kNotFound);
  EXPECT_EQ(CodeOf(store().Stat("c")), Code::kNotFound);
}

TEST_P(StoreConformance, PutOverOneNameLeavesTheOther) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no links";
  ASSERT_OK(store().Put("a", "old"));
  ASSERT_OK(store().Link("a", "b"));
  ASSERT_OK(store().Put("a", "new"));
  EXPECT_EQ(*store().Get("b", kNoLimit), "old");
  EXPECT_EQ(*store().LinkCount("b"), 1u);
}

TEST_P(StoreConformance, LinkLimitIsReported) {
  if (!store().traits().hard_links || !under_test_.max_links) GTEST_SKIP() << "no small limit";
  ASSERT_OK(store().Put("a", "x"));
  for (int i = 1; i < *under_test_.max_links; ++i) {
    ASSERT_OK(store().Link("a", "l/" + std::to_string(i)));
  }
  EXPECT_EQ(store().Link("a", "l/more").code(), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(store().Stat("l/more")), Code::kNotFound);
  EXPECT_EQ(*store().Get("a", kNoLimit), "x");
}

TEST_P(StoreConformance, AdoptedBytesOutliveTheirFirstName) {
  AdoptingStore* adopting = FindAdopting(&store());
  if (adopting == nullptr) return;  // an ability that not all have
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{100'000}}) {
    const std::string content = Pattern(bytes, bytes);
    const std::string to = "new b/ü/" + std::to_string(bytes);
    ASSERT_TRUE(store().Put("old/a b+ü", content).ok());
    const Status adopted = adopting->Adopt("old/a b+ü", to);
    ASSERT_TRUE(adopted.ok()) << adopted.ToString();
    store().Delete("old/a b+ü").IgnoreError("it may have gone");
    const auto found = store().Get(to, kNoLimit);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(*found, content);
  }
  EXPECT_TRUE(adopting->Adopt("not/there", "c").Is(Code::kNotFound));
  EXPECT_TRUE(store().Stat("c").status().Is(Code::kNotFound));
}

TEST_P(StoreConformance, PoolTakesObjectsNobodyElseHas) {
  ASSERT_OK(store().Put("d/a", "x"));
  if (!store().traits().hard_links) {
    Result<bool> moved = store().MoveToPool("d/a", "pool/1/a");
    EXPECT_TRUE(moved.ok() ? !*moved : moved.status().Is(Code::kUnimplemented));
    EXPECT_EQ(*store().Get("d/a", kNoLimit), "x");
    return;
  }
  ASSERT_OK(store().Link("d/a", "d/b"));
  Result<bool> linked = store().MoveToPool("d/a", "pool/1/a");
  ASSERT_HAS(linked);
  EXPECT_FALSE(*linked);
  ASSERT_OK(store().Delete("d/b"));
  {
    Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("d/a");
    ASSERT_HAS(reader);
    Result<bool> open = store().MoveToPool("d/a", "pool/1/a");
    ASSERT_HAS(open);
    EXPECT_FALSE(*open);
    EXPECT_EQ(ReadObject("d/a"), "x");
    EXPECT_EQ(CodeOf(store().Stat("pool/1/a")), Code::kNotFound);
  }
  Result<bool> moved = store().MoveToPool("d/a", "pool/1/a");
  ASSERT_HAS(moved);
  EXPECT_TRUE(*moved);
  EXPECT_EQ(CodeOf(store().Stat("d/a")), Code::kNotFound);
  EXPECT_EQ(store().Stat("pool/1/a")->bytes, 1u);
  EXPECT_EQ(CodeOf(store().MoveToPool("missing", "pool/1/b")), Code::kNotFound);
}

TEST_P(StoreConformance, SessionWritesOverAnObjectOfThePool) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no pool";
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::size_t old_bytes = part + 5000;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{100}, part, old_bytes, 2 * part + 1}) {
    SCOPED_TRACE(bytes);
    WriteObjects({{"old", Pattern(old_bytes, 13)}}, true);
    Result<bool> moved = store().MoveToPool("old", "pool/a");
    ASSERT_HAS(moved);
    ASSERT_TRUE(*moved);
    const std::string text = Pattern(bytes, 14);
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    Result<std::uint32_t> object = (*session)->Open("new/a", {.bytes = bytes, .reuse = "pool/a"});
    ASSERT_HAS(object);
    EXPECT_EQ(CodeOf(store().Stat("pool/a")), Code::kNotFound) << "it disappears";
    for (std::size_t at = 0; at < bytes; at += part) {
      ASSERT_OK(
          (*session)->Append(*object, AsBytes(std::string_view(text).substr(at, part)), false, at));
    }
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    session->reset();
    ASSERT_OK(store().SyncNames("new", "conformance"));
    EXPECT_EQ(store().Stat("new/a")->bytes, bytes);
    EXPECT_TRUE(ReadObject("new/a") == text);
    EXPECT_EQ(*store().LinkCount("new/a"), 1u);
    ASSERT_OK(store().Delete("new/a"));
  }
}

TEST_P(StoreConformance, ReuseReplacesNothing) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no pool";
  ASSERT_OK(store().Put("old", "old"));
  ASSERT_OK(store().Put("taken", "taken"));
  ASSERT_TRUE(*store().MoveToPool("old", "pool/a"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_EQ(CodeOf((*session)->Open("taken", {.bytes = 1, .reuse = "pool/a"})),
            Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("taken", kNoLimit), "taken");
}

}  // namespace cairn

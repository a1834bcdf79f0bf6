// Write sessions: parts, tags, errors, several at once.
#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/conformance.h"
#include "storage/conformance_checks.h"

namespace cairn {
namespace {

using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

}  // namespace

TEST_P(StoreConformance, SessionWritesEverySize) {
  Result<std::unique_ptr<WriteSession>> probe = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(probe);
  const std::size_t part = (*probe)->part_bytes();
  ASSERT_GT(part, 0u);
  ASSERT_EQ(part % kBlock, 0u);
  for (const bool padded : {false, true}) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
          part - 1, part, part + 1, 3 * part, 3 * part + 4097}) {
      SCOPED_TRACE(std::to_string(bytes) + (padded ? " padded" : " not padded"));
      const std::string name = "s/" + std::to_string(bytes) + (padded ? "p" : "");
      const std::string text = Pattern(bytes, bytes + 1);
      WriteObjects({{name, text}}, padded);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_EQ(store().Stat(name)->bytes, bytes);
      EXPECT_TRUE(ReadObject(name) == text);
      ASSERT_OK(store().Delete(name));
    }
  }
}

TEST_P(StoreConformance, SessionWritesInEveryMode) {
  for (const WriteMode mode : {WriteMode::kAuto, WriteMode::kDirect, WriteMode::kBuffered}) {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(mode);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    const std::string text = Pattern(2 * part + 5, 3);
    const std::string name = "m/" + std::to_string(static_cast<int>(mode));
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = text.size()});
    ASSERT_HAS(object);
    for (std::size_t at = 0; at < text.size(); at += part) {
      const std::string_view piece = std::string_view(text).substr(at, part);
      ASSERT_OK((*session)->Append(*object, AsBytes(piece), false, at));
    }
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    EXPECT_TRUE(ReadObject(name) == text);
  }
}

TEST_P(StoreConformance, SessionWritesManyObjectsInTurn) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  std::vector<std::pair<std::string, std::string>> objects;
  objects.reserve(5);
  for (std::uint64_t i = 0; i < 5; ++i) {
    objects.emplace_back("i/" + std::to_string(i % 2) + "/" + std::to_string(i),
                         Pattern(i * part / 2 + i * 1000, i));
  }
  WriteObjects(objects, true);
  for (const auto& [name, text] : objects) EXPECT_TRUE(ReadObject(name) == text) << name;
  EXPECT_THAT(store().List("i")->prefixes, UnorderedElementsAre("i/0", "i/1"));
  EXPECT_TRUE(*OpenAnother()->Get("i/1/3", kNoLimit) == objects[3].second);
}

TEST_P(StoreConformance, SessionWritesManySmallObjects) {
  std::vector<std::pair<std::string, std::string>> objects;
  objects.reserve(40);
  for (std::uint64_t i = 0; i < 40; ++i) {
    objects.emplace_back("small/" + std::to_string(i), Pattern(i * 13, i));
  }
  WriteObjects(objects, false);
  for (const auto& [name, text] : objects) EXPECT_TRUE(ReadObject(name) == text) << name;
}

TEST_P(StoreConformance, EveryTagIsReturnedOnceAndItsMemoryIsFreeThen) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  constexpr std::size_t kParts = 10;
  const std::string text = Pattern(kParts * part, 4);
  Result<std::uint32_t> object = (*session)->Open("tags", {.bytes = text.size()});
  ASSERT_HAS(object);
  // Two buffers for ten parts: each is written over as soon as its tag came back.
  std::array<AlignedMemory, 2> buffers = {AlignedMemory(part), AlignedMemory(part)};
  std::map<std::uint64_t, std::size_t> outstanding;  // tag → buffer
  std::vector<std::size_t> free = {0, 1};
  std::set<std::uint64_t> returned;
  const auto wait = [&] {
    Result<std::uint64_t> tag = (*session)->WaitPart();
    ASSERT_HAS(tag);
    EXPECT_TRUE(returned.insert(*tag).second) << "tag " << *tag << " came twice";
    auto found = outstanding.find(*tag);
    ASSERT_NE(found, outstanding.end()) << "nobody gave tag " << *tag;
    buffers[found->second].Scribble();
    free.push_back(found->second);
    outstanding.erase(found);
  };
  for (std::size_t i = 0; i < kParts; ++i) {
    if (free.empty()) wait();
    ASSERT_FALSE(HasFatalFailure());
    const std::size_t buffer = free.back();
    free.pop_back();
    buffers[buffer].Fill(std::string_view(text).substr(i * part, part));
    outstanding.emplace(1000 + i, buffer);
    ASSERT_OK((*session)->Append(*object, buffers[buffer].span(), true, 1000 + i));
  }
  while (!outstanding.empty() && !HasFatalFailure()) wait();
  EXPECT_THAT(returned, SizeIs(kParts));
  EXPECT_EQ(CodeOf((*session)->WaitPart()), Code::kInvalidArgument) << "none is outstanding";
  ASSERT_OK((*session)->Close(*object));
  ASSERT_OK((*session)->Drain());
  EXPECT_TRUE(ReadObject("tags") == text);
}

TEST_P(StoreConformance, MemoryIsFreeAfterDrain) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  const std::string text = Pattern(part + 100, 5);
  Result<std::uint32_t> object = (*session)->Open("drained", {.bytes = text.size()});
  ASSERT_HAS(object);
  {
    AlignedMemory first(part);
    AlignedMemory second(100);
    first.Fill(std::string_view(text).substr(0, part));
    second.Fill(std::string_view(text).substr(part));
    ASSERT_OK((*session)->Append(*object, first.span(), true, 1));
    ASSERT_OK((*session)->Append(*object, second.span(), true, 2));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    first.Scribble();
    second.Scribble();
  }
  EXPECT_EQ(CodeOf((*session)->WaitPart()), Code::kInvalidArgument) << "Drain gave them all back";
  EXPECT_TRUE(ReadObject("drained") == text);
}

TEST_P(StoreConformance, SessionGoesOnAfterDrain) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_OK((*session)->Drain()) << "nothing to do";
  for (int i = 0; i < 3; ++i) {
    const std::string name = "round/" + std::to_string(i);
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = 4});
    ASSERT_HAS(object);
    ASSERT_OK((*session)->Append(*object, AsBytes("text"), false, 7));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    EXPECT_EQ(ReadObject(name), "text");
  }
  EXPECT_OK((*session)->Drain());
}

TEST_P(StoreConformance, DrainLeavesOpenObjectsOpen) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  const std::string text = Pattern(2 * part, 6);
  Result<std::uint32_t> open = (*session)->Open("open", {.bytes = text.size()});
  Result<std::uint32_t> closed = (*session)->Open("closed", {.bytes = 1});
  ASSERT_HAS(open);
  ASSERT_HAS(closed);
  const std::string_view view = text;
  ASSERT_OK((*session)->Append(*open, AsBytes(view.substr(0, part)), false, 1));
  ASSERT_OK((*session)->Append(*closed, AsBytes("c"), false, 2));
  ASSERT_OK((*session)->Close(*closed));
  ASSERT_OK((*session)->Drain());
  EXPECT_EQ(ReadObject("closed"), "c");
  ASSERT_OK((*session)->Append(*open, AsBytes(view.substr(part)), false, 3));
  ASSERT_OK((*session)->Close(*open));
  ASSERT_OK((*session)->Drain());
  EXPECT_TRUE(ReadObject("open") == text);
}

TEST_P(StoreConformance, SessionReplacesNothing) {
  ASSERT_OK(store().Put("taken", "old"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_EQ(CodeOf((*session)->Open("taken", {.bytes = 3})), Code::kAlreadyExists);
  session->reset();
  EXPECT_EQ(*store().Get("taken", kNoLimit), "old");
}

TEST_P(StoreConformance, SessionIsCondemnedByAnError) {
  ASSERT_OK(store().Put("taken", "old"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  Result<std::uint32_t> object = (*session)->Open("c/one", {.bytes = 3});
  ASSERT_HAS(object);
  Result<std::uint32_t> failed = (*session)->Open("taken", {.bytes = 3});
  ASSERT_EQ(CodeOf(failed), Code::kAlreadyExists);
  const std::string why = failed.status().ToString();
  EXPECT_EQ((*session)->Append(*object, AsBytes("abc"), false, 1).ToString(), why);
  EXPECT_EQ((*session)->Close(*object).ToString(), why);
  EXPECT_EQ((*session)->Open("c/two", {.bytes = 3}).status().ToString(), why);
  EXPECT_EQ((*session)->WaitPart().status().ToString(), why);
  EXPECT_EQ((*session)->Drain().ToString(), why);
  session->reset();
  EXPECT_EQ(CodeOf(store().Stat("c/two")), Code::kNotFound);
  // The caller deletes the names, which may or may not be there; then they are free.
  for (const std::string name : {"c/one", "c/two"}) {
    const Status deleted = store().Delete(name);
    EXPECT_TRUE(deleted.ok() || deleted.Is(Code::kNotFound)) << deleted.ToString();
  }
  WriteObjects({{"c/one", "abc"}, {"c/two", "def"}}, false);
  EXPECT_EQ(ReadObject("c/one"), "abc");
}

TEST_P(StoreConformance, SessionRefusesWrongUse) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string text = Pattern(2 * part, 7);
  const std::string_view view = text;
  using Use = std::function<Status(WriteSession&, std::uint32_t)>;
  const std::vector<std::pair<std::string, Use>> uses = {
      {"a short part before the last",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o, AsBytes(view.substr(0, part - 1)), false, 1);
       }},
      {"a part that is too large",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o, AsBytes(view.substr(0, part + 1)), false, 1);
       }},
      {"more bytes than announced",
       [&](WriteSession& s, std::uint32_t o) {
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, part)), false, 1));
         return s.Append(o, AsBytes(view.substr(0, part)), false, 2);
       }},
      {"closed too early", [](WriteSession& s, std::uint32_t o) { return s.Close(o); }},
      {"an unknown object",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o + 1, AsBytes(view.substr(0, part)), false, 1);
       }},
      {"closing an unknown object",
       [](WriteSession& s, std::uint32_t o) { return s.Close(o + 1); }},
      {"append after close",
       [&](WriteSession& s, std::uint32_t o) {
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, part)), false, 1));
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, 5)), false, 2));
         EXPECT_OK(s.Close(o));
         return s.Append(o, AsBytes(view.substr(0, 5)), false, 3);
       }},
  };
  int count = 0;
  for (const auto& [what, use] : uses) {
    SCOPED_TRACE(what);
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    Result<std::uint32_t> object =
        (*session)->Open("w/" + std::to_string(count++), {.bytes = part + 5});
    ASSERT_HAS(object);
    EXPECT_EQ(use(**session, *object).code(), Code::kInvalidArgument);
    EXPECT_EQ((*session)->Drain().code(), Code::kInvalidArgument);
  }
}

TEST_P(StoreConformance, AbandonedSessionLeavesOnlyDeletableNames) {
  {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    AlignedMemory buffer(part);
    buffer.Scribble();
    Result<std::uint32_t> object = (*session)->Open("abandoned", {.bytes = 3 * part});
    ASSERT_HAS(object);
    ASSERT_OK((*session)->Append(*object, buffer.span(), true, 1));
    session->reset();  // waits for what is in flight, then the buffer goes
  }
  const Status deleted = store().Delete("abandoned");
  EXPECT_TRUE(deleted.ok() || deleted.Is(Code::kNotFound)) << deleted.ToString();
  EXPECT_OK(store().Create("abandoned", "free again"));
}

TEST_P(StoreConformance, SessionsOfSeveralThreadsDoNotDisturbEachOther) {
  RunInThreads(4, [&](int t) {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    const std::string text = Pattern(part + 1001, static_cast<std::uint64_t>(t));
    const std::string name = "threads/" + std::to_string(t) + "/a";
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = text.size()});
    ASSERT_HAS(object);
    const std::string_view view = text;
    ASSERT_OK((*session)->Append(*object, AsBytes(view.substr(0, part)), false, 1));
    ASSERT_OK((*session)->Append(*object, AsBytes(view.substr(part)), false, 2));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    ASSERT_OK(store().SyncNames("threads/" + std::to_string(t), "conformance"));
    EXPECT_TRUE(ReadObject(name) == text);
  });
}

TEST_P(StoreConformance, SyncNamesTakesAnyPrefix) {
  WriteObjects({{"n/e/w/a", "x"}}, false);
  EXPECT_OK(store().SyncNames("n/e/w", "conformance"));
  EXPECT_OK(store().SyncNames("", "conformance"));
  EXPECT_OK(store().SyncNames("missing", "conformance"));
  ASSERT_OK(store().Delete("n/e/w/a"));
  ASSERT_OK(store().PruneDirectories("n"));
  EXPECT_OK(store().SyncNames("n/e/w", "conformance")) << "the prefix is gone";
  EXPECT_OK(store().SyncNames("n", "conformance"));
}

}  // namespace cairn

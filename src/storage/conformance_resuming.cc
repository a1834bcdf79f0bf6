// Going on with what is there: bytes behind others, and objects that were left unfinished.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "storage/append_object.h"
#include "storage/conformance.h"
#include "storage/conformance_checks.h"

namespace cairn {
namespace {

using ::testing::IsEmpty;

/// Writes `bytes` on top of what was left under the name; how many bytes were kept.
Result<std::uint64_t> ResumeObject(Store* store, const std::string& name,
                                   const std::string& bytes) {
  ASSIGN_OR_RETURN(const auto session, store->NewWriteSession(WriteMode::kAuto));
  ASSIGN_OR_RETURN(const std::uint32_t object,
                   session->Open(name, {.bytes = bytes.size(), .resume = true}));
  std::uint64_t kept = 0;
  for (std::size_t at = 0; at < bytes.size(); at += session->part_bytes()) {
    const std::string due = bytes.substr(at, session->part_bytes());
    std::string left(due.size(), '?');
    ASSIGN_OR_RETURN(const bool read,
                     session->ReadLeft(object, std::as_writable_bytes(std::span(left))));
    if (!read || left == due) {
      ASSIGN_OR_RETURN(const bool taken, session->KeepLeft(object, AsBytes(due)));
      if (taken) {
        kept += due.size();
        continue;
      }
    }
    RETURN_IF_ERROR(session->Append(object, AsBytes(due), false, at));
    RETURN_IF_ERROR(session->WaitPart().status());
  }
  RETURN_IF_ERROR(session->Close(object));
  RETURN_IF_ERROR(session->Drain());
  return kept;
}

}  // namespace

TEST_P(StoreConformance, AppendedBytesStandBehindTheOthers) {
  AppendingStore* appending = FindAppending(&store());
  if (appending == nullptr) return;  // an ability that not all have
  EXPECT_EQ(CodeOf(appending->OpenAppend("not/there")), Code::kNotFound);
  EXPECT_EQ(CodeOf(appending->OpenAppend("a/../b")), Code::kInvalidArgument);
  ASSERT_TRUE(store().Create("log/a b+ü", "").ok());
  EXPECT_EQ(CodeOf(appending->OpenAppend("log")), Code::kNotFound) << "that is a directory";
  std::string content;
  for (int opening = 0; opening < 2; ++opening) {
    auto object = appending->OpenAppend("log/a b+ü");
    ASSERT_TRUE(object.ok()) << object.status().ToString();
    EXPECT_EQ((*object)->bytes(), content.size());
    EXPECT_TRUE((*object)->Sync("nothing was appended").ok());
    for (const std::size_t bytes : {std::size_t{5}, std::size_t{0}, std::size_t{200'000}}) {
      const std::string more = Pattern(bytes, bytes + static_cast<std::size_t>(opening));
      const Status appended = (*object)->Append(more);
      ASSERT_TRUE(appended.ok()) << appended.ToString();
      content += more;
      EXPECT_EQ((*object)->bytes(), content.size());
      // At once, and for another process too.
      EXPECT_EQ(*OpenAnother()->Get("log/a b+ü", kNoLimit), content);
    }
    const Status synced = (*object)->Sync("the test");
    EXPECT_TRUE(synced.ok() || synced.Is(Code::kUnimplemented)) << synced.ToString();
  }
  EXPECT_EQ(store().Stat("log/a b+ü")->bytes, content.size());
}

TEST_P(StoreConformance, WhatWasLeftUnfinishedIsResumed) {
  if (!store().traits().resumes) return;  // an ability that not all have
  const std::string name = "checkpoint_1/a b+ü";
  const auto leave = [&](const std::string& bytes, std::size_t parts) {
    const auto other = OpenAnother();
    auto session = other->NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    (*session)->LeaveUnfinished(true);
    const auto object = (*session)->Open(name, {.bytes = bytes.size()});
    ASSERT_HAS(object);
    for (std::size_t i = 0; i < parts; ++i) {
      const std::string part = bytes.substr(i * (*session)->part_bytes(), (*session)->part_bytes());
      ASSERT_OK((*session)->Append(*object, AsBytes(part), false, i));
      ASSERT_HAS((*session)->WaitPart());
    }
  };
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string bytes = Pattern(3 * part + 77, 5);

  leave(bytes, 2);
  auto kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject(name) == bytes);
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
  ASSERT_OK(store().Delete(name));

  // What does not have the bytes that belong there is written over.
  std::string other = bytes;
  other[part + 5] ^= 1;
  leave(other, 3);
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject(name) == bytes);
  ASSERT_OK(store().Delete(name));

  // All parts are there, only the end is missing; and nothing is.
  leave(bytes, 4);
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, bytes.size());
  EXPECT_TRUE(ReadObject(name) == bytes);
  ASSERT_OK(store().Delete(name));
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 0u);
  EXPECT_TRUE(ReadObject(name) == bytes);
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
}

TEST_P(StoreConformance, OfWhatWasLeftTwiceTheFullerIsResumed) {
  if (!store().traits().resumes || store().traits().hard_links) return;  // one name, one file
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string bytes = Pattern(3 * part, 7);
  std::vector<std::unique_ptr<WriteSession>> sessions;
  for (const std::size_t parts : {std::size_t{1}, std::size_t{2}, std::size_t{1}}) {
    sessions.push_back(*store().NewWriteSession(WriteMode::kAuto));
    const auto object = sessions.back()->Open("checkpoint_1/a", {.bytes = bytes.size()});
    ASSERT_HAS(object);
    for (std::size_t i = 0; i < parts; ++i) {
      ASSERT_OK(sessions.back()->Append(*object, AsBytes(bytes).subspan(i * part, part), false, i));
      ASSERT_HAS(sessions.back()->WaitPart());
    }
    sessions.back()->LeaveUnfinished(true);
  }
  const auto kept = ResumeObject(&store(), "checkpoint_1/a", bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject("checkpoint_1/a") == bytes);
  // Those that are still alive do no harm to the object, and what they have can be given up.
  sessions.clear();
  ASSERT_OK(store().AbandonUnfinished("checkpoint_1/a"));
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
  EXPECT_TRUE(ReadObject("checkpoint_1/a") == bytes);
}

}  // namespace cairn

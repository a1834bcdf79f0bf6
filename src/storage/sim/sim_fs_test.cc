#include "storage/sim/sim_fs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "storage/sim/test_sim_fs.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- a file system like any other ---

TEST_F(SimFsTest, ReadsBackWhatWasWritten) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("hello")).ok());
  ASSERT_TRUE(file->WriteAt(5000, Bytes("far")).ok());
  const std::string text = Content(fs_, "/a");
  EXPECT_EQ(text.size(), 5003u);
  EXPECT_EQ(text.substr(0, 6), std::string("hello\0", 6));
  EXPECT_EQ(text.substr(5000), "far");
}

TEST_F(SimFsTest, ReadsAreShortOnlyAtTheEnd) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("hello")).ok());
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(*file->ReadAt(0, buffer), 4u);
  EXPECT_EQ(*file->ReadAt(3, buffer), 2u);
  EXPECT_EQ(*file->ReadAt(5, buffer), 0u);
  EXPECT_EQ(*file->ReadAt(500, buffer), 0u);
}

TEST_F(SimFsTest, OpenModesAreHonoured) {
  EXPECT_EQ(fs_.Open("/a", {}).status().code(), Code::kNotFound);
  Create(fs_, "/a");
  EXPECT_EQ(fs_.Open("/a", {.write = true, .create = true, .exclusive = true}).status().code(),
            Code::kAlreadyExists);
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(0, Bytes("hello")).ok());
  ASSERT_TRUE(fs_.Open("/a", {.write = true, .create = true}).ok());
  EXPECT_EQ(Content(fs_, "/a"), "hello");
  ASSERT_TRUE(fs_.Open("/a", {.write = true, .truncate = true}).ok());
  EXPECT_EQ(Content(fs_, "/a"), "");
  auto reader = fs_.Open("/a", {});
  ASSERT_TRUE(reader.ok());
  EXPECT_FALSE((*reader)->WriteAt(0, Bytes("x")).ok());
  EXPECT_FALSE((*reader)->Truncate(3).ok());
}

TEST_F(SimFsTest, TruncationCutsAndGrowsWithZeros) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("hello")).ok());
  ASSERT_TRUE(file->Truncate(2).ok());
  ASSERT_TRUE(file->Truncate(4).ok());
  EXPECT_EQ(Content(fs_, "/a"), std::string("he\0\0", 4));
}

TEST_F(SimFsTest, PathsThroughFilesAndMissingDirectoriesFail) {
  Create(fs_, "/a");
  EXPECT_EQ(fs_.Open("/a/b", {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fs_.Open("/d/b", {.write = true, .create = true}).status().code(), Code::kNotFound);
  EXPECT_EQ(fs_.Stat("/" + std::string(256, 'x')).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fs_.Stat("/a/").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fs_.Stat("").status().code(), Code::kNotFound);
  EXPECT_TRUE(fs_.Stat("//./x/../a").ok());
}

TEST_F(SimFsTest, DirectoriesAreListedSortedAndRemovedOnlyWhenEmpty) {
  ASSERT_TRUE(fs_.MakeDirectory("/d").ok());
  EXPECT_EQ(fs_.MakeDirectory("/d").code(), Code::kAlreadyExists);
  Create(fs_, "/d/b");
  Create(fs_, "/d/a");
  ASSERT_TRUE(fs_.MakeDirectory("/d/c").ok());
  EXPECT_THAT(Names(fs_, "/d"), ElementsAre("a", "b", "c"));
  EXPECT_EQ(fs_.RemoveDirectory("/d").code(), Code::kFailedPrecondition);
  EXPECT_EQ(fs_.RemoveDirectory("/d/a").code(), Code::kInvalidArgument);
  EXPECT_EQ(fs_.Unlink("/d/c").code(), Code::kInvalidArgument);
  ASSERT_TRUE(fs_.Unlink("/d/a").ok());
  ASSERT_TRUE(fs_.Unlink("/d/b").ok());
  ASSERT_TRUE(fs_.RemoveDirectory("/d/c").ok());
  ASSERT_TRUE(fs_.RemoveDirectory("/d").ok());
  EXPECT_EQ(fs_.List("/d").status().code(), Code::kNotFound);
  EXPECT_EQ(fs_.Unlink("/d/a").code(), Code::kNotFound);
}

TEST_F(SimFsTest, LinksShareBytesAndAreCounted) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(fs_.Link("/a", "/b").ok());
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  EXPECT_EQ(Content(fs_, "/b"), "x");
  EXPECT_EQ(fs_.Stat("/b")->links, 2u);
  EXPECT_EQ(fs_.Stat("/b")->inode, fs_.Stat("/a")->inode);
  EXPECT_EQ(fs_.Link("/a", "/b").code(), Code::kAlreadyExists);
  EXPECT_EQ(fs_.Link("/z", "/c").code(), Code::kNotFound);
  ASSERT_TRUE(fs_.Unlink("/a").ok());
  EXPECT_EQ(fs_.Stat("/b")->links, 1u);
}

TEST_F(SimFsTest, LinkLimitAndMissingLinksAreReported) {
  SimFs limited({.max_links = 2});
  Create(limited, "/a");
  ASSERT_TRUE(limited.Link("/a", "/b").ok());
  EXPECT_EQ(limited.Link("/a", "/c").code(), Code::kResourceExhausted);
  SimFs without({.hard_links = false});
  Create(without, "/a");
  EXPECT_EQ(without.Link("/a", "/b").code(), Code::kUnimplemented);
}

TEST_F(SimFsTest, RenameReplacesFiles) {
  ASSERT_TRUE(Create(fs_, "/a")->WriteAt(0, Bytes("a")).ok());
  ASSERT_TRUE(Create(fs_, "/b")->WriteAt(0, Bytes("b")).ok());
  ASSERT_TRUE(fs_.Rename("/a", "/b").ok());
  EXPECT_THAT(Names(fs_, "/"), ElementsAre("b"));
  EXPECT_EQ(Content(fs_, "/b"), "a");
  EXPECT_EQ(fs_.Stat("/b")->links, 1u);
  EXPECT_EQ(fs_.Rename("/zz", "/b").code(), Code::kNotFound);
}

TEST_F(SimFsTest, RenameBetweenDirectoriesMoves) {
  ASSERT_TRUE(fs_.MakeDirectory("/d").ok());
  ASSERT_TRUE(Create(fs_, "/a")->WriteAt(0, Bytes("a")).ok());
  ASSERT_TRUE(fs_.Rename("/a", "/d/a").ok());
  EXPECT_THAT(Names(fs_, "/"), ElementsAre("d"));
  EXPECT_EQ(Content(fs_, "/d/a"), "a");
  EXPECT_EQ(fs_.Rename("/d", "/d/e").code(), Code::kInvalidArgument);
  EXPECT_EQ(fs_.Rename("/d/a", "/d").code(), Code::kFailedPrecondition);
}

TEST_F(SimFsTest, UnlinkedFileStaysReadableWhileOpen) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("still")).ok());
  ASSERT_TRUE(fs_.Unlink("/a").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  std::vector<std::byte> buffer(5);
  EXPECT_EQ(*file->ReadAt(0, buffer), 5u);
  EXPECT_EQ(file->Stat()->links, 0u);
  EXPECT_EQ(Content(fs_, "/a"), kMissing);
}

TEST_F(SimFsTest, UnusedMeansNoOpenHandle) {
  auto file = Create(fs_, "/a");
  EXPECT_FALSE(fs_.IsUnused("/a"));
  file.reset();
  EXPECT_TRUE(fs_.IsUnused("/a"));
  EXPECT_FALSE(fs_.IsUnused("/b"));
}

TEST_F(SimFsTest, LocksExcludeEachOtherAndDieWithTheProcess) {
  auto held = fs_.TryLock("/lock");
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(fs_.TryLock("/lock").status().code(), Code::kUnavailable);
  EXPECT_FALSE(fs_.IsUnused("/lock"));
  auto after_kill = SimFs::FromKill(*fs_.Snapshot());
  EXPECT_TRUE(after_kill->TryLock("/lock").ok());
  held->reset();
  EXPECT_TRUE(fs_.TryLock("/lock").ok());
  SimFs without({.locks = false});
  EXPECT_EQ(without.TryLock("/lock").status().code(), Code::kUnimplemented);
}

TEST_F(SimFsTest, HandlesMayOutliveTheFileSystem) {
  auto fs = std::make_unique<SimFs>();
  auto file = Create(*fs, "/a");
  auto lock = fs->TryLock("/lock");
  auto queue = fs->NewQueue(2);
  fs.reset();
  EXPECT_TRUE(file->WriteAt(0, Bytes("x")).ok());
}

TEST_F(SimFsTest, FullDiskRefusesWritesAndTakesThemAfterAnUnlink) {
  SimFs fs({.capacity = 10});
  auto file = Create(fs, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("123456")).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 4u);
  auto other = Create(fs, "/b");
  EXPECT_EQ(other->WriteAt(0, Bytes("12345")).code(), Code::kResourceExhausted);
  EXPECT_EQ(Content(fs, "/b"), "");
  EXPECT_EQ(other->Allocate(5).code(), Code::kResourceExhausted);
  EXPECT_EQ(other->Truncate(5).code(), Code::kResourceExhausted);
  ASSERT_TRUE(file->WriteAt(0, Bytes("654321")).ok()) << "overwriting needs no space";
  ASSERT_TRUE(fs.Unlink("/a").ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 4u) << "still open";
  file.reset();
  EXPECT_EQ(*fs.FreeBytes("/"), 10u);
  ASSERT_TRUE(other->Allocate(8).ok());
  EXPECT_EQ(other->Stat()->bytes, 0u);
  EXPECT_EQ(*fs.FreeBytes("/"), 2u);
  ASSERT_TRUE(other->WriteAt(0, Bytes("12345")).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 2u);
  ASSERT_TRUE(other->Truncate(3).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 7u);
  fs.SetCapacity(1);
  EXPECT_EQ(*fs.FreeBytes("/"), 0u);
  EXPECT_EQ(other->WriteAt(3, Bytes("x")).code(), Code::kResourceExhausted);
}

TEST_F(SimFsTest, DirectFilesWantAlignedTransfers) {
  auto file = fs_.Open("/a", {.write = true, .create = true, .direct = true});
  ASSERT_TRUE(file.ok());
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, 8192));
  std::fill_n(memory, 8192, std::byte{7});
  EXPECT_TRUE((*file)->WriteAt(4096, {memory, 4096}).ok());
  EXPECT_EQ((*file)->WriteAt(512, {memory, 4096}).code(), Code::kInvalidArgument);
  EXPECT_EQ((*file)->WriteAt(0, {memory, 512}).code(), Code::kInvalidArgument);
  EXPECT_EQ((*file)->WriteAt(0, {memory + 64, 4096}).code(), Code::kInvalidArgument);
  EXPECT_EQ(*(*file)->ReadAt(4096, {memory, 8192}), 4096u);
  std::free(memory);
  SimFs without({.direct = false});
  EXPECT_EQ(without.Open("/a", {.write = true, .create = true, .direct = true}).status().code(),
            Code::kInvalidArgument);
  EXPECT_THAT(Names(without, "/"), IsEmpty()) << "a refused open creates nothing";
}

TEST_F(SimFsTest, WritesFromSeveralThreadsAllArrive) {
  auto file = Create(fs_, "/a");
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string text(100, static_cast<char>('a' + t));
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(file->WriteAt(static_cast<std::uint64_t>(i * 4 + t) * 100, Bytes(text)).ok());
        fs_.Snapshot();
      }
    });
  }
  threads.clear();
  const std::string text = Content(fs_, "/a");
  ASSERT_EQ(text.size(), 20000u);
  for (std::size_t i = 0; i < text.size(); ++i) {
    ASSERT_EQ(text[i], static_cast<char>('a' + (i / 100) % 4));
  }
}

// --- queues ---

TEST_F(SimFsTest, QueueCompletesInOrder) {
  auto file = Create(fs_, "/a");
  auto queue = fs_.NewQueue(3);
  ASSERT_TRUE(queue.ok());
  EXPECT_EQ((*queue)->Wait().status().code(), Code::kInvalidArgument);
  const std::string text = "abc";
  std::vector<std::byte> buffer(8);
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 0, Bytes(text), 7).ok());
  ASSERT_TRUE((*queue)->SubmitRead(file.get(), 0, buffer, 8).ok());
  ASSERT_TRUE((*queue)->SubmitSync(file.get(), "test", 9).ok());
  EXPECT_EQ((*queue)->in_flight(), 3);
  EXPECT_EQ((*queue)->SubmitSync(file.get(), "test", 10).code(), Code::kInvalidArgument);
  auto done = (*queue)->Wait();
  EXPECT_EQ(done->tag, 7u);
  EXPECT_EQ(done->bytes, 3u);
  done = (*queue)->Wait();
  EXPECT_EQ(done->tag, 8u);
  EXPECT_EQ(done->bytes, 3u) << "short at the end of the file";
  EXPECT_EQ((*queue)->Wait()->tag, 9u);
  EXPECT_EQ((*queue)->in_flight(), 0);
}

TEST_F(SimFsTest, QueueReportsFailuresInTheCompletion) {
  SimFs fs({.capacity = 2});
  auto file = Create(fs, "/a");
  auto queue = fs.NewQueue(3);
  const std::string text = "abc";
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 0, Bytes(text), 7).ok());
  auto done = (*queue)->Wait();
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->status.code(), Code::kResourceExhausted);
}

TEST_F(SimFsTest, SeededQueueCompletesInAnotherButRepeatableOrder) {
  const auto order = [&](std::uint64_t seed) {
    SimFs fs({.queue_seed = seed});
    auto file = Create(fs, "/a");
    auto queue = fs.NewQueue(16);
    std::vector<std::uint64_t> tags;
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
      EXPECT_TRUE((*queue)->SubmitSync(file.get(), "test", tag).ok());
    }
    while ((*queue)->in_flight() > 0) tags.push_back((*queue)->Wait()->tag);
    return tags;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  auto tags = order(1);
  EXPECT_FALSE(std::is_sorted(tags.begin(), tags.end()));
  std::sort(tags.begin(), tags.end());
  for (std::uint64_t tag = 0; tag < 16; ++tag) EXPECT_EQ(tags[tag], tag);
}

TEST_F(SimFsTest, SyncCoversOnlyWritesWhoseCompletionWasReturned) {
  Durable(fs_, "/a", "....");
  auto file = OpenForWriting(fs_, "/a");
  auto queue = fs_.NewQueue(4);
  const std::string first = "A", second = "B";
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 0, Bytes(first), 1).ok());
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 1, Bytes(second), 2).ok());
  ASSERT_EQ((*queue)->Wait()->tag, 1u);
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "A...");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "AB..");
  ASSERT_EQ((*queue)->Wait()->tag, 2u);
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "AB..");
}

TEST_F(SimFsTest, AQueuedSyncPromisesNothingBeforeItsCompletionWasReturned) {
  DurableDirectory(fs_, "/d");
  Durable(fs_, "/d/a", "....");
  auto file = OpenForWriting(fs_, "/d/a");
  auto queue = fs_.NewQueue(4);
  ASSERT_TRUE(file->WriteAt(0, Bytes("A")).ok());
  ASSERT_TRUE((*queue)->SubmitSync(file.get(), "test", 1).ok());
  ASSERT_TRUE(fs_.Link("/d/a", "/d/b").ok());
  ASSERT_TRUE((*queue)->SubmitSyncDirectory("/d", "test", 2).ok());
  // These come too late for them.
  ASSERT_TRUE(file->WriteAt(1, Bytes("B")).ok());
  ASSERT_TRUE(fs_.Link("/d/a", "/d/c").ok());
  const auto left = [&] {
    const auto after = Crash(fs_, CrashMode::kForget);
    return Content(*after, "/d/a") + " " + testing::PrintToString(Names(*after, "/d"));
  };
  EXPECT_EQ(left(), ".... { \"a\" }");
  EXPECT_THAT(
      Outcomes(fs_, CrashMode::kSubset, [](SimFs& after) { return Content(after, "/d/a"); }),
      testing::UnorderedElementsAre("....", "A...", ".B..", "AB.."));
  ASSERT_EQ((*queue)->Wait()->tag, 1u);
  EXPECT_EQ(left(), "A... { \"a\" }");
  ASSERT_EQ((*queue)->Wait()->tag, 2u);
  EXPECT_EQ(left(), "A... { \"a\", \"b\" }");
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/d", "test").ok());
  EXPECT_EQ(left(), "AB.. { \"a\", \"b\", \"c\" }");
}

TEST_F(SimFsTest, AQueuedSyncOfWhatWasRemovedMeanwhileIsDone) {
  DurableDirectory(fs_, "/d");
  auto queue = fs_.NewQueue(2);
  auto file = Create(fs_, "/d/a");
  ASSERT_TRUE((*queue)->SubmitSync(file.get(), "test", 1).ok());
  ASSERT_TRUE((*queue)->SubmitSyncDirectory("/d", "test", 2).ok());
  ASSERT_TRUE(fs_.Unlink("/d/a").ok());
  ASSERT_TRUE(fs_.RemoveDirectory("/d").ok());
  for (int i = 0; i < 2; ++i) {
    const auto done = (*queue)->Wait();
    ASSERT_TRUE(done.ok());
    EXPECT_TRUE(done->status.ok()) << done->status.ToString();
  }
  ASSERT_TRUE((*queue)->SubmitSyncDirectory("/d", "test", 3).ok());
  EXPECT_EQ((*queue)->Wait()->status.code(), Code::kNotFound);
}

TEST_F(SimFsTest, WritesThatOutliveAKillAreCoveredByTheNextSync) {
  {
    auto file = Create(fs_, "/a");
    ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
    ASSERT_TRUE(file->WriteAt(0, Bytes("A")).ok());
  }
  const auto again = SimFs::FromKill(*fs_.Snapshot());
  auto other = Create(*again, "/b");
  auto queue = again->NewQueue(8);
  const std::string text = "B";
  for (std::uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE((*queue)->SubmitWrite(other.get(), i, Bytes(text), i).ok());
  }
  ASSERT_TRUE(OpenForWriting(*again, "/a")->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(*again, CrashMode::kForget), "/a"), "A");
}

// --- images ---

TEST_F(SimFsTest, ImageIsNotChangedByLaterOperations) {
  Durable(fs_, "/a", "one");
  const auto image = fs_.Snapshot();
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("two")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  Durable(fs_, "/b", "b");
  auto after = SimFs::FromCrash(*image, CrashMode::kKeep, 0);
  EXPECT_THAT(Names(*after, "/"), ElementsAre("a"));
  EXPECT_EQ(Content(*after, "/a"), "one");
}

TEST_F(SimFsTest, DisksMadeFromOneImageAreIndependent) {
  Durable(fs_, "/a", "one");
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("two")).ok());
  const auto image = fs_.Snapshot();
  auto x = SimFs::FromKill(*image);
  auto y = SimFs::FromKill(*image);
  auto z = SimFs::FromCrash(*image, CrashMode::kForget, 0);
  ASSERT_TRUE(OpenForWriting(*x, "/a")->WriteAt(0, Bytes("xxx")).ok());
  ASSERT_TRUE(OpenForWriting(*z, "/a")->WriteAt(0, Bytes("zzz")).ok());
  ASSERT_TRUE(x->Unlink("/a").ok());
  EXPECT_EQ(Content(*y, "/a"), "two");
  EXPECT_EQ(Content(fs_, "/a"), "two");
  EXPECT_EQ(Content(*z, "/a"), "zzz");
  EXPECT_EQ(Content(*SimFs::FromCrash(*image, CrashMode::kForget, 0), "/a"), "one");
}

TEST_F(SimFsTest, KilledProcessLeavesPendingChangesPending) {
  Durable(fs_, "/a", "old");
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(0, Bytes("new")).ok());
  Create(fs_, "/b");
  auto killed = SimFs::FromKill(*fs_.Snapshot());
  EXPECT_EQ(Content(*killed, "/a"), "new");
  EXPECT_THAT(Names(*killed, "/"), ElementsAre("a", "b"));
  auto crashed = Crash(*killed, CrashMode::kForget);
  EXPECT_EQ(Content(*crashed, "/a"), "old");
  EXPECT_THAT(Names(*crashed, "/"), ElementsAre("a"));
  ASSERT_TRUE(OpenForWriting(*killed, "/a")->Sync("the next process").ok());
  EXPECT_EQ(Content(*Crash(*killed, CrashMode::kForget), "/a"), "new");
}

TEST_F(SimFsTest, WhatSurvivedACrashSurvivesTheNext) {
  ASSERT_TRUE(Create(fs_, "/a")->WriteAt(0, Bytes("x")).ok());
  auto once = Crash(fs_, CrashMode::kKeep);
  EXPECT_EQ(Content(*Crash(*once, CrashMode::kForget), "/a"), "x");
}

TEST_F(SimFsTest, SameSeedSameDisk) {
  for (int i = 0; i < 20; ++i) {
    auto file = Create(fs_, "/f" + std::to_string(i));
    ASSERT_TRUE(file->WriteAt(0, Bytes(std::string(5000, 'x'))).ok());
  }
  const auto image = fs_.Snapshot();
  const auto fingerprint = [&](std::uint64_t seed) {
    auto after = SimFs::FromCrash(*image, CrashMode::kTorn, seed);
    std::string all;
    for (const std::string& name : Names(*after, "/")) {
      all += name + "=" + Content(*after, "/" + name) + ";";
    }
    return all;
  };
  EXPECT_EQ(fingerprint(3), fingerprint(3));
  EXPECT_NE(fingerprint(3), fingerprint(4));
}

TEST_F(SimFsTest, SpaceIsCountedAnewAfterACrash) {
  SimFs fs({.capacity = 100});
  Durable(fs, "/a", "12345");
  ASSERT_TRUE(Create(fs, "/b")->WriteAt(0, Bytes("123")).ok());
  EXPECT_EQ(*fs.FreeBytes("/"), 92u);
  EXPECT_EQ(*Crash(fs, CrashMode::kForget)->FreeBytes("/"), 95u);
  EXPECT_EQ(*Crash(fs, CrashMode::kKeep)->FreeBytes("/"), 92u);
  EXPECT_EQ(*SimFs::FromKill(*fs.Snapshot())->FreeBytes("/"), 92u);
}

// --- hook, ignored syncs, log ---

TEST_F(SimFsTest, HookSeesEveryMutationBeforeItHappens) {
  std::vector<std::string> seen;
  std::vector<std::shared_ptr<const SimImage>> images;
  fs_.SetHook([&](const SimOp& op) {
    seen.push_back(DescribeSimOp(op));
    images.push_back(fs_.Snapshot());
  });
  ASSERT_TRUE(fs_.MakeDirectory("/d").ok());
  auto file = Create(fs_, "/d/a");
  ASSERT_TRUE(file->WriteAt(3, Bytes("xy")).ok());
  ASSERT_TRUE(file->Allocate(10).ok());
  ASSERT_TRUE(file->Truncate(4).ok());
  ASSERT_TRUE(file->Sync("record").ok());
  auto queue = fs_.NewQueue(1);
  const std::string text = "q";
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 0, Bytes(text), 1).ok());
  ASSERT_TRUE(fs_.Link("/d/a", "/d/b").ok());
  ASSERT_TRUE(fs_.Rename("/d/b", "/d/c").ok());
  ASSERT_TRUE(fs_.Unlink("/d/c").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/d", "record name").ok());
  EXPECT_EQ(Content(fs_, "/d/a").size(), 4u);
  EXPECT_TRUE(fs_.Stat("/d").ok());
  EXPECT_EQ(fs_.RemoveDirectory("/d").code(), Code::kFailedPrecondition);
  EXPECT_THAT(seen, ElementsAre("mkdir /d", "create /d/a", "write /d/a 3+2", "allocate /d/a 10",
                                "truncate /d/a 4", "sync /d/a (record)", "write /d/a 0+1",
                                "link /d/a to /d/b", "rename /d/b to /d/c", "unlink /d/c",
                                "sync directory /d (record name)", "rmdir /d"));
  EXPECT_THAT(Names(*SimFs::FromKill(*images[0]), "/"), IsEmpty());
  EXPECT_THAT(Names(*SimFs::FromKill(*images[1]), "/d"), IsEmpty());
  EXPECT_EQ(Content(*SimFs::FromKill(*images[3]), "/d/a"), std::string("\0\0\0xy", 5));
  EXPECT_THAT(Names(*SimFs::FromKill(*images[9]), "/d"), ElementsAre("a", "c"));
  fs_.SetHook(nullptr);
  ASSERT_TRUE(fs_.MakeDirectory("/e").ok());
  EXPECT_EQ(seen.size(), 12u);
}

TEST_F(SimFsTest, IgnoredSyncsDoNothing) {
  fs_.IgnoreSyncs([](const SimSync& sync) {
    return sync.kind == SimSync::Kind::kFile && sync.why == "data" && sync.path == "/a";
  });
  for (const char* path : {"/a", "/b"}) {
    auto file = Create(fs_, path);
    ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
    ASSERT_TRUE(file->Sync("data").ok());
  }
  ASSERT_TRUE(fs_.SyncDirectory("/", "data").ok());
  auto after = Crash(fs_, CrashMode::kForget);
  EXPECT_EQ(Content(*after, "/a"), "");
  EXPECT_EQ(Content(*after, "/b"), "x");
  fs_.IgnoreSyncs([](const SimSync& sync) { return sync.kind == SimSync::Kind::kDirectory; });
  Create(fs_, "/c");
  ASSERT_TRUE(fs_.SyncDirectory("/", "data").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), ElementsAre("a", "b"));
  fs_.IgnoreSyncs(nullptr);
  ASSERT_TRUE(fs_.SyncDirectory("/", "data").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), ElementsAre("a", "b", "c"));
}

TEST_F(SimFsTest, SyncLogNamesEachReasonOnce) {
  for (int i = 0; i < 3; ++i) {
    auto file = Create(fs_, "/f" + std::to_string(i));
    ASSERT_TRUE(file->Sync("data file").ok());
    ASSERT_TRUE(fs_.SyncDirectory("/", "name").ok());
  }
  EXPECT_THAT(fs_.SyncLog(), ElementsAre(SimSync{SimSync::Kind::kFile, "data file", "/f#"},
                                         SimSync{SimSync::Kind::kDirectory, "name", "/"}));
}

TEST(NormalizeSimPath, HidesNumbersAndIds) {
  EXPECT_EQ(NormalizeSimPath("/r/checkpoint_000040-2/parts/rank_3.json"),
            "/r/checkpoint_#-#/parts/rank_#.json");
  EXPECT_EQ(NormalizeSimPath("joins/t0-123e4567-e89b-42d3-a456-426614174000.json"),
            "joins/t#-*.json");
  EXPECT_EQ(NormalizeSimPath(".cairn-tmp-0123456789abcdef"), ".cairn-tmp-*");
  EXPECT_EQ(NormalizeSimPath("deadbeef"), "deadbeef");
}

}  // namespace
}  // namespace cairn

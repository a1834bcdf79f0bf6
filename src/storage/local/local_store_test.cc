#include "storage/local/local_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/local/aligned_buffer.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/sim/faulty_fs.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

std::string Pattern(std::size_t bytes, unsigned seed) {
  std::string out(bytes, '\0');
  std::minstd_rand random(seed + 1);
  for (char& c : out) c = static_cast<char>(random() >> 8);
  return out;
}

void WriteForeign(const std::string& path, std::string_view text) { std::ofstream(path) << text; }

std::vector<std::string> Names(const Listing& listing) {
  std::vector<std::string> names;
  for (const ObjectInfo& object : listing.objects) names.push_back(object.name);
  return names;
}

class LocalStoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<LocalStore> Open(LocalStoreOptions options = {}) {
    if (options.root.empty()) options.root = dir_ / "store";
    options.fs = PosixFs();
    auto store = LocalStore::Open(options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return *std::move(store);
  }
  // All the files below the root, temporary ones too.
  std::vector<std::string> FilesOnDisk() {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "store")) {
      if (!entry.is_directory()) {
        files.push_back(std::filesystem::relative(entry.path(), dir_ / "store"));
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  TempDirectory dir_{GetParam() == std::string("shm") ? "/dev/shm" : ::testing::TempDir()};
};

TEST_P(LocalStoreTest, OpenMakesTheRootWithAllDirectoriesAboveIt) {
  auto store = Open({.root = dir_ / "a/b/c/"});
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "a/b/c"));
  ASSERT_OK(store->Create("x", "1"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "a/b/c/x"));
}

TEST_P(LocalStoreTest, OpenRefusesAFileAndNamesIt) {
  WriteForeign(dir_ / "f", "x");
  for (const std::string& root : {dir_ / "f", dir_ / "f/below"}) {
    auto store = LocalStore::Open({.root = root, .fs = PosixFs()});
    EXPECT_EQ(store.status().code(), Code::kInvalidArgument) << store.status().ToString();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(root));
  }
}

TEST_P(LocalStoreTest, OpenWithoutCreateWantsTheDirectory) {
  auto store = LocalStore::Open({.root = dir_ / "missing", .fs = PosixFs(), .create = false});
  EXPECT_EQ(store.status().code(), Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "missing"));
}

TEST_P(LocalStoreTest, WhatIsNoFileIsNotFound) {
  auto store = Open();
  ASSERT_OK(store->Put("a/file", "one"));
  std::filesystem::create_symlink("circle", dir_ / "store/a/circle");
  ASSERT_EQ(mkfifo((dir_ / "store/a/fifo").c_str(), 0600), 0);
  for (const char* name : {"a/circle", "a/fifo", "a/circle/below", "a/file/below"}) {
    EXPECT_EQ(store->Get(name, 100).status().code(), Code::kNotFound) << name;
    EXPECT_EQ(store->OpenReader(name).status().code(), Code::kNotFound) << name;
  }
}

TEST_P(LocalStoreTest, CreateAdmitsOneOfManyConcurrentCallers) {
  auto store = Open();
  auto other = Open();
  for (int round = 0; round < 10; ++round) {
    const std::string name = "generations/" + std::to_string(round);
    std::atomic<int> winners{0}, losers{0};
    std::string winner;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] {
          const std::string mine = "writer " + std::to_string(i);
          const Status status = (i % 2 == 0 ? store : other)->Create(name, mine);
          if (status.ok()) {
            ++winners;
            winner = mine;
          } else if (status.Is(Code::kAlreadyExists)) {
            ++losers;
          }
        });
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(losers, 5);
    EXPECT_EQ(*store->Get(name, 100), winner);
  }
  EXPECT_EQ(FilesOnDisk().size(), 10u);  // no temporary file stays
}

TEST_P(LocalStoreTest, PutReplacesAndLeavesNoTemporary) {
  auto store = Open();
  ASSERT_OK(store->Put("a/b/x", "one"));
  ASSERT_OK(store->Put("a/b/x", "two"));
  EXPECT_EQ(*store->Get("a/b/x", 100), "two");
  EXPECT_THAT(FilesOnDisk(), ElementsAre("a/b/x"));
}

TEST_P(LocalStoreTest, GetTellsMissingFromTooLarge) {
  auto store = Open();
  ASSERT_OK(store->Put("x", "12345"));
  EXPECT_EQ(store->Get("x", 4).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(*store->Get("x", 5), "12345");
  EXPECT_EQ(store->Get("y", 5).status().code(), Code::kNotFound);
  EXPECT_EQ(store->Get("x/y", 5).status().code(), Code::kNotFound);
  EXPECT_EQ(store->Get("../store/x", 5).status().code(), Code::kInvalidArgument);
}

TEST_P(LocalStoreTest, DirectoriesAreNoObjects) {
  auto store = Open();
  ASSERT_OK(store->Put("d/x", "1"));
  EXPECT_EQ(store->Get("d", 5).status().code(), Code::kNotFound);
  EXPECT_EQ(store->Stat("d").status().code(), Code::kNotFound);
  EXPECT_EQ(store->OpenReader("d").status().code(), Code::kNotFound);
  EXPECT_EQ(store->Delete("d").code(), Code::kNotFound);
  EXPECT_EQ(store->Link("d", "e").code(), Code::kNotFound);
  EXPECT_EQ(store->LinkCount("d").status().code(), Code::kNotFound);
  EXPECT_EQ(store->Stat("d/x/y").status().code(), Code::kNotFound);
  EXPECT_EQ(store->Delete("d/x/y").code(), Code::kNotFound);
}

TEST_P(LocalStoreTest, ListShowsObjectsAndDirectoriesOneLevelDown) {
  auto store = Open();
  ASSERT_OK(store->Put("a/x", "12"));
  ASSERT_OK(store->Put("a/b/y", "1"));
  ASSERT_OK(store->Put("top", "123"));
  WriteForeign(dir_ / "store/a/.cairn-tmp-left", "garbage");
  ASSERT_EQ(symlink("nowhere", (dir_ / "store/a/dangling").c_str()), 0);
  ASSERT_EQ(symlink("round", (dir_ / "store/a/circle").c_str()), 0);
  ASSERT_EQ(symlink("circle", (dir_ / "store/a/round").c_str()), 0);
  auto listing = store->List("a");
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  EXPECT_THAT(listing->unreachable, ElementsAre("a/circle", "a/dangling", "a/round"));
  EXPECT_THAT(Names(*listing), ElementsAre("a/x"));
  EXPECT_EQ(listing->objects[0].bytes, 2u);
  EXPECT_THAT(listing->prefixes, ElementsAre("a/b"));
  EXPECT_THAT(Names(*store->List("")), ElementsAre("top"));
  for (const char* nothing : {"missing", "a/missing/deeper", "top", "top/x"}) {
    auto empty = store->List(nothing);
    ASSERT_TRUE(empty.ok()) << nothing << empty.status().ToString();
    EXPECT_TRUE(empty->objects.empty() && empty->prefixes.empty());
  }
}

TEST_P(LocalStoreTest, PruneRemovesEmptyDirectoriesAndNothingElse) {
  auto store = Open();
  ASSERT_OK(store->Put("c/a/x", "1"));
  ASSERT_OK(store->Put("c/b/y", "1"));
  ASSERT_OK(store->Delete("c/a/x"));
  WriteForeign(dir_ / "store/c/a/.cairn-tmp-left", "of a crash");
  ASSERT_OK(store->PruneDirectories("c"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "store/c/a"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "store/c/b/y"));
  ASSERT_OK(store->Delete("c/b/y"));
  WriteForeign(dir_ / "store/c/foreign", "theirs");
  ASSERT_OK(store->PruneDirectories("c"));
  EXPECT_THAT(FilesOnDisk(), ElementsAre("c/foreign"));
  ASSERT_OK(store->PruneDirectories("missing"));
  ASSERT_OK(store->PruneDirectories("c/foreign"));
  ASSERT_OK(store->SyncNames("c", "test"));
  ASSERT_OK(store->PruneDirectories(""));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "store"));
}

TEST_P(LocalStoreTest, LinkGivesASecondNameToTheSameBytes) {
  auto store = Open();
  ASSERT_OK(store->Put("a/x", "1"));
  ASSERT_OK(store->Link("a/x", "b/c/x"));
  EXPECT_EQ(*store->LinkCount("a/x"), 2u);
  EXPECT_EQ(store->Link("a/x", "b/c/x").code(), Code::kAlreadyExists);
  EXPECT_EQ(store->Link("a/none", "b/c/y").code(), Code::kNotFound);
  ASSERT_OK(store->Delete("a/x"));
  EXPECT_EQ(*store->Get("b/c/x", 10), "1");
  ASSERT_OK(store->SyncNames("", "test"));
}

TEST_P(LocalStoreTest, MoveToPoolWantsTheOnlyNameAndNoReader) {
  auto store = Open();
  ASSERT_OK(store->Put("c/x", "1"));
  ASSERT_OK(store->Link("c/x", "d/x"));
  EXPECT_FALSE(*store->MoveToPool("c/x", "pool/1/x"));
  ASSERT_OK(store->Delete("d/x"));
  {
    auto reader = store->OpenReader("c/x");
    ASSERT_TRUE(reader.ok());
    EXPECT_FALSE(*store->MoveToPool("c/x", "pool/1/x"));
    EXPECT_TRUE(store->Stat("c/x").ok());
  }
  if (!PosixFs()->IsUnused(dir_ / "store/c/x")) GTEST_SKIP() << "no leases here";
  EXPECT_TRUE(*store->MoveToPool("c/x", "pool/1/x"));
  EXPECT_EQ(store->Stat("c/x").status().code(), Code::kNotFound);
  EXPECT_EQ(*store->Get("pool/1/x", 10), "1");
  EXPECT_EQ(store->MoveToPool("c/x", "pool/1/y").status().code(), Code::kNotFound);
  ASSERT_OK(store->Put("c/y", "2"));
  EXPECT_EQ(store->MoveToPool("c/y", "pool/1/x").status().code(), Code::kAlreadyExists);
}

TEST_P(LocalStoreTest, LocksExcludeOtherStoresOfTheProcess) {
  auto store = Open();
  auto other = Open();
  auto lock = store->TryLock("generations/lock");
  ASSERT_TRUE(lock.ok()) << lock.status().ToString();
  EXPECT_EQ(other->TryLock("generations/lock").status().code(), Code::kUnavailable);
  lock->reset();
  EXPECT_TRUE(other->TryLock("generations/lock").ok());
}

TEST_P(LocalStoreTest, FreeBytesAndRefreshWork) {
  auto store = Open();
  EXPECT_GT(**store->FreeBytes(), 0u);
  ASSERT_OK(store->Refresh(""));
  ASSERT_OK(store->Refresh("missing"));
}

TEST_P(LocalStoreTest, AReaderReadsOnAfterItsNameIsGone) {
  auto store = Open();
  const std::string text = Pattern(100000, 1);
  ASSERT_OK(store->Put("x", text));
  auto reader = store->OpenReader("x");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->bytes(), text.size());
  ASSERT_OK(store->Delete("x"));
  std::string back(1000, '\0');
  ASSERT_OK((*reader)->Read(5000, std::as_writable_bytes(std::span(back))));
  EXPECT_EQ(back, text.substr(5000, 1000));
  EXPECT_EQ((*reader)->Read(99500, std::as_writable_bytes(std::span(back))).code(),
            Code::kCorruption);
  EXPECT_EQ(store->OpenReader("x").status().code(), Code::kNotFound);
}

// Reads `reader` in ranges of `range` bytes through the queue.
std::string ReadThrough(ReadQueue* queue, ObjectReader* reader, std::size_t range,
                        std::size_t skew) {
  const std::size_t rounded = (reader->bytes() + range - 1) / range * range;
  AlignedBuffer memory(rounded + 4096);
  const std::span<std::byte> into = memory.span().subspan(skew, rounded);
  std::size_t total = 0;
  const auto wait = [&] {
    auto done = queue->Wait();
    EXPECT_TRUE(done.ok() && done->status.ok()) << done->status.ToString();
    total += done->bytes;
  };
  for (std::uint64_t offset = 0; offset < reader->bytes(); offset += range) {
    if (queue->in_flight() == queue->depth()) wait();
    EXPECT_TRUE(queue->Submit(reader, offset, into.subspan(offset, range), offset).ok());
  }
  while (queue->in_flight() > 0) wait();
  EXPECT_EQ(total, reader->bytes());
  return {reinterpret_cast<const char*>(into.data()), reader->bytes()};
}

TEST_P(LocalStoreTest, ReadQueueGivesTheSameBytesInEveryModeAndAlignment) {
  const std::string text = Pattern((5u << 20) + 12345, 2);
  ASSERT_OK(Open()->Put("x", text));
  for (const ReadMode mode : {ReadMode::kAuto, ReadMode::kDirect, ReadMode::kBuffered}) {
    auto store = Open({.read_mode = mode});
    auto reader = store->OpenReader("x");
    ASSERT_TRUE(reader.ok());
    auto queue = store->NewReadQueue(3);
    ASSERT_TRUE(queue.ok());
    for (const std::size_t skew : {0u, 64u}) {
      for (const std::size_t range : {1u << 20, 4096u * 3, (1u << 20) + 100, 777777u}) {
        EXPECT_TRUE(ReadThrough(queue->get(), reader->get(), range, skew) == text)
            << range << " " << skew;
      }
    }
    EXPECT_EQ((*queue)->Wait().status().code(), Code::kInvalidArgument);
  }
}

TEST_P(LocalStoreTest, ADirectReadNeverFollowsTheNameToAnotherFile) {
  auto store = Open({.read_mode = ReadMode::kDirect});
  const std::string text = Pattern(1 << 20, 3);
  ASSERT_OK(store->Put("x", text));
  auto reader = store->OpenReader("x");
  ASSERT_OK(store->Put("x", Pattern(1 << 20, 4)));
  auto queue = store->NewReadQueue(2);
  EXPECT_TRUE(ReadThrough(queue->get(), reader->get(), 1 << 18, 0) == text);
}

// ---------------------------------------------------------------------------------------------
// Write sessions

struct Memory {
  explicit Memory(const std::string& text, std::size_t skew = 0)
      : buffer((text.size() + skew + 8191) / 4096 * 4096), text(text), skew(skew) {
    std::memcpy(buffer.span().data() + skew, text.data(), text.size());
  }
  std::span<const std::byte> Part(std::size_t offset, std::size_t bytes) const {
    return buffer.span().subspan(skew + offset, bytes);
  }
  AlignedBuffer buffer;
  std::string text;
  std::size_t skew;
};

// Appends the whole memory to a new object and closes it.
Status WriteObject(WriteSession* session, const std::string& name, const Memory& memory,
                   bool padded, const std::string& reuse = "") {
  auto id = session->Open(name, {.bytes = memory.text.size(), .reuse = reuse});
  if (!id.ok()) return id.status();
  for (std::size_t at = 0; at < memory.text.size(); at += session->part_bytes()) {
    const std::size_t bytes = std::min(session->part_bytes(), memory.text.size() - at);
    const Status appended = session->Append(*id, memory.Part(at, bytes), padded, at);
    if (!appended.ok()) return appended;
  }
  return session->Close(*id);
}

TEST_P(LocalStoreTest, SessionsWriteEverySizeAndAlignmentInEveryMode) {
  for (const WriteMode mode : {WriteMode::kAuto, WriteMode::kDirect, WriteMode::kBuffered}) {
    auto store = Open({.part_bytes = 256 << 10, .queue_depth = 3});
    auto session = store->NewWriteSession(mode);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    std::vector<std::pair<std::string, Memory>> objects;
    unsigned seed = 0;
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{5000},
          std::size_t{1 << 20}, std::size_t{(1 << 20) + 1}, std::size_t{(3 << 20) - 4096},
          std::size_t{(3 << 20) + 12345}}) {
      for (const std::size_t skew : {0u, 64u}) {
        ++seed;
        const std::string name = "m" + std::to_string(static_cast<int>(mode)) + "/d" +
                                 std::to_string(seed % 3) + "/" + std::to_string(seed);
        objects.emplace_back(name, Memory(Pattern(bytes, seed), skew));
      }
    }
    for (const auto& [name, memory] : objects) {
      ASSERT_OK(WriteObject(session->get(), name, memory, memory.skew == 0));
    }
    ASSERT_OK((*session)->Drain());
    ASSERT_OK(store->SyncNames("", "test"));
    for (const auto& [name, memory] : objects) {
      auto got = store->Get(name, 10 << 20);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      EXPECT_TRUE(*got == memory.text) << name << " " << memory.text.size();
    }
  }
}

TEST_P(LocalStoreTest, EveryPartIsGivenBackOnce) {
  auto store = Open({.part_bytes = 1 << 20, .queue_depth = 2});
  auto session = store->NewWriteSession(WriteMode::kDirect);
  const Memory memory(Pattern(5 << 20, 9));
  auto id = (*session)->Open("x", {.bytes = memory.text.size()});
  ASSERT_TRUE(id.ok());
  EXPECT_EQ((*session)->WaitPart().status().code(), Code::kInvalidArgument);
  std::vector<std::uint64_t> tags;
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_OK((*session)->Append(*id, memory.Part(i << 20, 1 << 20), true, 100 + i));
  }
  ASSERT_OK((*session)->Close(*id));
  for (int i = 0; i < 5; ++i) tags.push_back(*(*session)->WaitPart());
  std::sort(tags.begin(), tags.end());
  EXPECT_THAT(tags, ElementsAre(100, 101, 102, 103, 104));
  EXPECT_EQ((*session)->WaitPart().status().code(), Code::kInvalidArgument);
  ASSERT_OK((*session)->Drain());
}

TEST_P(LocalStoreTest, SessionsMayInterleaveObjects) {
  auto store = Open({.part_bytes = 64 << 10, .queue_depth = 2});
  auto session = store->NewWriteSession(WriteMode::kDirect);
  std::vector<Memory> memories;
  std::vector<std::uint32_t> ids;
  for (unsigned i = 0; i < 6; ++i) {
    memories.emplace_back(Pattern((1 << 20) + i * 1000, i));
    auto id = (*session)->Open("x" + std::to_string(i), {.bytes = memories[i].text.size()});
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  for (std::size_t at = 0; at < (1 << 20) + 5000; at += 64 << 10) {
    for (unsigned i = 0; i < 6; ++i) {
      if (at >= memories[i].text.size()) continue;
      const std::size_t bytes = std::min<std::size_t>(64 << 10, memories[i].text.size() - at);
      ASSERT_OK((*session)->Append(ids[i], memories[i].Part(at, bytes), true, 0));
    }
  }
  for (const std::uint32_t id : ids) ASSERT_OK((*session)->Close(id));
  ASSERT_OK((*session)->Drain());
  for (unsigned i = 0; i < 6; ++i) {
    EXPECT_TRUE(*store->Get("x" + std::to_string(i), 10 << 20) == memories[i].text);
  }
}

TEST_P(LocalStoreTest, ATakenNameIsNotReplaced) {
  auto store = Open();
  ASSERT_OK(store->Put("x", "old"));
  auto session = store->NewWriteSession(WriteMode::kAuto);
  EXPECT_EQ((*session)->Open("x", {.bytes = 3}).status().code(), Code::kAlreadyExists);
  ASSERT_OK(store->Put("pool/1", "pooled"));
  auto reusing = store->NewWriteSession(WriteMode::kAuto);
  EXPECT_EQ((*reusing)->Open("x", {.bytes = 3, .reuse = "pool/1"}).status().code(),
            Code::kAlreadyExists);
  EXPECT_EQ(*store->Get("x", 10), "old");
}

TEST_P(LocalStoreTest, MisuseCondemnsTheSession) {
  auto store = Open({.part_bytes = 4096});
  const Memory memory(Pattern(8192, 1));
  {
    auto session = store->NewWriteSession(WriteMode::kAuto);
    auto id = (*session)->Open("a", {.bytes = 8192});
    EXPECT_EQ((*session)->Append(*id, memory.Part(0, 100), false, 0).code(),
              Code::kInvalidArgument);  // not the last and not whole
    EXPECT_EQ((*session)->Drain().code(), Code::kInvalidArgument);
  }
  {
    auto session = store->NewWriteSession(WriteMode::kAuto);
    auto id = (*session)->Open("b", {.bytes = 4096});
    ASSERT_OK((*session)->Append(*id, memory.Part(0, 4096), false, 0));
    EXPECT_FALSE((*session)->Append(*id, memory.Part(0, 1), false, 0).ok());  // beyond the size
  }
  {
    auto session = store->NewWriteSession(WriteMode::kAuto);
    auto id = (*session)->Open("c", {.bytes = 8192});
    EXPECT_FALSE((*session)->Close(*id).ok());  // not complete
    EXPECT_FALSE((*session)->Open("d", {.bytes = 1}).ok());
  }
}

TEST_P(LocalStoreTest, APooledFileIsWrittenOverLargerAndSmaller) {
  for (const std::size_t bytes :
       {std::size_t{1 << 20}, std::size_t{(2 << 20) + 77}, std::size_t{3 << 20},
        std::size_t{(5 << 20) + 1}, std::size_t{100}}) {
    auto store = Open({.part_bytes = 1 << 20});
    const std::string pooled = "pool/7/" + std::to_string(bytes);
    ASSERT_OK(store->Put(pooled, Pattern(3 << 20, 5)));
    const auto inode = PosixFs()->Stat(dir_ / ("store/" + pooled))->inode;
    auto session = store->NewWriteSession(WriteMode::kDirect);
    const Memory memory(Pattern(bytes, 6));
    const std::string name = "new/" + std::to_string(bytes);
    ASSERT_OK(WriteObject(session->get(), name, memory, true, pooled));
    ASSERT_OK((*session)->Drain());
    EXPECT_TRUE(*store->Get(name, 10 << 20) == memory.text);
    EXPECT_EQ(PosixFs()->Stat(dir_ / ("store/" + name))->inode, inode);
    EXPECT_EQ(store->Stat(pooled).status().code(), Code::kNotFound);
  }
}

TEST_P(LocalStoreTest, AVanishedOrLinkedPoolFileIsLeftAlone) {
  auto store = Open();
  auto session = store->NewWriteSession(WriteMode::kAuto);
  const Memory memory(Pattern(2 << 20, 6));
  ASSERT_OK(WriteObject(session->get(), "n/a", memory, true, "pool/none"));
  ASSERT_OK(store->Put("pool/linked", "precious"));
  ASSERT_OK(store->Link("pool/linked", "backup"));
  ASSERT_OK(WriteObject(session->get(), "n/b", memory, true, "pool/linked"));
  ASSERT_OK((*session)->Drain());
  EXPECT_TRUE(*store->Get("n/a", 10 << 20) == memory.text);
  EXPECT_TRUE(*store->Get("n/b", 10 << 20) == memory.text);
  EXPECT_EQ(*store->Get("backup", 100), "precious");
}

TEST_P(LocalStoreTest, AutoComparesBothWaysOnceAndRemembers) {
  auto store =
      Open({.part_bytes = 64 << 10, .trial_from_bytes = 1 << 20, .trial_stretch_bytes = 256 << 10});
  EXPECT_EQ(store->chosen_write_mode(), WriteMode::kAuto);
  auto session = store->NewWriteSession(WriteMode::kAuto);
  const Memory memory(Pattern((5 << 20) + 100, 6));
  ASSERT_OK(WriteObject(session->get(), "a", memory, true));
  ASSERT_OK(WriteObject(session->get(), "b", memory, true));
  ASSERT_OK((*session)->Drain());
  if (store->traits().direct_io) {
    EXPECT_NE(store->chosen_write_mode(), WriteMode::kAuto);
  }
  EXPECT_TRUE(*store->Get("a", 10 << 20) == memory.text);
  EXPECT_TRUE(*store->Get("b", 10 << 20) == memory.text);
}

TEST_P(LocalStoreTest, DirectIoRefusedByTheFirstWriteOrReadIsDoneThroughTheCache) {
  FaultyFs fs(PosixFs());
  auto store = LocalStore::Open({.root = dir_ / "store",
                                 .fs = &fs,
                                 .write_mode = WriteMode::kDirect,
                                 .read_mode = ReadMode::kDirect,
                                 .part_bytes = 1 << 20});
  ASSERT_TRUE(store.ok());
  const Memory memory(Pattern(3 << 20, 6));
  const FsFault refusal{.failure = FsFailure::kStatus, .status = InvalidArgumentError("refused")};
  FsFault write = refusal;
  write.trigger.kind = FsOpKind::kWrite;
  fs.Arm(write);
  {
    auto session = (*store)->NewWriteSession(WriteMode::kDirect);
    ASSERT_OK(WriteObject(session->get(), "x", memory, true));
    ASSERT_OK((*session)->Drain());
  }
  EXPECT_FALSE((*store)->traits().direct_io);
  fs.Disarm();
  EXPECT_TRUE(*(*store)->Get("x", 10 << 20) == memory.text);
  for (const std::size_t skew : {0u, 64u}) {
    FsFault read = refusal;
    read.trigger.kind = FsOpKind::kRead;
    fs.Arm(read);
    auto reader = (*store)->OpenReader("x");
    auto queue = (*store)->NewReadQueue(2);
    EXPECT_TRUE(ReadThrough(queue->get(), reader->get(), 1 << 20, skew) == memory.text);
    fs.Disarm();
  }
}

TEST_P(LocalStoreTest, APreparedObjectAppearsWhenItIsCreatedAndNotBefore) {
  auto store = Open();
  auto session = store->NewWriteSession(WriteMode::kAuto);
  auto prepared = (*session)->Prepare("c/manifest.json", "text");
  ASSERT_OK(prepared.status());
  EXPECT_EQ(store->Stat("c/manifest.json").status().code(), Code::kNotFound);
  EXPECT_EQ((*prepared)->Create().code(), Code::kFailedPrecondition) << "it may not be durable yet";
  ASSERT_OK((*session)->Drain());
  session->reset();
  EXPECT_EQ(store->Stat("c/manifest.json").status().code(), Code::kNotFound);
  ASSERT_OK((*prepared)->Create());
  EXPECT_EQ(*store->Get("c/manifest.json", 100), "text");
  EXPECT_EQ((*prepared)->Create().code(), Code::kFailedPrecondition);
  prepared->reset();
  EXPECT_THAT(FilesOnDisk(), ElementsAre("c/manifest.json"));
}

TEST_P(LocalStoreTest, APreparedObjectReplacesNothing) {
  auto store = Open();
  auto session = store->NewWriteSession(WriteMode::kAuto);
  auto prepared = (*session)->Prepare("x", "second");
  ASSERT_OK((*session)->Drain());
  ASSERT_OK(store->Create("x", "first"));
  EXPECT_EQ((*prepared)->Create().code(), Code::kAlreadyExists);
  EXPECT_EQ(*store->Get("x", 100), "first");
  EXPECT_THAT(FilesOnDisk(), ElementsAre("x"));
}

TEST_P(LocalStoreTest, APreparedObjectThatIsDroppedLeavesNothing) {
  auto store = Open();
  auto session = store->NewWriteSession(WriteMode::kAuto);
  {
    auto dropped = (*session)->Prepare("x", "text");
  }
  EXPECT_THAT(FilesOnDisk(), IsEmpty());
  ASSERT_OK((*session)->Drain());
}

TEST_P(LocalStoreTest, AFailedSyncOfAPreparedObjectOrOfNamesCondemnsTheSession) {
  for (const FsOpKind kind : {FsOpKind::kSync, FsOpKind::kSyncDirectory}) {
    FaultyFs fs(PosixFs());
    auto store = LocalStore::Open({.root = dir_ / "store", .fs = &fs});
    auto session = (*store)->NewWriteSession(WriteMode::kAuto);
    ASSERT_OK((*store)->CreateVolatile("d/name", "", AfterCrash::kAnything));
    FsFault fault{.failure = FsFailure::kFailedSync};
    fault.trigger.kind = kind;
    fs.Arm(fault);
    auto prepared = (*session)->Prepare("d/x", "text");
    ASSERT_OK(prepared.status());
    ASSERT_OK((*session)->SyncNames("d", "test"));
    EXPECT_EQ((*session)->Drain().code(), Code::kInternal);
    fs.Disarm();
    EXPECT_EQ((*session)->Drain().code(), Code::kInternal) << "condemned";
    ASSERT_OK((*store)->Delete("d/name"));
  }
}

TEST_P(LocalStoreTest, NamesThatWereSyncedBesideTheDataAreNotSyncedAgain) {
  FaultyFs fs(PosixFs());
  auto store = LocalStore::Open({.root = dir_ / "store", .fs = &fs});
  auto session = (*store)->NewWriteSession(WriteMode::kAuto);
  ASSERT_OK((*store)->CreateVolatile("a/b/name", "", AfterCrash::kAnything));
  ASSERT_OK((*session)->SyncNames("a", "test"));
  ASSERT_OK((*session)->Drain());
  const std::uint64_t syncs = fs.operations(FsOpKind::kSyncDirectory);
  ASSERT_OK((*store)->SyncNames("a", "test"));
  EXPECT_EQ(fs.operations(FsOpKind::kSyncDirectory), syncs);
  ASSERT_OK((*store)->CreateVolatile("a/b/other", "", AfterCrash::kAnything));
  ASSERT_OK((*store)->SyncNames("a", "test"));
  EXPECT_EQ(fs.operations(FsOpKind::kSyncDirectory), syncs + 1);
}

TEST_P(LocalStoreTest, ASessionThatIsDroppedLeavesNothingRunning) {
  auto store = Open({.part_bytes = 1 << 20});
  const Memory memory(Pattern(6 << 20, 6));
  {
    auto session = store->NewWriteSession(WriteMode::kDirect);
    auto id = (*session)->Open("a", {.bytes = memory.text.size()});
    for (std::uint64_t i = 0; i < 4; ++i) {
      ASSERT_OK((*session)->Append(*id, memory.Part(i << 20, 1 << 20), true, i));
    }
  }
  ASSERT_OK(store->Delete("a"));
}

TEST_P(LocalStoreTest, ReadOnlyDirectoriesAreAnErrorOfPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  auto store = Open();
  ASSERT_EQ(chmod((dir_ / "store").c_str(), 0500), 0);
  EXPECT_EQ(store->Create("x", "1").code(), Code::kPermissionDenied);
  ASSERT_EQ(chmod((dir_ / "store").c_str(), 0700), 0);
}

INSTANTIATE_TEST_SUITE_P(Disks, LocalStoreTest, ::testing::Values("tmp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cairn

#include "storage/local/tailed_object.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/sim/faulty_fs.h"

// Objects whose newest bytes stand in a tail. Where the file system has none they are as others,
// and all of this holds too.

namespace cairn {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 30;
constexpr std::uint64_t kRing = 32 << 20;
constexpr char kBegins[] = "begins";

std::string Record(int number) {
  return std::string(100'000 + static_cast<std::size_t>(number) * 37 % 9'000,
                     static_cast<char>('a' + number % 26));
}
std::string Records(int count) {
  std::string all = kBegins;
  for (int i = 0; i < count; ++i) all += Record(i);
  return all;
}

/// Does something in a process that kills itself at the end of it, while its objects live.
void InKilledProcess(const std::function<void()>& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    work();
    _exit(9);  // its objects were closed
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
}

/// Without showing megabytes of it when it is not so.
void ExpectBegins(const std::string& object, const std::string& with) {
  EXPECT_GE(object.size(), with.size());
  EXPECT_TRUE(object.starts_with(with)) << object.substr(0, 20);
}
void ExpectIs(const std::string& object, const std::string& expected) {
  EXPECT_EQ(object.size(), expected.size());
  ExpectBegins(object, expected);
}

class TailedObjectTest : public ::testing::Test {
 protected:
  std::unique_ptr<LocalStore> NewStore(Fs* fs = PosixFs()) {
    return LocalStore::Open({.root = directory_.path(), .fs = fs}).value();
  }
  std::unique_ptr<AppendObject> Open(LocalStore* store, const std::string& name = "d/log") {
    EXPECT_TRUE(store->Create(name, kBegins).ok());
    return store->OpenTailed(name, "d/tail").value();
  }
  std::string Get(const std::string& name = "d/log") {
    return NewStore()->Get(name, kNoLimit).value();
  }
  Status Recover() { return NewStore()->RecoverTail("d/tail"); }
  /// A process that appended the first record to the object and was killed.
  void LeaveTail(const std::string& name = "d/log") {
    InKilledProcess([&] {
      const auto store = NewStore();
      const auto object = Open(store.get(), name);
      if (!object->Append(Record(0)).ok()) _exit(1);
      raise(SIGKILL);
    });
  }

  TempDirectory directory_;
};

TEST_F(TailedObjectTest, WhatWasAppendedOutlivesTheProcess) {
  // More than the ring holds, with syncs between and without.
  for (const int every : {7, 100, 1'000'000}) {
    for (const int count : {1, 50, 330, 700}) {
      const std::string name = "d/log-" + std::to_string(every) + "-" + std::to_string(count);
      InKilledProcess([&] {
        const auto store = NewStore();
        const auto object = Open(store.get(), name);
        for (int i = 0; i < count; ++i) {
          if (!object->Append(Record(i)).ok()) _exit(1);
          if (i % every == every - 1 && !object->Sync("the test").ok()) _exit(1);
        }
        raise(SIGKILL);
      });
      for (int times = 0; times < 2; ++times) {
        ASSERT_TRUE(Recover().ok());
        SCOPED_TRACE(name);
        ExpectIs(Get(name), Records(count));
      }
    }
  }
}

TEST_F(TailedObjectTest, ClosingLeavesAllInTheObject) {
  const auto store = NewStore();
  auto object = Open(store.get());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(object->Append(Record(i)).ok());
  EXPECT_EQ(object->bytes(), Records(20).size());
  object = nullptr;
  ExpectIs(Get(), Records(20));
  ASSERT_TRUE(Recover().ok());
  ExpectIs(Get(), Records(20));
}

TEST_F(TailedObjectTest, SyncsBesideAppendsLoseNothing) {
  const int count = 800;
  {
    const auto store = NewStore();
    const auto object = Open(store.get());
    std::atomic<bool> done = false;
    std::jthread syncs([&] {
      while (!done) EXPECT_TRUE(object->Sync("beside").ok());
    });
    for (int i = 0; i < count; ++i) ASSERT_TRUE(object->Append(Record(i)).ok());
    done = true;
  }
  ExpectIs(Get(), Records(count));
}

TEST_F(TailedObjectTest, MoreThanTheRingAtOnceIsAppended) {
  const std::string huge(2 * kRing + 4711, 'h');
  const auto store = NewStore();
  auto object = Open(store.get());
  ASSERT_TRUE(object->Append(huge).ok());
  ASSERT_TRUE(object->Sync("the test").ok());
  object = nullptr;
  ExpectIs(Get(), kBegins + huge);
}

TEST_F(TailedObjectTest, ATailIsOfOneObject) {
  InKilledProcess([&] {
    const auto store = NewStore();
    const auto first = Open(store.get(), "d/first");
    if (!first->Append(Record(1)).ok() || !first->Sync("the test").ok()) _exit(1);
    const auto second = Open(store.get(), "d/second");
    if (!second->Append(Record(2)).ok()) _exit(1);
    raise(SIGKILL);
  });
  ASSERT_TRUE(Recover().ok());
  ExpectBegins(Get("d/first"), kBegins + Record(1));
  ExpectIs(Get("d/second"), kBegins + Record(2));
}

// As when a journal's thread still syncs a segment that was condemned.
TEST_F(TailedObjectTest, WhoLostTheTailDoesNoHarmToWhoHasIt) {
  InKilledProcess([&] {
    const auto store = NewStore();
    auto first = Open(store.get(), "d/first");
    if (!first->Append(Record(1)).ok() || !first->Sync("the test").ok()) _exit(1);
    if (!first->Append(Record(2)).ok()) _exit(1);
    const auto second = Open(store.get(), "d/second");
    if (!second->Append(Record(3)).ok()) _exit(1);
    first->Sync("too late").IgnoreError("where there is a tail it is another's");
    first = nullptr;
    raise(SIGKILL);
  });
  ASSERT_TRUE(Recover().ok());
  ExpectBegins(Get("d/first"), kBegins + Record(1));
  ExpectIs(Get("d/second"), kBegins + Record(3));
}

TEST_F(TailedObjectTest, ATailThatWasRemovedIsMadeAnew) {
  const auto store = NewStore();
  {
    const auto object = Open(store.get());
    ASSERT_TRUE(object->Append("x").ok());
  }
  ASSERT_TRUE(store->Delete("d/log").ok());
  if (store->Stat("d/tail").ok()) {
    ASSERT_TRUE(store->Delete("d/tail").ok());
  }
  InKilledProcess([&] {
    const auto object = Open(store.get());
    if (!object->Append(Record(0)).ok()) _exit(1);
    raise(SIGKILL);
  });
  ASSERT_TRUE(Recover().ok());
  ExpectIs(Get(), Records(1));
}

TEST_F(TailedObjectTest, ATailOfAnObjectThatWasRemovedIsNothing) {
  InKilledProcess([&] {
    const auto store = NewStore();
    const auto object = Open(store.get());
    if (!object->Append("x").ok()) _exit(1);
    raise(SIGKILL);
  });
  const auto store = NewStore();
  ASSERT_TRUE(store->Delete("d/log").ok());
  EXPECT_TRUE(Recover().ok());
  EXPECT_TRUE(store->RecoverTail("nowhere/tail").ok());
}

// A name may be used again by who has no tail. What was recovered, or has nowhere to go any more,
// is not put into that.
TEST_F(TailedObjectTest, WhatWasDoneWithOnceDoesNotComeBack) {
  for (const bool recovered : {true, false}) {
    LeaveTail();
    if (recovered) {
      ASSERT_TRUE(Recover().ok());
      ExpectIs(Get(), Records(1));
    }
    const auto store = NewStore();
    ASSERT_TRUE(store->Delete("d/log").ok());
    ASSERT_TRUE(Recover().ok());
    const std::string another(200'000, '-');
    ASSERT_TRUE(store->Create("d/log", another).ok());
    ASSERT_TRUE(Recover().ok());
    ExpectIs(Get(), another);
    ASSERT_TRUE(store->Delete("d/log").ok());
  }
}

// A directory that is moved to a file system without tails takes what stands in one along.
TEST_F(TailedObjectTest, ATailIsRecoveredWhereverItStands) {
  LeaveTail();
  ASSERT_EQ(access("/dev/shm", W_OK), 0) << "needs another file system: mount a tmpfs at /dev/shm";
  const TempDirectory elsewhere("/dev/shm");
  std::error_code failed;
  std::filesystem::copy(directory_.path(), elsewhere.path(),
                        std::filesystem::copy_options::recursive, failed);
  ASSERT_FALSE(failed) << failed.message() << ": /dev/shm must have room for 33 MiB";
  const auto store = LocalStore::Open({.root = elsewhere.path(), .fs = PosixFs()}).value();
  ASSERT_TRUE(store->RecoverTail("d/tail").ok());
  ExpectIs(store->Get("d/log", kNoLimit).value(), Records(1));
}

// As copies have: storing into a hole ends the process when the disk is full.
TEST_F(TailedObjectTest, ATailWithHolesGetsItsRoomBeforeItIsUsed) {
  const auto store = NewStore();
  ASSERT_TRUE(store->Create("d/tail", "x").ok());
  const std::string path = directory_ / "d/tail";
  std::filesystem::resize_file(path, 4096 + kRing);
  const auto object = Open(store.get());
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  if (AppendTail::Open(PosixFs(), path).ok()) {
    EXPECT_GE(st.st_blocks * 512, st.st_size);
  }
}

// After a start of the machine the disk has any mixture of what once stood in a tail.
TEST_F(TailedObjectTest, ATailOfAnotherStartOfTheMachineDoesNotCount) {
  InKilledProcess([&] {
    const auto store = NewStore();
    const auto object = Open(store.get());
    if (!object->Append(Record(0)).ok() || !object->Sync("the test").ok()) _exit(1);
    if (!object->Append(Record(1)).ok()) _exit(1);
    raise(SIGKILL);
  });
  {
    // Magic, version, length of the name, begin, end; then the machine's start.
    std::fstream tail(directory_ / "d/tail", std::ios::in | std::ios::out | std::ios::binary);
    if (tail) tail.seekp(32).write("another", 7);
  }
  ASSERT_TRUE(Recover().ok());
  // Behind what was synced there may be zeros, as after a torn append.
  ExpectBegins(Get(), Records(1));
}

// What stands in a tail's head is data from outside: it leads to no other file, and no further than
// the ring. What it may have had was acknowledged, so nobody goes on without a word.
TEST_F(TailedObjectTest, ADamagedHeadTouchesNothingAndIsTold) {
  struct Damage {
    std::streamoff at;
    std::string bytes;
  };
  const std::string huge(8, '\x7f');
  const Damage damages[] = {
      {96, "../"},                  // the name, "dd-log.bin", leads to the neighbour then
      {96, std::string("d\0", 2)},  // the same
      {12, huge.substr(0, 4)},      // the name's length
      {16, huge},                   // begin, beyond the end
      {24, huge},                   // end, further than the ring reaches
      {8, "\x02"},                  // a version to come
  };
  const std::string name = "d/dd-log.bin";
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.at);
    const auto store = NewStore();
    store->Delete(name).IgnoreError("of the damage before");
    store->Delete("log.bin").IgnoreError("of the damage before");
    ASSERT_TRUE(store->Create("log.bin", "a neighbour").ok());
    LeaveTail(name);
    {
      std::fstream tail(directory_ / "d/tail", std::ios::in | std::ios::out | std::ios::binary);
      if (!tail) return;  // no tails on this file system
      tail.seekp(damage.at).write(damage.bytes.data(),
                                  static_cast<std::streamsize>(damage.bytes.size()));
    }
    const Status refused = Recover();
    EXPECT_TRUE(refused.Is(damage.at == 8 ? Code::kFailedPrecondition : Code::kCorruption))
        << refused.ToString();
    EXPECT_NE(refused.ToString().find("d/tail"), std::string::npos) << refused.ToString();
    EXPECT_EQ(Get(name), kBegins);
    EXPECT_EQ(Get("log.bin"), "a neighbour");
  }
}

// As when a disk went away and came back without the machine being started anew: what was written
// past the kernel's cache is there, and of the tail what the kernel had written by then.
TEST_F(TailedObjectTest, ATailThatIsOlderThanItsObjectCutsNothingOff) {
  for (const int syncs : {1, 0}) {
    InKilledProcess([&] {
      const auto store = NewStore();
      const auto object = Open(store.get());
      if (!object->Append(Record(0)).ok()) _exit(1);
      std::filesystem::copy_file(directory_ / "d/tail", directory_ / "d/older");
      if (!object->Append(Record(1)).ok()) _exit(1);
      if (syncs > 0 && !object->Sync("the test").ok()) _exit(1);
      raise(SIGKILL);
    });
    if (!NewStore()->Stat("d/older").ok()) return;  // no tails on this file system
    std::filesystem::rename(directory_ / "d/older", directory_ / "d/tail");
    const Status recovered = Recover();
    EXPECT_EQ(recovered.Is(Code::kCorruption), syncs > 0) << recovered.ToString();
    ExpectBegins(Get(), Records(syncs > 0 ? 2 : 1));
    ASSERT_TRUE(NewStore()->Delete("d/log").ok());
    ASSERT_TRUE(NewStore()->Delete("d/tail").ok());
  }
}

TEST_F(TailedObjectTest, ATailThatBecameShorterIsTold) {
  LeaveTail();
  if (!NewStore()->Stat("d/tail").ok()) return;  // no tails on this file system
  std::filesystem::resize_file(directory_ / "d/tail", 50'000);
  EXPECT_TRUE(Recover().Is(Code::kCorruption)) << Recover().ToString();
  EXPECT_EQ(Get(), kBegins);
}

TEST_F(TailedObjectTest, AFailedSyncCondemnsItForAppendsToo) {
  FaultyFs faulty(PosixFs());
  const auto store = NewStore(&faulty);
  const auto object = Open(store.get());
  ASSERT_TRUE(object->Append("x").ok());
  faulty.Arm({.failure = FsFailure::kFailedSync, .trigger = {.kind = FsOpKind::kSync}});
  EXPECT_FALSE(object->Sync("fails").ok());
  faulty.Disarm();
  EXPECT_FALSE(object->Append("y").ok());
  EXPECT_FALSE(object->Sync("again").ok());
}

TEST_F(TailedObjectTest, AFullDiskCondemnsItAndLosesNothingThatWasAppended) {
  InKilledProcess([&] {
    FaultyFs faulty(PosixFs());
    const auto store = NewStore(&faulty);
    const auto object = Open(store.get());
    if (!object->Append(Record(0)).ok()) _exit(1);
    faulty.Arm({.failure = FsFailure::kShortWrite, .trigger = {.kind = FsOpKind::kWrite}});
    if (object->Sync("fails").ok() && object->Append(Record(1)).ok()) _exit(2);
    faulty.Disarm();
    if (object->Append("y").ok()) _exit(3);
    raise(SIGKILL);
  });
  ASSERT_TRUE(Recover().ok());
  ExpectBegins(Get(), Records(1));
}

}  // namespace
}  // namespace cairn

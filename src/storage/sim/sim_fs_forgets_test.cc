#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/sim/sim_fs.h"
#include "storage/sim/test_sim_fs.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- what a crash forgets: bytes ---

TEST_F(SimFsTest, NothingSyncedNothingLeft) {
  ASSERT_TRUE(Create(fs_, "/a")->WriteAt(0, Bytes("x")).ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), IsEmpty());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "x");
}

TEST_F(SimFsTest, SyncedFileWithoutSyncedNameIsLost) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), IsEmpty());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre(kMissing, "x"));
}

TEST_F(SimFsTest, SyncedNameWithoutSyncedBytesIsAnEmptyFile) {
  ASSERT_TRUE(Create(fs_, "/a")->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "");
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("", "x"));
}

TEST_F(SimFsTest, SyncedFileWithSyncedNameSurvivesEveryCrash) {
  Durable(fs_, "/a", "hello");
  for (const CrashMode mode :
       {CrashMode::kForget, CrashMode::kKeep, CrashMode::kSubset, CrashMode::kTorn}) {
    EXPECT_THAT(Outcomes(fs_, mode, [](SimFs& fs) { return Content(fs, "/a"); }),
                ElementsAre("hello"));
  }
}

TEST_F(SimFsTest, OverwriteWithoutSyncLeavesOldOrNew) {
  Durable(fs_, "/a", "old");
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(0, Bytes("new")).ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "old");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "new");
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("new", "old"));
}

TEST_F(SimFsTest, LostWriteBeforeAKeptOneIsAHole) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  ASSERT_TRUE(file->WriteAt(0, Bytes("a")).ok());
  ASSERT_TRUE(file->WriteAt(1, Bytes("b")).ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("", std::string("\0b", 2), "a", "ab"));
}

TEST_F(SimFsTest, TruncationIsForgottenWithoutSync) {
  Durable(fs_, "/a", "hello");
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(file->Truncate(2).ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "hello");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "he");
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "he");
}

TEST_F(SimFsTest, TruncationOnOpenIsForgottenWithoutSync) {
  Durable(fs_, "/a", "hello");
  ASSERT_TRUE(fs_.Open("/a", {.write = true, .truncate = true}).ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "hello");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "");
}

TEST_F(SimFsTest, SyncCoversWritesOfOtherHandlesOfTheFile) {
  Durable(fs_, "/a", "old");
  auto one = OpenForWriting(fs_, "/a");
  auto two = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(one->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(two->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "new");
}

TEST_F(SimFsTest, SyncOfOneFileLeavesOthersUnsynced) {
  Durable(fs_, "/a", "old");
  Durable(fs_, "/b", "old");
  auto a = OpenForWriting(fs_, "/a");
  auto b = OpenForWriting(fs_, "/b");
  ASSERT_TRUE(a->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(b->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(b->Sync("test").ok());
  auto after = Crash(fs_, CrashMode::kForget);
  EXPECT_EQ(Content(*after, "/a"), "old");
  EXPECT_EQ(Content(*after, "/b"), "new");
}

TEST_F(SimFsTest, AllocationChangesNoBytes) {
  Durable(fs_, "/a", "hello");
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(file->Allocate(1 << 20).ok());
  EXPECT_EQ(Content(fs_, "/a"), "hello");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "hello");
}

TEST_F(SimFsTest, WholeWritesAreNeverTornInSubset) {
  Durable(fs_, "/a", std::string(8192, 'o'));
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(0, Bytes(std::string(8192, 'n'))).ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre(std::string(8192, 'n'), std::string(8192, 'o')));
}

TEST_F(SimFsTest, TornWritesKeepAnySectors) {
  Durable(fs_, "/a", std::string(8192, 'o'));
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(0, Bytes(std::string(8192, 'n'))).ok());
  const auto outcomes =
      Outcomes(fs_, CrashMode::kTorn, [](SimFs& fs) { return Content(fs, "/a"); });
  EXPECT_TRUE(outcomes.contains(std::string(8192, 'o')));
  EXPECT_TRUE(outcomes.contains(std::string(8192, 'n')));
  EXPECT_TRUE(outcomes.contains(std::string(4096, 'n') + std::string(4096, 'o')));
  EXPECT_TRUE(outcomes.contains(std::string(4096, 'o') + std::string(4096, 'n')));
  EXPECT_TRUE(outcomes.contains(std::string(512, 'n') + std::string(7680, 'o')));
  bool scattered = false;
  for (const std::string& text : outcomes) {
    ASSERT_EQ(text.size(), 8192u);
    int changes = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i] == text[i - 1]) continue;
      ++changes;
      ASSERT_EQ(i % 512, 0u) << "a sector is whole";
    }
    scattered = scattered || changes > 2;
  }
  EXPECT_TRUE(scattered);
}

TEST_F(SimFsTest, TornWriteMayExtendTheFileWithZeros) {
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  ASSERT_TRUE(file->WriteAt(0, Bytes("hello")).ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kTorn, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("", std::string(5, '\0'), "hello"));
}

TEST_F(SimFsTest, TornSectorsAreThoseOfTheDisk) {
  Durable(fs_, "/a", std::string(1024, 'o'));
  ASSERT_TRUE(OpenForWriting(fs_, "/a")->WriteAt(500, Bytes(std::string(24, 'n'))).ok());
  const auto outcomes =
      Outcomes(fs_, CrashMode::kTorn, [](SimFs& fs) { return Content(fs, "/a").substr(500, 24); });
  const std::string n12(12, 'n'), o12(12, 'o');
  EXPECT_THAT(outcomes, ElementsAre(n12 + n12, n12 + o12, o12 + n12, o12 + o12));
}

TEST_F(SimFsTest, DroppedWritesReadBackButNeverBecomeDurable) {
  Durable(fs_, "/a", "old....");
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(fs_.DropUnsynced(file.get()).ok());
  EXPECT_EQ(Content(fs_, "/a"), "new....");
  ASSERT_TRUE(file->Sync("a second try").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), "old....");
  ASSERT_TRUE(file->WriteAt(4, Bytes("X")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "old.X..");
  SimFs other;
  EXPECT_EQ(other.DropUnsynced(file.get()).code(), Code::kInvalidArgument);
}

// --- what a crash forgets: names ---

TEST_F(SimFsTest, UnsyncedUnlinkBringsTheNameBack) {
  Durable(fs_, "/a", "x");
  ASSERT_TRUE(fs_.Unlink("/a").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "x");
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kKeep), "/a"), kMissing);
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), kMissing);
}

TEST_F(SimFsTest, LinkOutlivesTheUnlinkOfTheFirstName) {
  DurableDirectory(fs_, "/d");
  DurableDirectory(fs_, "/e");
  Durable(fs_, "/d/a", "x");
  ASSERT_TRUE(fs_.Link("/d/a", "/e/b").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/e/b"), kMissing);
  ASSERT_TRUE(fs_.SyncDirectory("/e", "test").ok());
  ASSERT_TRUE(fs_.Unlink("/d/a").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/d", "test").ok());
  auto after = Crash(fs_, CrashMode::kForget);
  EXPECT_EQ(Content(*after, "/e/b"), "x");
  EXPECT_EQ(Content(*after, "/d/a"), kMissing);
  EXPECT_EQ(after->Stat("/e/b")->links, 1u);
}

TEST_F(SimFsTest, LinkCountsAfterACrashAreThoseOfTheNamesThatSurvived) {
  Durable(fs_, "/a", "x");
  ASSERT_TRUE(fs_.Link("/a", "/b").ok());
  EXPECT_EQ(fs_.Stat("/a")->links, 2u);
  EXPECT_EQ(Crash(fs_, CrashMode::kForget)->Stat("/a")->links, 1u);
  EXPECT_EQ(Crash(fs_, CrashMode::kKeep)->Stat("/a")->links, 2u);
}

TEST_F(SimFsTest, RenameInADirectoryIsOldOrNew) {
  Durable(fs_, "/a", "x");
  ASSERT_TRUE(fs_.Rename("/a", "/b").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), ElementsAre("a"));
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kKeep), "/"), ElementsAre("b"));
  const auto outcomes = Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) {
    std::string all;
    for (const std::string& name : Names(fs, "/")) all += name;
    return all;
  });
  EXPECT_THAT(outcomes, ElementsAre("a", "b"));
}

TEST_F(SimFsTest, RenameOverAFileLeavesOneOfBothWhole) {
  Durable(fs_, "/a", "old");
  auto file = Create(fs_, "/t");
  ASSERT_TRUE(file->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(fs_.Rename("/t", "/a").ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kTorn, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("new", "old"));
}

TEST_F(SimFsTest, RenameOfAnUnsyncedFileMayReplaceByNothing) {
  Durable(fs_, "/a", "old");
  ASSERT_TRUE(Create(fs_, "/t")->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(fs_.Rename("/t", "/a").ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("", "new", "old"));
}

TEST_F(SimFsTest, RenameBetweenDirectoriesIsAChangeOfEach) {
  DurableDirectory(fs_, "/d");
  DurableDirectory(fs_, "/e");
  Durable(fs_, "/d/a", "x");
  ASSERT_TRUE(fs_.Rename("/d/a", "/e/a").ok());
  const auto look = [](SimFs& fs) { return Content(fs, "/d/a") + " " + Content(fs, "/e/a"); };
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, look),
              ElementsAre(kMissing + " " + kMissing, kMissing + " x", "x " + kMissing, "x x"));
  ASSERT_TRUE(fs_.SyncDirectory("/e", "test").ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, look), ElementsAre(kMissing + " x", "x x"));
  ASSERT_TRUE(fs_.SyncDirectory("/d", "test").ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, look), ElementsAre(kMissing + " x"));
}

TEST_F(SimFsTest, EntriesOfADirectoryAreLostWithItsOwnName) {
  ASSERT_TRUE(fs_.MakeDirectory("/d").ok());
  Durable(fs_, "/d/a", "x");
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), IsEmpty());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/d/a"), "x");
}

TEST_F(SimFsTest, SyncOfTheParentKeepsNoEntriesOfTheChild) {
  ASSERT_TRUE(fs_.MakeDirectory("/d").ok());
  auto file = Create(fs_, "/d/a");
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  auto after = Crash(fs_, CrashMode::kForget);
  EXPECT_THAT(Names(*after, "/"), ElementsAre("d"));
  EXPECT_THAT(Names(*after, "/d"), IsEmpty());
}

TEST_F(SimFsTest, UnsyncedRmdirBringsTheDirectoryBack) {
  DurableDirectory(fs_, "/d");
  Durable(fs_, "/d/a", "x");
  ASSERT_TRUE(fs_.Unlink("/d/a").ok());
  ASSERT_TRUE(fs_.RemoveDirectory("/d").ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/d/a"), "x");
  const auto outcomes = Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) {
    return std::string(fs.Stat("/d").ok() ? "d " : "- ") + Content(fs, "/d/a");
  });
  EXPECT_THAT(outcomes, ElementsAre("- " + kMissing, "d " + kMissing, "d x"));
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), IsEmpty());
}

TEST_F(SimFsTest, EachUnsyncedNameMayBeLostByItself) {
  for (const char* path : {"/a", "/b", "/c"}) Create(fs_, path);
  const auto outcomes = Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) {
    std::string all;
    for (const std::string& name : Names(fs, "/")) all += name;
    return all;
  });
  EXPECT_THAT(outcomes, ElementsAre("", "a", "ab", "abc", "ac", "b", "bc", "c"));
}

TEST_F(SimFsTest, PublishByLinkSurvivesTheLossOfTheTemporaryName) {
  auto file = Create(fs_, "/t");
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(fs_.Link("/t", "/a").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  ASSERT_TRUE(fs_.Unlink("/t").ok());
  EXPECT_THAT(Names(*Crash(fs_, CrashMode::kForget), "/"), ElementsAre("a", "t"));
  EXPECT_THAT(Outcomes(fs_, CrashMode::kTorn, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre("x"));
}

TEST_F(SimFsTest, RecreatedNameIsOldNewOrGone) {
  Durable(fs_, "/a", "old");
  ASSERT_TRUE(fs_.Unlink("/a").ok());
  auto file = Create(fs_, "/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_THAT(Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) { return Content(fs, "/a"); }),
              ElementsAre(kMissing, "new", "old"));
}

TEST_F(SimFsTest, RenamedDirectoryIsNeverInTwoPlaces) {
  DurableDirectory(fs_, "/p");
  DurableDirectory(fs_, "/q");
  DurableDirectory(fs_, "/p/d");
  Durable(fs_, "/p/d/a", "x");
  ASSERT_TRUE(fs_.Rename("/p/d", "/q/d").ok());
  const auto outcomes = Outcomes(fs_, CrashMode::kSubset, [](SimFs& fs) {
    return Content(fs, "/p/d/a") + " " + Content(fs, "/q/d/a");
  });
  EXPECT_THAT(outcomes, ElementsAre(kMissing + " " + kMissing, kMissing + " x", "x " + kMissing));
}

TEST_F(SimFsTest, BytesOfAnUnlinkedFileAreThereWhenItsNameComesBack) {
  Durable(fs_, "/a", "old");
  auto file = OpenForWriting(fs_, "/a");
  ASSERT_TRUE(fs_.Unlink("/a").ok());
  ASSERT_TRUE(file->WriteAt(0, Bytes("new")).ok());
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "old");
  ASSERT_TRUE(file->Sync("test").ok());
  file.reset();
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/a"), "new");
}

TEST_F(SimFsTest, InodesNobodyCanReachAreFreed) {
  // Many more than the collector's threshold; each is visited again through its last durable name.
  for (int i = 0; i < 2000; ++i) {
    const std::string path = "/f" + std::to_string(i % 7);
    Durable(fs_, path, "x");
    ASSERT_TRUE(fs_.Unlink(path).ok());
    EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), path), "x");
  }
  EXPECT_EQ(Content(*Crash(fs_, CrashMode::kForget), "/f4"), "x");
}

}  // namespace
}  // namespace cairn

#include "storage/local/dirty_directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Records the directories that are synced, with the reason; everything else is not to be called.
class SyncRecorder final : public Fs {
 public:
  Status SyncDirectory(const std::string& path, std::string_view why) override {
    if (during) during(path);
    if (path == failing) return InternalError("sync");
    if (path == missing) return NotFoundError(path);
    synced.push_back(path + " " + std::string(why));
    return Status::Ok();
  }
  std::vector<std::string> Take() { return std::exchange(synced, {}); }

  Result<std::unique_ptr<FsFile>> Open(const std::string&, OpenMode) override { return No(); }
  Result<std::unique_ptr<IoQueue>> NewQueue(int) override { return No(); }
  Status MakeDirectory(const std::string&) override { return No(); }
  Status RemoveDirectory(const std::string&) override { return No(); }
  Status Unlink(const std::string&) override { return No(); }
  Status Link(const std::string&, const std::string&) override { return No(); }
  Status Rename(const std::string&, const std::string&) override { return No(); }
  Result<FsStat> Stat(const std::string&) override { return No(); }
  Result<std::vector<FsEntry>> List(const std::string&) override { return No(); }
  Result<std::uint64_t> FreeBytes(const std::string&) override { return No(); }
  Result<std::unique_ptr<FsLock>> TryLock(const std::string&) override { return No(); }
  bool IsUnused(const std::string&) override { return false; }
  bool IsNetwork(const std::string&) override { return false; }

  std::vector<std::string> synced;
  std::string failing;
  std::string missing;
  std::function<void(const std::string&)> during;

 private:
  static Status No() { return UnimplementedError("not expected"); }
};

class DirtyDirectoriesTest : public ::testing::Test {
 protected:
  SyncRecorder fs_;
  DirtyDirectories directories_{&fs_, "/r"};
};

TEST_F(DirtyDirectoriesTest, NothingChangedNothingSynced) {
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  EXPECT_TRUE(directories_.SyncPath("a/b", "w", "p").ok());
  EXPECT_THAT(fs_.Take(), IsEmpty());
}

TEST_F(DirtyDirectoriesTest, AChangeSyncsItsDirectoryAndOnceThoseThatLeadToIt) {
  directories_.NamesChanged("a/b");
  EXPECT_TRUE(directories_.SyncPath("a/b", "w", "p").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a/b w", "/r/a p", "/r p"));
  // The names "a" and "a/b" are known to be durable now.
  directories_.NamesChanged("a/b");
  EXPECT_TRUE(directories_.SyncPath("a/b", "w", "p").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a/b w"));
}

TEST_F(DirtyDirectoriesTest, OnlyTheTreeAskedForIsSynced) {
  directories_.NamesChanged("a/b");
  directories_.NamesChanged("a/c");
  directories_.NamesChanged("d");
  EXPECT_TRUE(directories_.SyncTree("a/b", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a/b w", "/r/a w", "/r w"));
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a/c w"));
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/d w"));
}

TEST_F(DirtyDirectoriesTest, NamesThatBeginAlikeAreNotBelowEachOther) {
  directories_.NamesChanged("ab");
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r w"));
}

TEST_F(DirtyDirectoriesTest, AFailedSyncLeavesTheMark) {
  directories_.NamesChanged("a");
  fs_.failing = "/r/a";
  EXPECT_FALSE(directories_.SyncTree("a", "w").ok());
  fs_.failing.clear();
  fs_.synced.clear();
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a w", "/r w"));
}

TEST_F(DirtyDirectoriesTest, AChangeDuringTheSyncIsNotLost) {
  directories_.NamesChanged("a");
  fs_.during = [&](const std::string& path) {
    if (path == "/r/a") directories_.NamesChanged("a");
  };
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  fs_.during = nullptr;
  fs_.synced.clear();
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ::testing::Contains("/r/a w"));
}

TEST_F(DirtyDirectoriesTest, ADirectoryMadeAnewIsSyncedByNameAgain) {
  directories_.NamesChanged("a/b");
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  directories_.Removed("a/b");
  directories_.Made("a/b");
  fs_.synced.clear();
  EXPECT_TRUE(directories_.SyncPath("a/b", "w", "p").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a/b w", "/r/a p"));
}

TEST_F(DirtyDirectoriesTest, TheRemovalOfADirectoryIsSyncedInTheOneAbove) {
  directories_.NamesChanged("a/b");
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  fs_.synced.clear();
  directories_.NamesChanged("a/b");
  directories_.Removed("a/b");
  directories_.Removed("a");
  EXPECT_TRUE(directories_.SyncTree("a/b", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r w"));
}

TEST_F(DirtyDirectoriesTest, ADirectoryThatSomebodyElseRemovedIsNoError) {
  directories_.NamesChanged("a/b");
  fs_.missing = "/r/a/b";
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a w", "/r w"));
  fs_.missing.clear();
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  EXPECT_THAT(fs_.Take(), IsEmpty());
}

TEST_F(DirtyDirectoriesTest, APathMustBeThere) {
  directories_.NamesChanged("a");
  fs_.missing = "/r/a";
  EXPECT_EQ(directories_.SyncPath("a", "w", "p").code(), Code::kNotFound);
}

TEST_F(DirtyDirectoriesTest, ACallerThatSyncsByItselfClearsWhatItHasMarked) {
  directories_.Made("a");
  directories_.NamesChanged("a");
  const auto marked = directories_.MarkedIn("a");
  ASSERT_EQ(marked.size(), 2u);
  EXPECT_EQ(marked[0].directory, "a") << "the deepest first";
  EXPECT_EQ(marked[1].directory, "");
  directories_.Synced(marked[1]);
  directories_.NamesChanged("a");  // after its sync began
  directories_.Synced(marked[0]);
  EXPECT_TRUE(directories_.SyncTree("a", "w").ok());
  EXPECT_THAT(fs_.Take(), ElementsAre("/r/a w"));
}

// A second caller finds no marks while the first one's sync runs; it must wait all the same.
TEST_F(DirtyDirectoriesTest, NobodyReturnsBeforeTheSyncThatCoversThemHasEnded) {
  directories_.NamesChanged("");
  std::atomic<bool> ended{false};
  std::jthread second;
  fs_.during = [&](const std::string&) {
    second = std::jthread([&] {
      EXPECT_TRUE(directories_.SyncTree("", "w").ok());
      EXPECT_TRUE(ended);
    });
    std::this_thread::yield();  // gives it the chance to be wrong
    ended = true;
  };
  EXPECT_TRUE(directories_.SyncTree("", "w").ok());
  second.join();
}

}  // namespace
}  // namespace cairn

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "journal/journal.h"
#include "storage/append_object.h"
#include "storage/forwarding_store.h"
#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"

// A journal whose own thread syncs what was only written, while appends go on.

namespace cairn {
namespace {

/// A local store whose syncs of appended bytes wait until they are let go, and end as they are told
/// to.
class HeldSyncs final : public ForwardingStore, public AppendingStore {
 public:
  explicit HeldSyncs(LocalStore* inner) : ForwardingStore(inner), inner_(inner) {}

  Result<std::unique_ptr<AppendObject>> OpenAppend(const std::string& name) override {
    auto object = inner_->OpenAppend(name);
    if (!object.ok()) return object.status();
    return std::unique_ptr<AppendObject>(std::make_unique<Held>(this, *std::move(object)));
  }
  void Hold() EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    held_ = true;
  }
  /// Those that wait end so; later ones are real.
  void LetGo(Status outcome) EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    held_ = false;
    outcome_ = std::move(outcome);
    changed_.NotifyAll();
  }
  void AwaitSync() EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    while (waiting_ == 0) changed_.Wait(&mu_);
  }

 private:
  class Held final : public AppendObject {
   public:
    Held(HeldSyncs* store, std::unique_ptr<AppendObject> inner)
        : store_(store), inner_(std::move(inner)) {}
    std::uint64_t bytes() const override { return inner_->bytes(); }
    Status Append(std::string_view bytes) override {
      return condemned_ ? InternalError("condemned") : inner_->Append(bytes);
    }
    Status Sync(std::string_view why) override {
      const MutexLock one(&syncing_);  // as the local store's
      const Status outcome = condemned_ ? InternalError("condemned") : store_->Pass();
      if (!outcome.ok()) condemned_ = true;
      return outcome.ok() ? inner_->Sync(why) : outcome;
    }

   private:
    HeldSyncs* const store_;
    const std::unique_ptr<AppendObject> inner_;
    Mutex syncing_;
    std::atomic<bool> condemned_{false};
  };

  Status Pass() EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    if (!held_) return Status::Ok();
    ++waiting_;
    changed_.NotifyAll();
    while (held_) changed_.Wait(&mu_);
    --waiting_;
    return outcome_;
  }

  LocalStore* const inner_;
  Mutex mu_;
  CondVar changed_;
  bool held_ GUARDED_BY(mu_) = false;
  int waiting_ GUARDED_BY(mu_) = 0;
  Status outcome_ GUARDED_BY(mu_);
};

class JournalBesideTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRecord = 100 << 10;
  static constexpr std::uint64_t kMaxUnsynced = 4 << 20;

  std::unique_ptr<Journal> Open(std::uint64_t segment_bytes = 1 << 30) {
    auto journal = Journal::Open({.store = &store_,
                                  .prefix = "log",
                                  .segment_bytes = segment_bytes,
                                  .max_unsynced_bytes = kMaxUnsynced,
                                  .sync_beside = true});
    EXPECT_TRUE(journal.ok()) << journal.status().ToString();
    return *std::move(journal);
  }
  static std::string Record(std::uint64_t number) {
    std::string record = std::to_string(number);
    record.resize(kRecord, static_cast<char>('a' + number % 26));
    return record;
  }
  void Append(Journal* journal, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += kRecord) {
      const auto index = journal->Append(Record(appended_ + 1), Durability::kWritten);
      ASSERT_TRUE(index.ok()) << index.status().ToString();
      EXPECT_EQ(*index, ++appended_);
    }
  }
  void ExpectAll(Journal* journal) {
    std::uint64_t seen = 0;
    const Status replayed = journal->Replay(1, [&](std::uint64_t index, std::string_view record) {
      EXPECT_EQ(index, ++seen);
      EXPECT_TRUE(record == Record(seen)) << seen;
      return Status::Ok();
    });
    EXPECT_TRUE(replayed.ok()) << replayed.ToString();
    EXPECT_EQ(seen, appended_);
  }

  std::size_t Segments() {
    const Listing listing = local_->List("log").value();
    return static_cast<std::size_t>(std::ranges::count_if(
        listing.objects,
        [](const ObjectInfo& object) { return object.name.ends_with(".journal"); }));
  }

  TempDirectory directory_;
  std::unique_ptr<LocalStore> local_ =
      LocalStore::Open({.root = directory_.path(), .fs = PosixFs()}).value();
  HeldSyncs store_{local_.get()};
  std::uint64_t appended_ = 0;
};

TEST_F(JournalBesideTest, AppendsGoOnWhileWhatIsWrittenIsSynced) {
  auto journal = Open();
  store_.Hold();
  Append(journal.get(), kMaxUnsynced / 2);
  store_.AwaitSync();
  const std::uint64_t before = appended_;
  Append(journal.get(), kMaxUnsynced / 4);  // nobody waits
  EXPECT_GT(appended_, before);
  EXPECT_EQ(journal->durable_index(), 0u);
  store_.LetGo(Status::Ok());
  while (journal->durable_index() == 0) std::this_thread::yield();
  EXPECT_LE(journal->durable_index(), appended_);
  ASSERT_TRUE(journal->Sync().ok());
  EXPECT_EQ(journal->durable_index(), appended_);
  ExpectAll(journal.get());
}

TEST_F(JournalBesideTest, AFailedSyncCostsNothingThatWasAppended) {
  {
    auto journal = Open();
    store_.Hold();
    Append(journal.get(), kMaxUnsynced / 2);
    store_.AwaitSync();
    Append(journal.get(), kMaxUnsynced / 4);
    store_.LetGo(InternalError("the disk is ill"));
    // The segment is condemned. What was in it goes into the next one, with the next record or,
    // when that met the failure, with the one after it.
    while (journal->durable_index() == 0) {
      (void)journal->Append(Record(++appended_), Durability::kWritten);
    }
    ASSERT_TRUE(journal->Sync().ok());
    ExpectAll(journal.get());
  }
  EXPECT_GE(Segments(), 2u);
  ExpectAll(Open().get());
}

TEST_F(JournalBesideTest, ALimitIsNotPassedHoweverSlowTheDisk) {
  auto journal = Open();
  store_.Hold();
  Append(journal.get(), kMaxUnsynced - 2 * kRecord);
  store_.AwaitSync();
  std::jthread more([&] { Append(journal.get(), 4 * kRecord); });
  while (journal->last_index() * kRecord < kMaxUnsynced) std::this_thread::yield();
  EXPECT_EQ(journal->durable_index(), 0u);  // it waits for the disk, as all after it
  store_.LetGo(Status::Ok());
  more.join();
  EXPECT_GE(journal->durable_index() * kRecord, kMaxUnsynced / 4);
  ExpectAll(journal.get());
}

TEST_F(JournalBesideTest, SegmentsFollowEachOtherAsWithoutIt) {
  {
    auto journal = Open(kMaxUnsynced);
    std::vector<std::jthread> callers;
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&] {
        const std::string record = Record(0);
        for (int times = 0; times < 150; ++times) {
          ASSERT_TRUE(
              journal->Append(record, times % 50 == 49 ? Durability::kSynced : Durability::kWritten)
                  .ok());
        }
      });
    }
    callers.clear();
    EXPECT_EQ(journal->last_index(), 450u);
  }
  EXPECT_GE(Segments(), 5u);
  auto journal = Open();
  std::uint64_t seen = 0;
  ASSERT_TRUE(journal
                  ->Replay(1,
                           [&](std::uint64_t index, std::string_view record) {
                             EXPECT_EQ(index, ++seen);
                             EXPECT_EQ(record, Record(0));
                             return Status::Ok();
                           })
                  .ok());
  EXPECT_EQ(seen, 450u);
}

// Whatever the level of the next opening: what was only written is there.
TEST_F(JournalBesideTest, WhatWasOnlyWrittenOutlivesTheProcess) {
  for (const bool beside_then : {true, false}) {
    for (const std::uint64_t records : {1, 30, 150, 700}) {
      const std::string prefix = fmt::format("killed-{}-{}", beside_then, records);
      const auto open = [&](bool beside) {
        return Journal::Open({.store = local_.get(),
                              .prefix = prefix,
                              .segment_bytes = 8 << 20,
                              .max_unsynced_bytes = kMaxUnsynced,
                              .sync_beside = beside})
            .value();
      };
      const pid_t pid = fork();
      if (pid == 0) {
        const auto journal = open(true);
        for (std::uint64_t i = 1; i <= records; ++i) {
          if (!journal->Append(Record(i), Durability::kWritten).ok()) _exit(1);
        }
        raise(SIGKILL);
      }
      int status = 0;
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      ASSERT_TRUE(WIFSIGNALED(status)) << status;
      // Twice: what an opening has shown is there for the next.
      for (int times = 0; times < 2; ++times) {
        appended_ = records;
        ExpectAll(open(beside_then).get());
      }
    }
  }
}

// A removal that was killed half way leaves the tail of segments that are gone.
TEST_F(JournalBesideTest, ATailOfALogThatWasRemovedDoesNotComeBack) {
  const auto open = [&](bool beside) {
    return Journal::Open({.store = local_.get(), .prefix = "removed", .sync_beside = beside})
        .value();
  };
  const auto killed = [&](const std::function<void()>& work) {
    const pid_t pid = fork();
    if (pid == 0) {
      work();
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
  };
  killed([&] {
    const auto journal = open(true);
    journal->Append("of the old one", Durability::kWritten).status().IgnoreError("a child");
    raise(SIGKILL);
  });
  ASSERT_TRUE(local_->Delete("removed/000001.journal").ok());
  killed([&] {
    const auto journal = open(false);
    journal->Append(Record(1), Durability::kSynced).status().IgnoreError("a child");
    raise(SIGKILL);
  });
  appended_ = 1;
  ExpectAll(open(false).get());
}

TEST_F(JournalBesideTest, AReplayBesideAppendsShowsWhatWasWrittenBefore) {
  auto journal = Journal::Open({.store = local_.get(), .prefix = "log", .sync_beside = true});
  ASSERT_TRUE(journal.ok());
  for (int times = 0; times < 3; ++times) {
    Append(journal->get(), 5 * kRecord);
    ExpectAll(journal->get());
  }
}

}  // namespace
}  // namespace cairn

#include "journal/journal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "storage/forwarding_store.h"
#include "storage/local/local_store.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/faulty_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

std::unique_ptr<LocalStore> StoreOn(Fs* fs) {
  return LocalStore::Open({.root = "/j", .fs = fs}).value();
}

std::vector<std::string> Contents(Journal* journal, std::uint64_t from = 1) {
  std::vector<std::string> out;
  const Status replayed = journal->Replay(from, [&](std::uint64_t index, std::string_view record) {
    EXPECT_EQ(index, from + out.size());
    out.emplace_back(record);
    return Status::Ok();
  });
  EXPECT_TRUE(replayed.ok()) << replayed.ToString();
  return out;
}

using Texts = std::vector<std::string>;

/// Both ways a store may take a journal.
class JournalTest : public ::testing::TestWithParam<bool> {
 protected:
  JournalTest() {
    if (GetParam()) {
      store_ = StoreOn(&fs_);
    } else {
      store_ = MemoryStore::Open({.object_store = true}).value();
    }
  }
  std::unique_ptr<Journal> Open(std::uint64_t segment_bytes = 16u << 20) {
    auto journal =
        Journal::Open({.store = store_.get(), .prefix = "log", .segment_bytes = segment_bytes});
    EXPECT_TRUE(journal.ok()) << journal.status().ToString();
    return *std::move(journal);
  }
  SimFs fs_;
  std::unique_ptr<Store> store_;
};

TEST_P(JournalTest, RecordsComeBackInOrderAfterReopening) {
  {
    auto journal = Open();
    EXPECT_EQ(journal->last_index(), 0u);
    EXPECT_EQ(journal->Append("a", Durability::kSynced).value(), 1u);
    const std::vector<std::string_view> two = {"bb", ""};
    EXPECT_EQ(journal->Append(two, Durability::kWritten).value(), 3u);
    EXPECT_EQ(Contents(journal.get()), (Texts{"a", "bb", ""}));
  }
  auto journal = Open();
  EXPECT_EQ(journal->last_index(), 3u);
  EXPECT_EQ(journal->durable_index(), 3u);
  EXPECT_EQ(journal->Append("d", Durability::kSynced).value(), 4u);
  EXPECT_EQ(Contents(journal.get()), (Texts{"a", "bb", "", "d"}));
  EXPECT_EQ(Contents(journal.get(), 3), (Texts{"", "d"}));
}

TEST_P(JournalTest, GoesOnInNewSegmentsAndDropsOldOnes) {
  auto journal = Open(200);
  for (int i = 1; i <= 50; ++i) {
    ASSERT_TRUE(journal->Append(std::string(40, 'a'), Durability::kSynced).ok());
  }
  const std::size_t before = store_->List("log").value().objects.size();
  EXPECT_GT(before, 5u);
  EXPECT_EQ(Contents(journal.get()).size(), 50u);
  ASSERT_TRUE(journal->DropBefore(30).ok());
  EXPECT_LT(store_->List("log").value().objects.size(), before);
  EXPECT_EQ(Contents(journal.get(), 30).size(), 21u);
  journal.reset();
  journal = Open(200);
  EXPECT_EQ(journal->last_index(), 50u);
  EXPECT_EQ(Contents(journal.get(), 30).size(), 21u);
  ASSERT_TRUE(journal->DropBefore(1000).ok());
  EXPECT_EQ(journal->Append("x", Durability::kSynced).value(), 51u);
}

TEST_P(JournalTest, ASummaryTakesThePlaceOfRecords) {
  auto journal = Open(200);
  EXPECT_EQ(journal->ReadSummary().value().index, 0u);
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(
        journal->Append(std::string(50, static_cast<char>('a' + i)), Durability::kSynced).ok());
  }
  EXPECT_TRUE(journal->Summarize(21, "x").Is(Code::kInvalidArgument));
  EXPECT_TRUE(journal->Summarize(0, "x").Is(Code::kInvalidArgument));
  const std::size_t before = store_->List("log").value().objects.size();
  ASSERT_TRUE(journal->Summarize(10, "ten").ok());
  ASSERT_TRUE(journal->Summarize(19, "nineteen").ok());
  ASSERT_TRUE(journal->Summarize(19, "nineteen").ok());
  EXPECT_LT(store_->List("log").value().objects.size(), before);
  ASSERT_TRUE(journal->Append("after", Durability::kSynced).ok());
  journal.reset();
  journal = Open(200);
  const Journal::Summary summary = journal->ReadSummary().value();
  EXPECT_EQ(summary.index, 19u);
  EXPECT_EQ(summary.payload, "nineteen");
  EXPECT_EQ(Contents(journal.get(), 20), (Texts{std::string(50, 'a' + 20), "after"}));
  // All of it: the journal goes on behind the summary.
  ASSERT_TRUE(journal->Summarize(21, "all").ok());
  journal.reset();
  journal = Open(200);
  EXPECT_EQ(journal->last_index(), 21u);
  EXPECT_EQ(journal->Append("b", Durability::kSynced).value(), 22u);
  EXPECT_EQ(journal->ReadSummary().value().payload, "all");
}

TEST(JournalDamage, ADamagedSummaryIsNotTakenForNone) {
  TempDirectory directory;
  auto store = OpenLocalStore(directory.path()).value();
  auto journal = Journal::Open({.store = store.get(), .prefix = "log"}).value();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(journal->Append("r", Durability::kSynced).ok());
  ASSERT_TRUE(journal->Summarize(2, "two").ok());
  std::string bytes = store->Get("log/000002.summary", 1000).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(store->Put("log/000002.summary", bytes).ok());
  EXPECT_TRUE(journal->ReadSummary().status().Is(Code::kCorruption));
  EXPECT_TRUE(journal->Summarize(2, "two").Is(Code::kCorruption));
  ASSERT_TRUE(journal->Summarize(3, "three").ok());
  EXPECT_EQ(journal->ReadSummary().value().payload, "three");
}

TEST_P(JournalTest, CallersAtTheSameTimeShareTheWork) {
  auto journal = Open();
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          const auto level = (i + t) % 3 == 0 ? Durability::kWritten : Durability::kSynced;
          const std::string record = std::to_string(t * 1000 + i);
          const auto index = journal->Append(record, level);
          if (!index.ok()) ++failed;
          if (level == Durability::kSynced && journal->durable_index() < *index) ++failed;
        }
      });
    }
  }
  EXPECT_EQ(failed, 0);
  ASSERT_TRUE(journal->Sync().ok());
  EXPECT_EQ(journal->durable_index(), 400u);
  // Each caller's own records are in the order of its calls.
  std::vector<int> next(8, 0);
  for (const std::string& record : Contents(journal.get())) {
    const int number = std::stoi(record);
    EXPECT_EQ(number % 1000, next[number / 1000]++);
  }
}

TEST_P(JournalTest, RefusesNothingAndTooMuch) {
  auto journal = Open();
  EXPECT_TRUE(journal->Append(std::span<const std::string_view>(), Durability::kSynced)
                  .status()
                  .Is(Code::kInvalidArgument));
  const std::string huge(kMaxFramePayload + 1, 'x');
  EXPECT_TRUE(journal->Append(huge, Durability::kSynced).status().Is(Code::kInvalidArgument));
  EXPECT_EQ(journal->last_index(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Stores, JournalTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Appending" : "Objects"; });

TEST(JournalOwner, ASecondOpenerIsTurnedAwayWhereThereAreLocks) {
  SimFs fs;
  auto store = StoreOn(&fs);
  auto journal = Journal::Open({.store = store.get(), .prefix = "log"}).value();
  EXPECT_TRUE(
      Journal::Open({.store = store.get(), .prefix = "log"}).status().Is(Code::kUnavailable));
}

TEST(JournalOwner, WithoutLocksTheSecondOpenerTakesOverAndTheFirstIsFenced) {
  auto store = MemoryStore::Open({.object_store = true}).value();
  auto first = Journal::Open({.store = store.get(), .prefix = "log"}).value();
  ASSERT_TRUE(first->Append("a", Durability::kSynced).ok());
  auto second = Journal::Open({.store = store.get(), .prefix = "log"}).value();
  EXPECT_TRUE(first->Append("lost", Durability::kSynced).status().Is(Code::kAborted));
  EXPECT_TRUE(first->Append("lost", Durability::kWritten).status().Is(Code::kAborted));
  EXPECT_TRUE(first->Sync().Is(Code::kAborted));
  EXPECT_EQ(second->Append("b", Durability::kSynced).value(), 2u);
  EXPECT_EQ(Contents(second.get()), (Texts{"a", "b"}));
}

TEST(JournalOwner, OnAFileSystemWithoutLocksNothingAcknowledgedIsCutOff) {
  SimFs fs({.locks = false});
  auto store = StoreOn(&fs);
  const JournalOptions options{.store = store.get(), .prefix = "log"};
  auto first = Journal::Open(options).value();
  Texts acknowledged;
  const auto append = [&](Journal* journal, const std::string& text, Durability level) {
    const Status status = journal->Append(text, level).status();
    if (status.ok()) acknowledged.push_back(text);
    return status;
  };
  EXPECT_TRUE(append(first.get(), "a", Durability::kSynced).ok());
  EXPECT_TRUE(append(first.get(), "b", Durability::kWritten).ok());
  auto second = Journal::Open(options).value();
  EXPECT_TRUE(append(first.get(), "lost", Durability::kSynced).Is(Code::kAborted));
  EXPECT_TRUE(append(first.get(), "lost too", Durability::kWritten).Is(Code::kAborted));
  EXPECT_TRUE(append(second.get(), "c", Durability::kSynced).ok());
  EXPECT_EQ(Contents(Journal::Open(options).value().get()), acknowledged);
  EXPECT_EQ(acknowledged, (Texts{"a", "b", "c"}));
}

/// Calls a function before each Create.
class BeforeCreate final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::function<void()> hook;
  Status Create(const std::string& name, std::string_view bytes) override {
    if (const auto call = std::exchange(hook, nullptr); call) call();
    return ForwardingStore::Create(name, bytes);
  }
};

TEST(JournalOwner, WhatTheOldOwnerAcknowledgesWhileItIsBeingReplacedCounts) {
  auto memory = MemoryStore::Open({.object_store = true}).value();
  auto first = Journal::Open({.store = memory.get(), .prefix = "log"}).value();
  ASSERT_TRUE(first->Append("a", Durability::kSynced).ok());
  BeforeCreate store(memory.get());
  store.hook = [&] { EXPECT_TRUE(first->Append("b", Durability::kSynced).ok()); };
  auto second = Journal::Open({.store = &store, .prefix = "log"});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(Contents(second->get()), (Texts{"a", "b"}));
  EXPECT_TRUE(first->Append("late", Durability::kSynced).status().Is(Code::kAborted));
}

TEST(JournalDamage, ATornTailIsCutOffForGood) {
  TempDirectory directory;
  auto store = OpenLocalStore(directory.path()).value();
  {
    auto journal = Journal::Open({.store = store.get(), .prefix = "log"}).value();
    ASSERT_TRUE(journal->Append("first", Durability::kSynced).ok());
    ASSERT_TRUE(journal->Append("second", Durability::kSynced).ok());
  }
  const std::string path = directory / "log/000001.journal";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  for (int i = 0; i < 3; ++i) {
    auto journal = Journal::Open({.store = store.get(), .prefix = "log"}).value();
    EXPECT_EQ(journal->torn_bytes() > 0, i == 0);
    EXPECT_EQ(Contents(journal.get()), (Texts{"first"}));
  }
}

TEST(JournalDamage, ADamagedRecordThatWasDurableIsCorruption) {
  TempDirectory directory;
  auto store = OpenLocalStore(directory.path()).value();
  {
    auto journal = Journal::Open({.store = store.get(), .prefix = "log"}).value();
    for (const char* text : {"first", "second", "third"}) {
      ASSERT_TRUE(journal->Append(text, Durability::kSynced).ok());
    }
  }
  std::string bytes = store->Get("log/000001.journal", 1 << 20).value();
  bytes[bytes.find("first")] ^= 1;
  ASSERT_TRUE(store->Put("log/000001.journal", bytes).ok());
  EXPECT_TRUE(
      Journal::Open({.store = store.get(), .prefix = "log"}).status().Is(Code::kCorruption));
}

TEST(JournalDamage, AMissingSegmentIsCorruption) {
  SimFs fs;
  auto store = StoreOn(&fs);
  {
    auto journal =
        Journal::Open({.store = store.get(), .prefix = "log", .segment_bytes = 1}).value();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(journal->Append("x", Durability::kSynced).ok());
  }
  ASSERT_TRUE(store->Delete("log/000002.journal").ok());
  EXPECT_TRUE(
      Journal::Open({.store = store.get(), .prefix = "log"}).status().Is(Code::kCorruption));
}

/// Fails the n-th operation of the disk, for every n, in each way: what was acknowledged is there
/// after the next opening, and the journal itself goes on when the disk does.
TEST(JournalFaults, EveryOperationMayFailAndNothingAcknowledgedIsLost) {
  int failures = 0;
  for (const FsFailure failure :
       {FsFailure::kIoError, FsFailure::kNoSpace, FsFailure::kShortWrite, FsFailure::kFailedSync}) {
    for (std::uint64_t at = 0; at < 120; ++at) {
      SimFs disk;
      FaultyFs faulty(&disk);
      faulty.OnFailedSync([&](FsFile* file) { (void)disk.DropUnsynced(file).ok(); });
      auto store = StoreOn(&faulty);
      std::vector<std::string> acknowledged;
      {
        auto journal = Journal::Open({.store = store.get(), .prefix = "log", .segment_bytes = 300});
        ASSERT_TRUE(journal.ok());
        faulty.Arm({.failure = failure, .trigger = {.at = at}});
        for (int i = 0; i < 20; ++i) {
          const std::string record = std::to_string(i) + std::string(30, '.');
          auto index =
              (*journal)->Append(record, i % 4 == 3 ? Durability::kWritten : Durability::kSynced);
          // The record is in doubt, keeps its number, and the next call brings it home.
          if (!index.ok()) {
            ASSERT_TRUE((*journal)->Sync().ok());
          }
          acknowledged.push_back(record);
        }
        // The last one was only written; this sync may be what fails.
        if (!(*journal)->Sync().ok()) {
          ASSERT_TRUE((*journal)->Sync().ok());
        }
        failures += static_cast<int>(faulty.failures());
        faulty.Disarm();
        ASSERT_EQ(Contents(journal->get()), acknowledged) << at;
      }
      auto crashed = SimFs::FromCrash(*disk.Snapshot(), CrashMode::kForget, 0);
      auto again = StoreOn(crashed.get());
      auto journal = Journal::Open({.store = again.get(), .prefix = "log"});
      ASSERT_TRUE(journal.ok()) << at << " " << journal.status().ToString();
      ASSERT_EQ(Contents(journal->get()), acknowledged) << at;
    }
  }
  EXPECT_GT(failures, 100);
}

TEST(JournalFaults, ALostAnswerIsRecognised) {
  for (std::uint64_t at = 0; at < 12; ++at) {
    auto inner = MemoryStore::Open({.object_store = true}).value();
    FaultyStore store(inner.get());
    auto journal = Journal::Open({.store = &store, .prefix = "log"}).value();
    store.Arm({.status = UnavailableError("the answer was lost"),
               .when = StoreFault::When::kAfter,
               .trigger = {.at = at}});
    std::vector<std::string> acknowledged;
    for (int i = 0; i < 6; ++i) {
      const std::string record = std::to_string(i);
      if (!journal->Append(record, Durability::kSynced).ok() && i % 2 == 0) {
        ASSERT_TRUE(journal->Sync().ok());
      }
      acknowledged.push_back(record);
    }
    ASSERT_TRUE(journal->Sync().ok());
    EXPECT_GE(store.failures(), at < 6 ? 1u : 0u);
    store.Disarm();
    EXPECT_EQ(Contents(journal.get()), acknowledged) << at;
  }
}

}  // namespace
}  // namespace cairn

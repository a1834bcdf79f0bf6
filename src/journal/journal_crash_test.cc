// Crash enumeration of the journal: before every operation that changes the simulated disk the
// power fails, or the process is killed, in every way the disk knows. Whatever was acknowledged
// must then be there, the rest is a prefix of what was appended, and a second opening shows the
// same.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "journal/journal.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

struct Moment {
  std::string next;
  std::shared_ptr<const SimImage> image;
  std::uint64_t synced = 0;
  std::uint64_t written = 0;
};

std::string RecordText(std::uint64_t index) {
  return std::to_string(index) + ":" +
         std::string(index * 37 % 700, static_cast<char>('a' + index % 26));
}

struct World {
  explicit World(SimFs* fs, std::uint64_t seed) : ids(seed) {
    store = LocalStore::Open({.root = "/a/store", .fs = fs, .ids = &ids}).value();
  }
  Result<std::unique_ptr<Journal>> Open() {
    return Journal::Open(
        {.store = store.get(), .prefix = "log", .segment_bytes = 1500, .ids = &ids});
  }
  SeededIds ids;
  std::unique_ptr<LocalStore> store;
};

std::string SummaryText(std::uint64_t index) { return "up to " + std::to_string(index); }

/// Five lives of a journal, with both levels, rotation, dropped segments and summaries.
std::vector<Moment> Record(const SimFs::SyncPredicate& ignore, std::vector<SimSync>* syncs,
                           bool locks = true) {
  std::vector<Moment> moments;
  SimFs fs({.locks = locks});
  fs.IgnoreSyncs(ignore);
  World world(&fs, 1);
  std::uint64_t synced = 0;
  std::uint64_t written = 0;
  fs.SetHook([&](const SimOp& op) {
    moments.push_back({DescribeSimOp(op), fs.Snapshot(), synced, written});
  });
  for (int life = 0; life < 5; ++life) {
    auto journal = world.Open();
    EXPECT_TRUE(journal.ok()) << journal.status().ToString();
    if (!journal.ok()) break;
    synced = written = (*journal)->last_index();
    for (int i = 0; i < 10; ++i) {
      const bool sync = i % 3 != 1;
      const std::uint64_t index =
          (*journal)
              ->Append(RecordText(written + 1), sync ? Durability::kSynced : Durability::kWritten)
              .value();
      written = index;
      if (sync) synced = index;
    }
    if (life == 1) {
      EXPECT_TRUE((*journal)->DropBefore(5).ok());
    }
    if (life >= 2) {
      const std::uint64_t index = life == 2 ? synced - 4 : synced;
      EXPECT_TRUE((*journal)->Summarize(index, SummaryText(index)).ok());
    }
  }
  fs.SetHook(nullptr);
  moments.push_back({"the end", fs.Snapshot(), synced, written});
  if (syncs != nullptr) *syncs = fs.SyncLog();
  return moments;
}

/// What is wrong, or nothing.
std::string Check(SimFs* fs, std::uint64_t must, std::uint64_t* found) {
  World world(fs, 2);
  auto journal = world.Open();
  if (!journal.ok()) return "open: " + journal.status().ToString();
  const auto summary = (*journal)->ReadSummary();
  if (!summary.ok()) return "summary: " + summary.status().ToString();
  if (summary->index > 0 && summary->payload != SummaryText(summary->index)) {
    return "another summary: " + summary->payload;
  }
  std::string wrong;
  std::uint64_t last = summary->index;
  bool first = true;
  const Status replayed =
      (*journal)->Replay(1, [&](std::uint64_t index, std::string_view record) -> Status {
        if (record != RecordText(index)) wrong = "record " + std::to_string(index) + " is another";
        if (summary->index > 0 && first && index > summary->index + 1) {
          wrong = "a gap behind the summary up to " + std::to_string(summary->index);
        }
        first = false;
        last = std::max(last, index);
        return Status::Ok();
      });
  if (!replayed.ok()) return "replay: " + replayed.ToString();
  if (!wrong.empty()) return wrong;
  if (last < must) return "record " + std::to_string(must) + " is lost";
  if (last != (*journal)->last_index()) return "the last record is not shown";
  *found = last;
  return "";
}

std::string Enumerate(const std::vector<Moment>& moments, std::uint64_t seeds, int* worlds) {
  for (const Moment& moment : moments) {
    std::vector<std::pair<std::string, std::unique_ptr<SimFs>>> after;
    after.emplace_back("killed", SimFs::FromKill(*moment.image));
    after.emplace_back("forget", SimFs::FromCrash(*moment.image, CrashMode::kForget, 0));
    after.emplace_back("keep", SimFs::FromCrash(*moment.image, CrashMode::kKeep, 0));
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      after.emplace_back("subset", SimFs::FromCrash(*moment.image, CrashMode::kSubset, seed));
      after.emplace_back("torn", SimFs::FromCrash(*moment.image, CrashMode::kTorn, seed));
    }
    for (auto& [mode, fs] : after) {
      ++*worlds;
      std::uint64_t first = 0;
      std::string wrong =
          Check(fs.get(), mode == "killed" ? moment.written : moment.synced, &first);
      if (wrong.empty()) {
        // What an opening has shown is durable: the power fails right after it.
        auto again = SimFs::FromCrash(*fs->Snapshot(), CrashMode::kForget, 0);
        std::uint64_t second = 0;
        wrong = Check(again.get(), first, &second);
        if (wrong.empty() && second != first) wrong = "the second opening shows another end";
      }
      if (!wrong.empty()) return mode + " before " + moment.next + ": " + wrong;
    }
  }
  return "";
}

TEST(JournalCrash, NothingAcknowledgedIsLostAtAnyMoment) {
  const std::vector<Moment> moments = Record(nullptr, nullptr);
  ASSERT_GT(moments.size(), 100u);
  int worlds = 0;
  EXPECT_EQ(Enumerate(moments, 10, &worlds), "");
  std::cout << moments.size() << " moments, " << worlds << " crashed disks\n";
}

TEST(JournalCrash, NothingAcknowledgedIsLostWhereThereAreNoLocks) {
  const std::vector<Moment> moments = Record(nullptr, nullptr, false);
  ASSERT_GT(moments.size(), 100u);
  int worlds = 0;
  EXPECT_EQ(Enumerate(moments, 3, &worlds), "");
  std::cout << moments.size() << " moments, " << worlds << " crashed disks\n";
}

TEST(JournalCrash, EveryReasonForASyncIsNeeded) {
  std::vector<SimSync> syncs;
  Record(nullptr, &syncs);
  std::set<std::string> reasons;
  for (const SimSync& sync : syncs) reasons.insert(sync.why);
  // A forgotten removal is removed again, and the store's own root and paths are tested with it.
  reasons.erase("dropped segment");
  reasons.erase("store root");
  reasons.erase("record path");
  ASSERT_TRUE(reasons.contains("journal records"));
  for (const std::string& why : reasons) {
    const auto moments = Record([&](const SimSync& sync) { return sync.why == why; }, nullptr);
    int worlds = 0;
    const std::string found = Enumerate(moments, 10, &worlds);
    std::cout << "sync \"" << why << "\" left out: " << found << "\n";
    EXPECT_NE(found, "") << why;
  }
}

}  // namespace
}  // namespace cairn

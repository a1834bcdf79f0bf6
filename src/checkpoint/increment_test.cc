// Full checkpoints and increments through the public API: what may be saved, what is restored, what
// stays.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/test_job_store.h"
#include "checkpoint/test_table.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// The table at a step: some rows come and go, some change, some are pending.
TestTable TableAt(std::int64_t step, int rank = 0) {
  TestTable table;
  for (std::int64_t i = 0; i < 400; ++i) {
    const std::int64_t key = (i % 2 == 0 ? 1 : -1) * (i * 4 + rank) * 1'000'003;
    const auto s = static_cast<std::uint64_t>(step);
    const auto k = static_cast<std::uint64_t>(i);
    if (k % 7 == 3 && (s / 10 + k) % 3 == 0) {
      if (k % 2 == 0) table.pending[key] = s + k;
      continue;
    }
    table.rows[key] = k % 5 == 0 ? s + 1 : 1;
  }
  return table;
}

class IncrementTest : public OnBothStores {
 protected:
  static ManagerOptions Keep(std::optional<std::uint64_t> last) {
    ManagerOptions options;
    options.retention.keep_last = last;
    return options;
  }

  /// Saves the table as it is at `step`; for an increment, what changed since `since`.
  static Result<CheckpointInfo> TrySave(CheckpointManager* manager, std::int64_t step,
                                        SaveKind kind = SaveKind::kFull, std::int64_t since = 0,
                                        const std::string& since_id = "", int rank = 0) {
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.since = since_id;
    request.blocking = true;
    std::deque<std::string> memory;
    const TestTable now = TableAt(step, rank);
    AddTestTable("users", kind == SaveKind::kFull ? now.All() : now.Since(TableAt(since, rank)),
                 &request, &memory);
    std::vector<float> dense(64, static_cast<float>(step));
    request.tensors.push_back(
        {.name = "dense", .shape = {64}, .data = dense.data(), .replicated = true});
    auto handle = manager->Save(std::move(request));
    if (!handle.ok()) return handle.status();
    return handle->Wait();
  }
  static CheckpointInfo Save(CheckpointManager* manager, std::int64_t step,
                             SaveKind kind = SaveKind::kFull, std::int64_t since = 0) {
    auto info = TrySave(manager, step, kind, since);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *info : CheckpointInfo();
  }
  static Result<std::optional<Restored>> Restore(CheckpointManager* manager, TestTableSink* sink,
                                                 std::string id = "") {
    return manager->Restore({.allocate = true, .id = std::move(id), .tables = sink});
  }
  /// Restores the checkpoint and expects the state of its step.
  static void ExpectStateOf(CheckpointManager* manager, const CheckpointInfo& info) {
    TestTableSink sink;
    auto restored = Restore(manager, &sink, info.id);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    ASSERT_EQ(sink.broken, "");
    EXPECT_EQ(sink.tables["users"], TableAt(info.step)) << "step " << info.step;
    ASSERT_EQ((*restored)->tensors.size(), 1u);
    EXPECT_EQ(reinterpret_cast<const float*>((*restored)->tensors[0].data.get())[5],
              static_cast<float>(info.step));
  }
  std::string DirectoryOf(const CheckpointInfo& info) {
    return info.path.substr(store_->Describe().size() + 1);
  }
  /// Deletes what the engine made, as somebody with a file manager would.
  void DeleteByHand(const CheckpointInfo& info) {
    ASSERT_TRUE(store_->Delete(names::Path(DirectoryOf(info), names::kManifest)).ok());
  }
};

TEST_P(IncrementTest, IsRefusedBeforeTheBranchHasAFullOne) {
  auto manager = Open();
  const auto refused = TrySave(manager.get(), 10, SaveKind::kCumulative);
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("save a full one first"));
  EXPECT_THAT(Steps(manager.get()), IsEmpty());
  // The next save is not harmed.
  Save(manager.get(), 20);
  Save(manager.get(), 30, SaveKind::kCumulative, 20);
}

TEST_P(IncrementTest, IsRefusedInAnOpeningThatRestoredNothing) {
  Save(Open().get(), 10);
  auto manager = Open();  // whose memory has nothing to do with what is stored
  EXPECT_TRUE(
      TrySave(manager.get(), 20, SaveKind::kConsecutive).status().Is(Code::kFailedPrecondition));
}

TEST_P(IncrementTest, CumulativeOnesRestoreWithTheirBaseAlone) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  Save(manager.get(), 20, SaveKind::kCumulative, 10);
  const CheckpointInfo last = Save(manager.get(), 30, SaveKind::kCumulative, 10);
  EXPECT_EQ(last.kind, "increment");
  EXPECT_EQ(last.chain, "cumulative");
  EXPECT_EQ(last.base, full.id);
  EXPECT_THAT(DirectoryOf(last), HasSubstr("increment_000030"));
  ASSERT_EQ(last.tables.size(), 1u);
  EXPECT_EQ(last.tables[0].name, "users");
  EXPECT_LT(last.tables[0].rows, full.tables[0].rows);
  TestTableSink sink;
  auto restored = Restore(manager.get(), &sink);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.id, last.id);
  EXPECT_EQ(sink.tables["users"], TableAt(30));
  ASSERT_EQ(sink.parts.size(), 2u);
  EXPECT_EQ(sink.parts[0].checkpoint, full.id);
  EXPECT_FALSE(sink.parts[0].increment);
  EXPECT_EQ(sink.parts[1].checkpoint, last.id);
  EXPECT_TRUE(sink.parts[1].increment);
}

TEST_P(IncrementTest, ConsecutiveOnesRestoreByTheirParents) {
  auto manager = Open(Keep(std::nullopt));
  std::vector<CheckpointInfo> infos = {Save(manager.get(), 10)};
  for (std::int64_t step = 20; step <= 60; step += 10) {
    infos.push_back(Save(manager.get(), step, SaveKind::kConsecutive, step - 10));
    EXPECT_EQ(infos.back().parent, infos[infos.size() - 2].id);
    EXPECT_EQ(infos.back().base, infos[0].id);
  }
  for (const CheckpointInfo& info : infos) ExpectStateOf(manager.get(), info);
}

TEST_P(IncrementTest, AConsecutiveOneMayStandOnACumulativeOne) {
  auto manager = Open(Keep(std::nullopt));
  Save(manager.get(), 10);
  Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  Save(manager.get(), 30, SaveKind::kCumulative, 10);
  const CheckpointInfo last = Save(manager.get(), 40, SaveKind::kConsecutive, 30);
  ExpectStateOf(manager.get(), last);
  TestTableSink sink;
  ASSERT_TRUE(Restore(manager.get(), &sink).ok());
  EXPECT_EQ(sink.parts.size(), 3u) << "the increment of step 20 is not needed";
}

TEST_P(IncrementTest, TheChainGoesOnAfterARestore) {
  CheckpointInfo full;
  {
    auto manager = Open(Keep(std::nullopt));
    full = Save(manager.get(), 10);
    Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  }
  auto manager = Open(Keep(std::nullopt));
  TestTableSink sink;
  ASSERT_TRUE(Restore(manager.get(), &sink).ok());
  const CheckpointInfo next = Save(manager.get(), 30, SaveKind::kConsecutive, 20);
  EXPECT_EQ(next.base, full.id);
  ExpectStateOf(manager.get(), next);
  const CheckpointInfo cumulative = Save(manager.get(), 40, SaveKind::kCumulative, 10);
  EXPECT_EQ(cumulative.base, full.id);
  ExpectStateOf(manager.get(), cumulative);
}

TEST_P(IncrementTest, ABranchThatWasGivenUpIsNeverMixedIn) {
  auto manager = Open(Keep(std::nullopt));
  Save(manager.get(), 10);
  const CheckpointInfo fork = Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  const CheckpointInfo left = Save(manager.get(), 30, SaveKind::kConsecutive, 20);
  // Back to step 20, and on with the same steps, in another opening.
  manager.reset();
  manager = Open(Keep(std::nullopt));
  TestTableSink sink;
  ASSERT_TRUE(Restore(manager.get(), &sink, fork.id).ok());
  const CheckpointInfo right = Save(manager.get(), 50, SaveKind::kConsecutive, 20);
  EXPECT_EQ(right.parent, fork.id);
  ExpectStateOf(manager.get(), right);
  EXPECT_EQ(manager->Latest().value()->id, right.id);
  ExpectStateOf(manager.get(), left);
}

TEST_P(IncrementTest, RowsThatAreCountedFromElsewhereAreRefused) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  const CheckpointInfo second =
      TrySave(manager.get(), 20, SaveKind::kConsecutive, 10, full.id).value();
  const auto refused = TrySave(manager.get(), 30, SaveKind::kConsecutive, 10, full.id);
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(second.id));
  EXPECT_TRUE(TrySave(manager.get(), 30, SaveKind::kCumulative, 10, full.id).ok());
}

TEST_P(IncrementTest, ABrokenChainFallsBackToTheNewestGoodRestorePoint) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  const CheckpointInfo good = Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  const CheckpointInfo lost = Save(manager.get(), 30, SaveKind::kConsecutive, 20);
  const CheckpointInfo last = Save(manager.get(), 40, SaveKind::kConsecutive, 30);
  DeleteByHand(lost);
  manager.reset();
  manager = Open(Keep(std::nullopt));
  TestTableSink sink;
  auto restored = Restore(manager.get(), &sink);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.id, good.id);
  EXPECT_EQ(sink.tables["users"], TableAt(20));
  ASSERT_EQ((*restored)->fallbacks.size(), 1u);
  EXPECT_THAT((*restored)->fallbacks[0], HasSubstr("increment_000040"));
  EXPECT_THAT((*restored)->fallbacks[0], HasSubstr(lost.id));
  const auto by_id = Restore(manager.get(), &sink, last.id);
  EXPECT_TRUE(by_id.status().Is(Code::kCorruption)) << by_id.status().ToString();
  (void)full;
}

TEST_P(IncrementTest, ADamagedBaseIsPassedOverWithWhatBuildsOnIt) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo old = Save(manager.get(), 10);
  const CheckpointInfo full = Save(manager.get(), 20);
  Save(manager.get(), 30, SaveKind::kCumulative, 20);
  manager.reset();
  const std::string file = DirectoryOf(full) + "/__lookup_table__/rank_0.safetensors";
  FlipBit(store_.get(), file, store_->Stat(file)->bytes - 1);
  manager = Open(Keep(std::nullopt));
  TestTableSink sink;
  auto restored = Restore(manager.get(), &sink);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.id, old.id);
  EXPECT_EQ((*restored)->fallbacks.size(), 2u);
  EXPECT_EQ(sink.tables["users"], TableAt(10));
}

TEST_P(IncrementTest, WithAtomicNothingIsHandedOutOfADamagedChain) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  const CheckpointInfo last = Save(manager.get(), 20, SaveKind::kCumulative, 10);
  const std::string file = DirectoryOf(last) + "/__lookup_table__/rank_0.safetensors";
  FlipBit(store_.get(), file, store_->Stat(file)->bytes - 1);
  TestTableSink sink;
  const auto restored =
      manager->Restore({.allocate = true, .id = last.id, .atomic = true, .tables = &sink});
  EXPECT_TRUE(restored.status().Is(Code::kCorruption)) << restored.status().ToString();
  EXPECT_EQ(sink.blocks, 0u);
  (void)full;
}

TEST_P(IncrementTest, OnlyTheShardsThatAreWantedAreRead) {
  auto manager = Open(Keep(std::nullopt));
  Save(manager.get(), 10);
  Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  TestTable together;
  std::uint64_t rows = 0;
  for (const std::vector<ShardSpan>& mine :
       {std::vector<ShardSpan>{{0, 3}, {5, 6}}, {{3, 5}}, {{6, 16}}}) {
    TestTableSink sink;
    sink.only = mine;
    ASSERT_TRUE(Restore(manager.get(), &sink).ok());
    for (const auto& [key, content] : sink.tables["users"].rows) {
      const std::uint32_t shard = TestTable::ShardOf(key);
      EXPECT_TRUE(std::any_of(mine.begin(), mine.end(), [&](const ShardSpan& range) {
        return shard >= range.begin && shard < range.end;
      }));
      EXPECT_TRUE(together.rows.emplace(key, content).second) << "a row came twice";
    }
    rows += sink.rows_given;
  }
  EXPECT_EQ(together.rows, TableAt(20).rows);
  TestTableSink all;
  ASSERT_TRUE(Restore(manager.get(), &all).ok());
  EXPECT_EQ(rows, all.rows_given);
}

TEST_P(IncrementTest, ASinkThatRefusesChangesNothing) {
  class Refusing final : public TestTableSink {
   public:
    Status Start(std::vector<TablePart>* parts) override {
      return MismatchError("table " + parts->front().table + " has rows of another kind");
    }
  };
  auto manager = Open();
  Save(manager.get(), 10);
  std::vector<float> dense(64, -1);
  Refusing sink;
  const auto restored = manager->Restore(
      {.into = {{.name = "dense", .shape = {64}, .data = dense.data()}}, .tables = &sink});
  EXPECT_TRUE(restored.status().Is(Code::kFailedPrecondition)) << restored.status().ToString();
  EXPECT_THAT(std::string(restored.status().message()), HasSubstr("nothing was overwritten"));
  EXPECT_EQ(dense, std::vector<float>(64, -1));
}

TEST_P(IncrementTest, RetentionKeepsWhatKeptOnesBuildOnAndNothingElse) {
  auto manager = Open(Keep(2));
  Save(manager.get(), 10);
  for (std::int64_t step = 20; step <= 50; step += 10) {
    Save(manager.get(), step, SaveKind::kCumulative, 10);
  }
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 40, 50));
  Save(manager.get(), 60);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 50, 60));
  Save(manager.get(), 70, SaveKind::kConsecutive, 60);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(60, 70));
  Save(manager.get(), 80, SaveKind::kConsecutive, 70);
  Save(manager.get(), 90, SaveKind::kConsecutive, 80);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(60, 70, 80, 90));
  for (const CheckpointInfo& info : manager->List().value()) ExpectStateOf(manager.get(), info);
}

TEST_P(IncrementTest, APinnedIncrementKeepsItsChain) {
  auto manager = Open(Keep(1));
  Save(manager.get(), 10);
  const CheckpointInfo pinned = Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  ASSERT_TRUE(manager->WaitAll().ok());
  ASSERT_TRUE(manager->Pin(pinned.id).ok());
  Save(manager.get(), 30);
  Save(manager.get(), 40);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 20, 40));
  ExpectStateOf(manager.get(), pinned);
  ASSERT_TRUE(manager->Unpin(pinned.id).ok());
  Save(manager.get(), 50);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(50));
}

TEST_P(IncrementTest, ABaseIsDeletedOnlyAfterWhatBuildsOnIt) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  const CheckpointInfo first = Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  const CheckpointInfo second = Save(manager.get(), 30, SaveKind::kConsecutive, 20);
  for (const CheckpointInfo& needed : {full, first}) {
    const Status refused = manager->Delete(needed.id);
    EXPECT_TRUE(refused.Is(Code::kFailedPrecondition)) << refused.ToString();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("increment_000030"));
  }
  EXPECT_TRUE(manager->Delete(second.id).ok());
  // What the branch went on from is gone: the next consecutive one would have a gap.
  EXPECT_TRUE(TrySave(manager.get(), 40, SaveKind::kConsecutive, 30)
                  .status()
                  .Is(Code::kFailedPrecondition));
  EXPECT_TRUE(manager->Delete(first.id).ok());
  EXPECT_TRUE(TrySave(manager.get(), 40, SaveKind::kCumulative, 10).ok());
}

TEST_P(IncrementTest, ABaseThatWasDeletedByHandIsNoticedBeforeTheNextIncrement) {
  auto manager = Open(Keep(std::nullopt));
  DeleteByHand(Save(manager.get(), 10));
  const auto refused = TrySave(manager.get(), 20, SaveKind::kCumulative, 10);
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("checkpoint_000010"));
}

TEST_P(IncrementTest, SerialNamesCountFullOnesAndIncrementsTogether) {
  ManagerOptions options = Keep(std::nullopt);
  options.naming = Naming::kSerial;
  {
    auto manager = Open(options);
    EXPECT_EQ(DirectoryOf(Save(manager.get(), 10)), "checkpoint_0");
    EXPECT_EQ(DirectoryOf(Save(manager.get(), 20, SaveKind::kConsecutive, 10)), "increment_1");
  }
  auto manager = Open(options);
  EXPECT_EQ(DirectoryOf(Save(manager.get(), 30)), "checkpoint_2");
}

TEST_P(IncrementTest, FactsThatContradictTheTensorsAreRefused) {
  auto manager = Open();
  SaveRequest request;
  request.step = 1;
  std::deque<std::string> memory;
  AddTestTable("users", TableAt(10).All(), &request, &memory);
  request.tables[0].rows += 1;
  auto refused = manager->Save(request);
  EXPECT_TRUE(refused.status().Is(Code::kInvalidArgument)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("users/keys"));
  request.tables[0].rows -= 1;
  AddTestTable("users/slot", TableAt(10).All(), &request, &memory);
  refused = manager->Save(request);
  EXPECT_TRUE(refused.status().Is(Code::kInvalidArgument)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("users/slot"));
}

TEST_P(IncrementTest, RowsOfSeveralRanksAreOneTable) {
  CheckpointInfo infos[2][2];
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        ManagerOptions options = Keep(1);
        options.rank = rank;
        options.world_size = 2;
        auto manager = Open(options);
        for (const int i : {0, 1}) {
          auto info = TrySave(manager.get(), 10 + i * 10,
                              i == 0 ? SaveKind::kFull : SaveKind::kConsecutive, 10, "", rank);
          ASSERT_TRUE(info.ok()) << info.status().ToString();
          infos[rank][i] = *info;
        }
        EXPECT_TRUE(manager->Close().ok());
      });
    }
  }
  EXPECT_EQ(infos[0][1].id, infos[1][1].id);
  ASSERT_EQ(infos[0][0].tables.size(), 1u);
  EXPECT_EQ(infos[0][0].tables[0].rows, TableAt(10, 0).rows.size() + TableAt(10, 1).rows.size());
  auto manager = Open(Keep(1));
  TestTableSink sink;
  auto restored = Restore(manager.get(), &sink);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  TestTable both = TableAt(20, 0);
  const TestTable other = TableAt(20, 1);
  both.rows.insert(other.rows.begin(), other.rows.end());
  both.pending.insert(other.pending.begin(), other.pending.end());
  EXPECT_EQ(sink.broken, "");
  EXPECT_EQ(sink.tables["users"], both);
  EXPECT_EQ(sink.parts.size(), 4u);
}

TEST_P(IncrementTest, RanksThatSaveDifferentKindsAreTold) {
  std::vector<std::jthread> ranks;
  Status statuses[2];
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ManagerOptions options = Keep(1);
      options.rank = rank;
      options.world_size = 2;
      auto manager = Open(options);
      ASSERT_TRUE(TrySave(manager.get(), 10, SaveKind::kFull, 0, "", rank).ok());
      statuses[rank] = TrySave(manager.get(), 20,
                               rank == 0 ? SaveKind::kFull : SaveKind::kCumulative, 10, "", rank)
                           .status();
      manager->Close().IgnoreError("reports the failure again");
    });
  }
  ranks.clear();
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_TRUE(statuses[1].Is(Code::kFailedPrecondition)) << statuses[1].ToString();
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("same kind"));
}

TEST_P(IncrementTest, WhoIsOvertakenHearsSoAlsoWhenWhatHeBuildsOnIsGone) {
  auto old = Open(Keep(1));
  Save(old.get(), 10);
  ManagerOptions options = Keep(1);
  options.takeover = true;
  auto young = Open(options);
  Save(young.get(), 20);
  ASSERT_TRUE(young->WaitAll().ok());
  ASSERT_THAT(Steps(young.get()), testing::ElementsAre(20));
  for (const SaveKind kind : {SaveKind::kCumulative, SaveKind::kConsecutive}) {
    const auto late = TrySave(old.get(), 30, kind, 10);
    EXPECT_TRUE(late.status().Is(Code::kAborted)) << late.status().ToString();
  }
}

TEST_P(IncrementTest, AReaderSeesBaseParentRowsAndDeleted) {
  auto manager = Open(Keep(std::nullopt));
  const CheckpointInfo full = Save(manager.get(), 10);
  const CheckpointInfo saved = Save(manager.get(), 20, SaveKind::kConsecutive, 10);
  auto reader = Open({.read_only = true});
  const CheckpointInfo info = *reader->Latest().value();
  EXPECT_EQ(info.base, full.id);
  EXPECT_EQ(info.parent, full.id);
  EXPECT_EQ(info.tables, saved.tables);
  EXPECT_GT(info.tables[0].deleted, 0u);
  EXPECT_LT(info.bytes, full.bytes);
  ExpectStateOf(reader.get(), info);
}

INSTANTIATE_TEST_SUITE_P(Stores, IncrementTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "ObjectStore" : "Links"; });

}  // namespace
}  // namespace cairn

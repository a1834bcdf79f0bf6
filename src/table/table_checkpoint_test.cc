// Tables through the whole engine: saved, restored, failed, gone back.

#include <cairn/table_checkpoint.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/manager.h"
#include "checkpoint/save_turn.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/transfer.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_store.h"
#include "table/test_table.h"

namespace cairn::table {
namespace {

using ::testing::HasSubstr;

class TableCheckpointTest : public ::testing::Test {
 protected:
  TableCheckpointTest() { table_ = SmallTable(); }

  static std::shared_ptr<Store> NewStore() { return *MemoryStore::Open({}); }

  std::unique_ptr<CheckpointManager> OpenManager(
      bool read_only = false, OnBusy on_busy = OnBusy::kWait,
      std::function<void(std::string_view)> on_step = {}) {
    Environment env;
    env.store = store_;
    env.host = "here";
    env.pid = 1;
    env.on_step = std::move(on_step);
    ManagerOptions options{.directory = "d", .on_busy = on_busy, .read_only = read_only};
    options.retention.keep_last = std::nullopt;
    auto manager = cairn::OpenManager(options, env);
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return *std::move(manager);
  }
  static void Update(Table* table, std::vector<std::int64_t> ids) {
    std::vector<float> gradients(ids.size() * table->options().dim);
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = 0.01F * (1 + i % 7);
    EXPECT_TRUE(table->ApplyGradients(ids, gradients).ok());
  }
  /// Saves and waits.
  static CheckpointInfo Saved(TableCheckpoints* checkpoints, std::int64_t step, SaveKind kind) {
    auto handle = checkpoints->Save({.step = step, .kind = kind});
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    auto info = handle->Wait();
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return *info;
  }
  /// What another process would find.
  Rows Restored(std::optional<std::int64_t> step = {}) {
    auto fresh = SmallTable();
    auto manager = OpenManager(/*read_only=*/true);
    TableCheckpoints checkpoints(manager.get(), {fresh.get()});
    RestoreRequest request;
    request.step = step;
    auto restored = checkpoints.Restore(request);
    EXPECT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_TRUE(manager->Close().ok());
    return RowsOf(fresh.get());
  }

  std::shared_ptr<Store> store_ = NewStore();
  std::unique_ptr<Table> table_;
};

TEST_F(TableCheckpointTest, FullAndIncrementsOfBothChainsComeBack) {
  for (const SaveKind kind : {SaveKind::kCumulative, SaveKind::kConsecutive}) {
    store_ = NewStore();
    table_ = SmallTable();
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    Update(table_.get(), {1, 2, 3, -4});
    Saved(&checkpoints, 1, SaveKind::kFull);
    std::map<std::int64_t, Rows> at;
    at[1] = RowsOf(table_.get());
    for (std::int64_t step = 2; step < 6; ++step) {
      Update(table_.get(), {step, 100 + step});
      ASSERT_TRUE(table_->Erase(std::vector<std::int64_t>{100 + step - 1}).ok());
      const CheckpointInfo info = Saved(&checkpoints, step, kind);
      EXPECT_EQ(info.kind, "increment");
      at[step] = RowsOf(table_.get());
    }
    ASSERT_TRUE(manager->Close().ok());
    for (const auto& [step, rows] : at) EXPECT_EQ(Restored(step), rows) << step;
    EXPECT_EQ(Restored(), at[5]);
  }
}

TEST_F(TableCheckpointTest, ALearningRateThatWasSetComesBack) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()});
  const float own = table_->learning_rate();
  Saved(&checkpoints, 1, SaveKind::kFull);
  Update(table_.get(), {1});
  table_->set_learning_rate(0.1F * own);
  Saved(&checkpoints, 2, SaveKind::kCumulative);
  table_->set_learning_rate(0);
  Saved(&checkpoints, 3, SaveKind::kFull);
  const std::map<std::int64_t, float> rates = {{1, own}, {2, 0.1F * own}, {3, 0.0F}};
  for (const auto& [step, rate] : rates) {
    RestoreRequest request;
    request.step = step;
    ASSERT_TRUE(checkpoints.Restore(request).ok());
    EXPECT_EQ(table_->learning_rate(), rate) << step;
  }
  // What is no rate stands in nobody's way.
  table_->set_learning_rate(std::numeric_limits<float>::infinity());
  Saved(&checkpoints, 4, SaveKind::kFull);
  ASSERT_TRUE(checkpoints.Restore({}).ok());
  EXPECT_EQ(table_->learning_rate(), own);
  // Rows beside those that are there bring no rate.
  table_->set_learning_rate(2);
  ASSERT_TRUE(checkpoints.Restore({}, {.merge = true}).ok());
  EXPECT_EQ(table_->learning_rate(), 2);
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, ADenseVariableThatIsCalledLikeATableIsRefused) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()});
  Update(table_.get(), {1, 2});
  const float one = 1;
  const std::string name = table_->options().name;
  const auto save = [&](const std::string& called) {
    return checkpoints.Save(
        {.step = 1,
         .tensors = {{.name = called, .dtype = DType::kF32, .shape = {}, .data = &one}},
         .blocking = true});
  };
  const Status refused = save(name).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("\"" + name + "\" is a table and a dense variable; rename one of them"));
  ASSERT_TRUE(save(name + "_bias").ok());
  ASSERT_TRUE(manager->Close().ok());
  EXPECT_EQ(Restored(), RowsOf(table_.get())) << "nothing was lost by the refusal";
}

TEST_F(TableCheckpointTest, TheChainGoesOnAfterARestore) {
  {
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    EXPECT_FALSE(checkpoints.CanIncrement());
    Update(table_.get(), {1, 2, 3});
    Saved(&checkpoints, 1, SaveKind::kFull);
    Update(table_.get(), {2});
    Saved(&checkpoints, 2, SaveKind::kCumulative);
    ASSERT_TRUE(manager->Close().ok());
  }
  auto fresh = SmallTable();
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {fresh.get()});
  ASSERT_TRUE(checkpoints.Restore({}).ok());
  EXPECT_TRUE(checkpoints.CanIncrement());
  Update(fresh.get(), {3, 4});
  const CheckpointInfo info = Saved(&checkpoints, 3, SaveKind::kCumulative);
  EXPECT_EQ(info.tables.at(0).rows, 3u);  // 2 from before, 3 and 4
  const Rows rows = RowsOf(fresh.get());
  ASSERT_TRUE(manager->Close().ok());
  EXPECT_EQ(Restored(), rows);
}

TEST_F(TableCheckpointTest, AnotherManagersSaveTakesNoRowsFromIncrements) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()});
  Update(table_.get(), {1});
  Saved(&checkpoints, 1, SaveKind::kFull);
  checkpoints.Wait();
  Update(table_.get(), {2});
  const std::shared_ptr<Store> own = store_;
  store_ = NewStore();
  {
    auto backup = OpenManager();
    TableCheckpoints elsewhere(backup.get(), {table_.get()});
    Saved(&elsewhere, 1, SaveKind::kFull);
    elsewhere.Wait();
    ASSERT_TRUE(backup->Close().ok());
  }
  store_ = own;
  Update(table_.get(), {3});
  EXPECT_FALSE(checkpoints.CanIncrement()) << "the table knows of row 3 alone that it changed";
  const auto refused = checkpoints.Save({.step = 2, .kind = SaveKind::kCumulative});
  EXPECT_THAT(refused.status().ToString(), HasSubstr("another manager saved"));
  Saved(&checkpoints, 2, SaveKind::kFull);
  checkpoints.Wait();
  EXPECT_TRUE(checkpoints.CanIncrement());
  Update(table_.get(), {4});
  Saved(&checkpoints, 3, SaveKind::kConsecutive);
  const Rows rows = RowsOf(table_.get());
  checkpoints.Wait();
  ASSERT_TRUE(manager->Close().ok());
  EXPECT_EQ(Restored(), rows);
}

TEST_F(TableCheckpointTest, StoredRowsAreMergedByChoice) {
  {
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    Update(table_.get(), {1, 2});
    Saved(&checkpoints, 1, SaveKind::kFull);
    ASSERT_TRUE(manager->Close().ok());
  }
  auto other = SmallTable();
  Update(other.get(), {2, 3});
  Update(other.get(), {2, 3});
  Rows expected = RowsOf(table_.get());
  expected[3] = RowsOf(other.get()).at(3);
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {other.get()});
  ASSERT_TRUE(checkpoints.Restore({}, {.merge = true}).ok());
  EXPECT_EQ(RowsOf(other.get()), expected);
  EXPECT_FALSE(checkpoints.CanIncrement()) << "row 3 is in no checkpoint";
  Saved(&checkpoints, 2, SaveKind::kFull);
  checkpoints.Wait();
  EXPECT_TRUE(checkpoints.CanIncrement());
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, ADamagedCheckpointTakesNoRowsFromAMerge) {
  // Rows whose weights take several chunks, so that some are read before the damage is met.
  const TableOptions options = SmallOptions(64);
  table_ = SmallTable(options);
  std::string newest;
  {
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    std::vector<std::int64_t> ids(40'000);
    std::iota(ids.begin(), ids.end(), 0);
    Update(table_.get(), ids);
    Saved(&checkpoints, 1, SaveKind::kFull);
    newest = Saved(&checkpoints, 2, SaveKind::kFull).path;
    ASSERT_TRUE(manager->Close().ok());
  }
  const std::string file =
      newest.substr(newest.rfind('/') + 1) + "/__lookup_table__/rank_0.safetensors";
  FlipBit(store_.get(), file, 9u << 20);
  auto other = SmallTable(options);
  Update(other.get(), {-7});
  Rows expected = RowsOf(table_.get());
  expected[-7] = RowsOf(other.get()).at(-7);
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {other.get()});
  const auto restored = checkpoints.Restore({}, {.merge = true});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->step, 1);
  EXPECT_TRUE(RowsOf(other.get()) == expected) << "other rows than those of both";
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, TrapRestoreErrorsAreRaised) {
  const auto file_of = [](const CheckpointInfo& info) {
    return info.path.substr(info.path.rfind('/') + 1) + "/__lookup_table__/rank_0.safetensors";
  };
  for (const bool base : {true, false}) {
    store_ = NewStore();
    table_ = SmallTable();
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    Update(table_.get(), {1, 2, 3});
    const std::string full = file_of(Saved(&checkpoints, 1, SaveKind::kFull));
    Update(table_.get(), {2});
    const std::string increment = file_of(Saved(&checkpoints, 2, SaveKind::kCumulative));
    checkpoints.Wait();
    const std::string& damaged = base ? full : increment;
    FlipBit(store_.get(), damaged, store_->Stat(damaged)->bytes - 1);
    const auto restored = checkpoints.Restore({.step = 2});
    EXPECT_TRUE(restored.status().Is(Code::kCorruption)) << restored.status().ToString();
    // Without a step there may be an older one; where there is none, nobody starts from nothing.
    const auto latest = checkpoints.Restore({});
    if (base) {
      EXPECT_TRUE(latest.status().Is(Code::kCorruption)) << latest.status().ToString();
    } else {
      ASSERT_TRUE(latest.ok()) << latest.status().ToString();
      EXPECT_EQ((*latest)->step, 1);
      EXPECT_EQ((*latest)->fallbacks.size(), 1u);
    }
    ASSERT_TRUE(manager->Close().ok());
  }
}

TEST_F(TableCheckpointTest, NoIncrementStandsOnACheckpointWithoutTheTable) {
  TableOptions more = SmallOptions();
  more.name = "more";
  more.gate = table_->options().gate;
  auto second = SmallTable(more);
  auto manager = OpenManager();
  {
    TableCheckpoints one(manager.get(), {table_.get()});
    Update(table_.get(), {1});
    Saved(&one, 1, SaveKind::kFull);
  }
  TableCheckpoints both(manager.get(), {table_.get(), second.get()});
  Update(second.get(), {2});
  Saved(&both, 2, SaveKind::kFull);
  const auto restored = both.Restore({.step = 1}, {.strict = false});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_FALSE(both.CanIncrement()) << "\"more\" is not in step 1";
  const auto refused = both.Save({.step = 3, .kind = SaveKind::kCumulative});
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
  Saved(&both, 4, SaveKind::kFull);
  both.Wait();
  EXPECT_TRUE(both.CanIncrement());
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, AFailedSaveStopsNoUpdatesThoughNobodyAsksForItsOutcome) {
  auto faulty = std::make_shared<FaultyStore>(store_.get());
  const std::shared_ptr<Store> sound = std::exchange(store_, faulty);
  TableOptions options = SmallOptions();
  options.side_buffer_bytes = 256;  // a few rows
  table_ = SmallTable(options);
  std::vector<float> array(400 * 4);
  auto tracked =
      RowTracked::Make({.name = "array",
                        .rows = 400,
                        .arrays = {{.name = "weights", .width = 4, .data = array.data()}},
                        .gate = options.gate,
                        .side_buffer_bytes = 64})
          .value();
  std::vector<std::int64_t> ids(400);
  std::iota(ids.begin(), ids.end(), 0);
  const auto update = [&] {
    for (const std::int64_t id : ids) {
      Update(table_.get(), {id});
      const CutGate::Batch batch(options.gate.get());
      EXPECT_TRUE(tracked->Touch(std::vector<std::int64_t>{id}).ok());
    }
  };
  update();
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()}, {tracked.get()}, {});
  Saved(&checkpoints, 1, SaveKind::kFull);
  for (const SaveKind kind : {SaveKind::kFull, SaveKind::kCumulative}) {
    checkpoints.Wait();
    update();
    faulty->Arm(
        {.status = UnavailableError("away"), .trigger = {.kind = StoreOp::Kind::kOpenObject}});
    const auto failed = checkpoints.Save({.step = 2, .kind = kind});
    ASSERT_TRUE(failed.ok()) << failed.status().ToString();
    update();  // of more rows than can be kept aside
    EXPECT_FALSE(failed->Wait().ok());
    faulty->Disarm();
    EXPECT_EQ(Saved(&checkpoints, 3, SaveKind::kCumulative).tables.at(0).rows, 400u);
  }
  checkpoints.Wait();
  EXPECT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, RowsOfAFailedIncrementAreInTheNext) {
  const std::shared_ptr<Store> sound = store_;
  auto faulty = std::make_shared<FaultyStore>(sound.get());
  store_ = faulty;
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()});
  Update(table_.get(), {1, 2, 3});
  Saved(&checkpoints, 1, SaveKind::kFull);
  Update(table_.get(), {2});
  faulty->Arm({.status = UnavailableError("away"), .trigger = {.kind = StoreOp::Kind::kDrain}});
  auto failed = checkpoints.Save({.step = 2, .kind = SaveKind::kConsecutive});
  ASSERT_TRUE(failed.ok()) << failed.status().ToString();
  EXPECT_FALSE(failed->Wait().ok());
  Update(table_.get(), {3});
  const CheckpointInfo info = Saved(&checkpoints, 3, SaveKind::kConsecutive);
  EXPECT_EQ(info.tables.at(0).rows, 2u);
  const Rows rows = RowsOf(table_.get());
  checkpoints.Wait();
  manager->Close().IgnoreError("reported above");
  EXPECT_EQ(Restored(), rows);
}

TEST_F(TableCheckpointTest, ASkippedSaveCutsNothing) {
  // The background is held before its commit, and in its retention, when the save is acknowledged
  // and the manager is busy all the same.
  for (const std::string_view held : {"save: write", "retention"}) {
    store_ = NewStore();
    table_ = SmallTable();
    std::atomic<bool> hold = false;
    std::latch reached(1);
    std::latch go_on(1);
    auto manager = OpenManager(/*read_only=*/false, OnBusy::kSkip, [&](std::string_view step) {
      if (step != held || !hold.exchange(false)) return;
      reached.count_down();
      go_on.wait();
    });
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    Update(table_.get(), {1, 2, 3});
    Saved(&checkpoints, 1, SaveKind::kFull);
    ASSERT_TRUE(manager->WaitAll().ok());
    Update(table_.get(), {1});
    hold = true;
    auto written = checkpoints.Save({.step = 2, .kind = SaveKind::kConsecutive});
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    reached.wait();
    Update(table_.get(), {2});
    {
      // A cut is refused inside of a batch: that none is tried shows that none was made.
      const CutGate::Batch batch(table_->options().gate.get());
      auto skipped = checkpoints.Save({.step = 3, .kind = SaveKind::kConsecutive});
      ASSERT_TRUE(skipped.ok()) << skipped.status().ToString();
      EXPECT_TRUE(skipped->Wait().status().Is(Code::kCancelled));
    }
    go_on.count_down();
    ASSERT_TRUE(written->Wait().ok());
    ASSERT_TRUE(manager->WaitAll().ok());
    EXPECT_EQ(Saved(&checkpoints, 4, SaveKind::kConsecutive).tables.at(0).rows, 1u);
    const Rows rows = RowsOf(table_.get());
    ASSERT_TRUE(manager->Close().ok());
    EXPECT_EQ(Restored(), rows);
  }
}

class SameInstantTest : public TableCheckpointTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(KeysPackedOrNot, SameInstantTest, ::testing::Bool());

TEST_P(SameInstantTest, DenseVariablesBelongToIt) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()}, {.compress_keys = GetParam()});
  std::int64_t count = 0;  // changed together with key 0, inside of one batch
  std::atomic<bool> stop = false;
  const std::vector<float> one(table_->options().dim, 1.0F);
  std::jthread trainer([&] {
    while (!stop) {
      const CutGate::Batch batch(table_->options().gate.get());
      ++count;
      const std::vector<float> row(table_->options().dim, static_cast<float>(count));
      EXPECT_TRUE(table_->Assign(std::vector<std::int64_t>{0}, row).ok());
    }
  });
  for (std::int64_t step = 0; step < 30; ++step) {
    SaveRequest request{.step = step,
                        .kind = step % 5 == 0 ? SaveKind::kFull : SaveKind::kCumulative};
    request.tensors = {{.name = "count", .dtype = DType::kI64, .shape = {}, .data = &count}};
    auto handle = checkpoints.Save(std::move(request));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_TRUE(handle->Wait().ok());
  }
  stop = true;
  trainer.join();
  checkpoints.Wait();
  for (std::int64_t step = 0; step < 30; ++step) {
    auto fresh = SmallTable();
    TableFiller filler({fresh.get()});
    std::int64_t found = -1;
    RestoreRequest request;
    request.step = step;
    request.into = {{.name = "count", .dtype = DType::kI64, .shape = {}, .data = &found}};
    request.tables = &filler;
    auto restored = manager->Restore(request);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    ASSERT_TRUE(filler.Finish().ok());
    const Rows rows = RowsOf(fresh.get());
    EXPECT_EQ(rows.empty() ? 0.0F : rows.at(0).weights[0], static_cast<float>(found)) << step;
  }
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, TablesThatDoNotFitAreRefusedBeforeAnythingChanges) {
  {
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()});
    Update(table_.get(), {1, 2, 3});
    Saved(&checkpoints, 1, SaveKind::kFull);
    ASSERT_TRUE(manager->Close().ok());
  }
  auto wider = SmallTable(SmallOptions(8));
  Update(wider.get(), {7});
  TableOptions other_options = SmallOptions();
  other_options.name = "other";
  auto other = SmallTable(other_options);
  auto manager = OpenManager();
  TableCheckpoints wrong(manager.get(), {wider.get()});
  const auto refused = wrong.Restore({});
  EXPECT_EQ(refused.status().reason(), Reason::kMismatch) << refused.status().ToString();
  EXPECT_EQ(RowsOf(wider.get()).size(), 1u);

  TableCheckpoints renamed(manager.get(), {other.get()});
  const auto missing = renamed.Restore({});
  EXPECT_EQ(missing.status().reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("other"));
  RestoreRequest loose;
  loose.strict = false;
  const auto skipped = renamed.Restore(loose);
  ASSERT_TRUE(skipped.ok()) << skipped.status().ToString();
  EXPECT_EQ((*skipped)->skipped.size(), 2u);
  ASSERT_TRUE(manager->Close().ok());
}

/// An embedding of 60 rows with an accumulator, in pieces of equal size.
struct Embedding {
  Embedding(std::uint64_t pieces, std::shared_ptr<CutGate> its_gate) : gate(std::move(its_gate)) {
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      RowTrackedOptions options;
      options.name = "emb";
      options.rows = 60 / pieces;
      options.first_row = piece * options.rows;
      options.whole_rows = 60;
      options.arrays = {{"weights", DType::kF32, 3, &weights[options.first_row * 3]},
                        {"accumulator", DType::kF64, 1, &accumulator[options.first_row]}};
      options.gate = gate;
      tracked.push_back(RowTracked::Make(std::move(options)).value());
    }
  }
  std::vector<RowTracked*> arrays() const {
    std::vector<RowTracked*> all;
    for (const auto& piece : tracked) all.push_back(piece.get());
    return all;
  }
  void Change(std::uint64_t row, float by) {
    const CutGate::Batch batch(gate.get());
    const std::uint64_t each = 60 / tracked.size();
    const std::vector<std::int64_t> local = {static_cast<std::int64_t>(row % each)};
    ASSERT_TRUE(tracked[row / each]->Touch(local).ok());
    for (std::size_t i = 0; i < 3; ++i) weights[row * 3 + i] += by * static_cast<float>(i + 1);
    accumulator[row] += static_cast<double>(by);
  }

  std::shared_ptr<CutGate> gate;
  std::vector<float> weights = std::vector<float>(180);
  std::vector<double> accumulator = std::vector<double>(60);
  std::vector<std::unique_ptr<RowTracked>> tracked;
};

TEST_F(TableCheckpointTest, DenseArraysGetRowIncrementsInAnyNumberOfPieces) {
  for (const SaveKind kind : {SaveKind::kCumulative, SaveKind::kConsecutive}) {
    store_ = NewStore();
    table_ = SmallTable();
    Embedding embedding(4, table_->options().gate);
    std::map<std::int64_t, std::pair<std::vector<float>, Rows>> at;
    {
      auto manager = OpenManager();
      TableCheckpoints checkpoints(manager.get(), {table_.get()}, embedding.arrays(), {});
      for (std::int64_t step = 1; step <= 5; ++step) {
        Update(table_.get(), {step});
        embedding.Change(static_cast<std::uint64_t>(step) * 11, 0.5F);
        embedding.Change(7, static_cast<float>(step));
        const CheckpointInfo info = Saved(&checkpoints, step, step == 1 ? SaveKind::kFull : kind);
        ASSERT_EQ(info.tables.size(), 2u);
        EXPECT_EQ(info.tables[1].name, "emb");
        const std::uint64_t changed =
            kind == SaveKind::kConsecutive ? 2 : static_cast<std::uint64_t>(step);
        EXPECT_EQ(info.tables[1].rows, step == 1 ? 60 : changed);
        at[step] = {embedding.weights, RowsOf(table_.get())};
      }
      checkpoints.Wait();
      ASSERT_TRUE(manager->Close().ok());
    }
    const auto expect_restored = [&](std::optional<std::int64_t> step, std::uint64_t pieces) {
      auto fresh = SmallTable();
      Embedding other(pieces, fresh->options().gate);
      auto manager = OpenManager(/*read_only=*/true);
      TableCheckpoints checkpoints(manager.get(), {fresh.get()}, other.arrays(), {});
      RestoreRequest request;
      request.step = step;
      const auto restored = checkpoints.Restore(request);
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      const auto& [weights, rows] = at.at((*restored)->step);
      EXPECT_EQ(other.weights, weights);
      EXPECT_EQ(RowsOf(fresh.get()), rows);
      EXPECT_TRUE(checkpoints.CanIncrement());
    };
    for (const std::uint64_t pieces : {1, 2, 4, 5}) expect_restored({}, pieces);
    expect_restored(1, 3);
    expect_restored(4, 4);
    // The tools take it for the table that it is.
    Environment env;
    env.store = store_;
    env.host = "here";
    env.pid = 1;
    const auto compacted = CompactIn(env, {}, {});
    ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
    EXPECT_EQ(compacted->info.kind, "full");
    expect_restored({}, 3);
    // And the chain goes on, in other pieces.
    Embedding next(2, table_->options().gate);
    auto fresh = SmallTable(table_->options());
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {fresh.get()}, next.arrays(), {});
    ASSERT_TRUE(checkpoints.Restore({}).ok());
    next.Change(59, 1);
    EXPECT_EQ(Saved(&checkpoints, 6, kind).tables[1].rows, 1u);
    at[6] = {next.weights, RowsOf(fresh.get())};
    checkpoints.Wait();
    ASSERT_TRUE(manager->Close().ok());
    expect_restored({}, 1);
  }
}

TEST_F(TableCheckpointTest, ArraysThatDoNotFitAreRefusedBeforeAnythingChanges) {
  Embedding embedding(2, table_->options().gate);
  auto manager = OpenManager();
  {
    TableCheckpoints checkpoints(manager.get(), {}, embedding.arrays(), {});
    Saved(&checkpoints, 1, SaveKind::kFull);
  }
  std::vector<float> weights(60 * 4, 5.0F);
  const auto refused = [&](RowTrackedOptions options) {
    options.name = "emb";
    const auto tracked = RowTracked::Make(std::move(options)).value();
    TableCheckpoints checkpoints(manager.get(), {}, {tracked.get()}, {});
    return checkpoints.Restore({}).status();
  };
  RowTrackedOptions wider;
  wider.rows = 60;
  wider.arrays = {{"weights", DType::kF32, 4, weights.data()}};
  const Status mismatch = refused(wider);
  EXPECT_EQ(mismatch.reason(), Reason::kMismatch) << mismatch.ToString();
  EXPECT_THAT(std::string(mismatch.message()), HasSubstr("stored F32 [n,3], wanted F32 [n,4]"));
  EXPECT_THAT(std::string(mismatch.message()), HasSubstr("accumulator"));
  std::vector<double> accumulator(50, 5.0);
  RowTrackedOptions shorter;
  shorter.rows = 50;
  shorter.arrays = {{"weights", DType::kF32, 3, weights.data()},
                    {"accumulator", DType::kF64, 1, accumulator.data()}};
  EXPECT_THAT(std::string(refused(shorter).message()), HasSubstr("stored 60 rows, wanted 50"));
  EXPECT_EQ(weights, std::vector<float>(60 * 4, 5.0F));
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, NobodyWaitsForKeysThatAreBeingPacked) {
  std::int64_t count = 7;
  bool checked = false;
  // The engine copies the dense variables here: by then the keys are packed.
  auto manager = OpenManager(/*read_only=*/false, OnBusy::kWait, [&](std::string_view step) {
    if (step != "save: snapshot" || checked) return;
    checked = true;
    auto updated = std::async(std::launch::async, [&] {
      const CutGate::Batch batch(table_->options().gate.get());
      count = 8;
      Update(table_.get(), {1, 2, 3});
    });
    EXPECT_EQ(updated.wait_for(std::chrono::minutes(1)), std::future_status::ready)
        << "the gate is closed";
  });
  TableCheckpoints checkpoints(manager.get(), {table_.get()}, {.compress_keys = true});
  Update(table_.get(), {1, 2, 3});
  const Rows rows = RowsOf(table_.get());
  SaveRequest request{.step = 1};
  request.tensors = {{.name = "count", .dtype = DType::kI64, .shape = {}, .data = &count}};
  ASSERT_TRUE(checkpoints.Save(std::move(request)).value().Wait().ok());
  EXPECT_TRUE(checked);
  EXPECT_NE(RowsOf(table_.get()), rows);
  auto fresh = SmallTable();
  TableFiller filler({fresh.get()});
  std::int64_t found = -1;
  RestoreRequest restore;
  restore.into = {{.name = "count", .dtype = DType::kI64, .shape = {}, .data = &found}};
  restore.tables = &filler;
  ASSERT_TRUE(manager->Restore(restore).ok());
  ASSERT_TRUE(filler.Finish().ok());
  EXPECT_EQ(RowsOf(fresh.get()), rows) << "as they were at the cut";
  EXPECT_EQ(found, 7);
  checkpoints.Wait();
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, TheStallOfASaveIsAlsoThatOfTheCut) {
  auto manager = OpenManager();
  auto* const turns = dynamic_cast<SaveTurns*>(manager.get());
  ASSERT_NE(turns, nullptr);
  turns->AddStall(std::chrono::hours(1));
  SaveHandle handle = manager->Save({.step = 1}).value();
  ASSERT_TRUE(handle.Wait().ok());
  EXPECT_GE(handle.StallSeconds(), 3600);
  handle = manager->Save({.step = 2}).value();
  ASSERT_TRUE(handle.Wait().ok());
  EXPECT_LT(handle.StallSeconds(), 3600) << "that was the other's";

  TableCheckpoints checkpoints(manager.get(), {table_.get()});
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::chrono::milliseconds inside{100};
  do {
    // Somebody is inside of a batch, for which the cut waits; the longer, should this thread not
    // have come to it in time.
    std::latch entered(1);
    std::jthread trainer([&] {
      const CutGate::Batch batch(table_->options().gate.get());
      entered.count_down();
      std::this_thread::sleep_for(inside);
    });
    entered.wait();
    handle = checkpoints.Save({.step = 3}).value();
    ASSERT_TRUE(handle.Wait().ok());
    inside *= 2;
  } while (handle.StallSeconds() < 0.05 && std::chrono::steady_clock::now() < end);
  EXPECT_GE(handle.StallSeconds(), 0.05);
  checkpoints.Wait();
  ASSERT_TRUE(manager->Close().ok());
}

TEST_F(TableCheckpointTest, QuantizedIncrementsAndPackedKeysComeBackCloseEnough) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()},
                               {.quantize = true, .compress_keys = true});
  std::vector<std::int64_t> ids(500);
  std::iota(ids.begin(), ids.end(), -250);
  Update(table_.get(), ids);
  Saved(&checkpoints, 1, SaveKind::kFull);
  EXPECT_EQ(Restored(), RowsOf(table_.get()));  // a full one is exact
  Update(table_.get(), ids);
  Saved(&checkpoints, 2, SaveKind::kCumulative);
  checkpoints.Wait();
  const double bound = checkpoints.quantization_error().max_abs;
  EXPECT_GT(bound, 0);
  EXPECT_LT(bound, 0.02);
  const Rows expected = RowsOf(table_.get());
  ASSERT_TRUE(manager->Close().ok());
  const Rows found = Restored();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [key, row] : expected) {
    for (std::size_t i = 0; i < row.weights.size(); ++i) {
      EXPECT_NEAR(found.at(key).weights[i], row.weights[i], bound + 1e-6);
    }
  }
}

TEST_F(TableCheckpointTest, TrainingGoesOnGentlyAfterAQuantizedIncrement) {
  // One element of each row has had gradients fifty times as large as the others: what steps
  // are divided by is then near 0 beside its neighbour, and must not come back as 0.
  for (const auto& optimizer :
       {MakeAdam({.learning_rate = 0.01F}).value(), MakeAdamW({.learning_rate = 0.01F}).value(),
        MakeAdagrad({.learning_rate = 0.01F}).value(),
        MakeFtrl({.learning_rate = 0.01F}).value()}) {
    store_ = NewStore();
    TableOptions options = SmallOptions();
    options.optimizer = optimizer;
    table_ = SmallTable(options);
    const std::vector<std::int64_t> ids = {1, 2};
    const std::vector<float> uneven = {30, 0.6F, -0.6F, 0.9F, 1, -40, 0.8F, 0.7F};
    const auto train = [&](Table* table, int steps) {
      for (int i = 0; i < steps; ++i) ASSERT_TRUE(table->ApplyGradients(ids, uneven).ok());
    };
    auto manager = OpenManager();
    TableCheckpoints checkpoints(manager.get(), {table_.get()}, {.quantize = true});
    train(table_.get(), 20);
    Saved(&checkpoints, 1, SaveKind::kFull);
    train(table_.get(), 1);
    Saved(&checkpoints, 2, SaveKind::kCumulative);
    ASSERT_TRUE(manager->Close().ok());

    auto restored = SmallTable(options);
    auto reader = OpenManager(/*read_only=*/true);
    TableCheckpoints from(reader.get(), {restored.get()});
    ASSERT_TRUE(from.Restore({}).ok());
    const auto step = [&](Table* table) {
      const Rows before = RowsOf(table);
      const std::vector<float> nothing(uneven.size());
      EXPECT_TRUE(table->ApplyGradients(ids, nothing).ok());
      train(table, 1);
      double furthest = 0;
      for (const auto& [key, row] : RowsOf(table)) {
        for (std::size_t i = 0; i < row.weights.size(); ++i) {
          furthest = std::max(
              furthest, std::abs(static_cast<double>(row.weights[i]) - before.at(key).weights[i]));
        }
      }
      return furthest;
    };
    const double undisturbed = step(table_.get());
    EXPECT_LE(step(restored.get()), 2 * undisturbed + 0.02) << optimizer->name();
    ASSERT_TRUE(reader->Close().ok());
  }
}

}  // namespace
}  // namespace cairn::table

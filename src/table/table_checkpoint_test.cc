// Tables through the whole engine: saved, restored, failed, gone back.

#include <cairn/table_checkpoint.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/manager.h"
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

  std::unique_ptr<CheckpointManager> OpenManager(bool read_only = false) {
    Environment env;
    env.store = store_;
    env.host = "here";
    env.pid = 1;
    ManagerOptions options{.directory = "d", .read_only = read_only};
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

TEST_F(TableCheckpointTest, DenseVariablesBelongToTheSameInstant) {
  auto manager = OpenManager();
  TableCheckpoints checkpoints(manager.get(), {table_.get()});
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

}  // namespace
}  // namespace cairn::table

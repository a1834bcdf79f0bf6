// Sparse tables and tracked arrays in the checkpoints of a Trainer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include <cairn/row_tracked.h>
#include <cairn/table.h>

#include "train/test_training.h"

namespace cairn {
namespace {

/// A Training whose steps also change rows of a table and of a dense embedding in two pieces.
struct SparseTraining : Training {
  SparseTraining() {
    TableOptions options;
    options.name = "users";
    options.dim = 3;
    options.optimizer = MakeAdagrad({.learning_rate = 0.1F}).value();
    options.initializer = MakeUniform(-1, 1).value();
    options.gate = gate;
    table = Table::Make(options).value();
    for (std::uint64_t piece = 0; piece < 2; ++piece) {
      RowTrackedOptions tracked;
      tracked.name = "items";
      tracked.rows = 20;
      tracked.first_row = 20 * piece;
      tracked.whole_rows = 40;
      tracked.arrays = {{"weights", DType::kF32, 2, &items[piece * 40]}};
      tracked.gate = gate;
      pieces.push_back(RowTracked::Make(tracked).value());
    }
  }

  double StepSparse(std::int64_t batch) {
    const CutGate::Batch inside(gate.get());
    const std::vector<std::int64_t> ids = {batch % 11, -batch};
    EXPECT_TRUE(table->ApplyGradients(ids, std::vector<float>(6, 0.5F)).ok());
    const std::int64_t row = batch % 40;
    const std::vector<std::int64_t> local = {row % 20};
    EXPECT_TRUE(pieces[static_cast<std::size_t>(row / 20)]->Touch(local).ok());
    for (std::size_t i = 0; i < 2; ++i) {
      items[static_cast<std::size_t>(row) * 2 + i] += static_cast<float>(batch + 1);
    }
    return Step(batch);
  }
  std::map<std::int64_t, std::vector<float>> Rows() {
    std::map<std::int64_t, std::vector<float>> rows;
    EXPECT_TRUE(table
                    ->ForEach([&](const RowView& row) {
                      auto& all = rows[row.key];
                      all.assign(row.weights.begin(), row.weights.end());
                      all.insert(all.end(), row.slots.begin(), row.slots.end());
                      all.push_back(static_cast<float>(row.version));
                      return Status::Ok();
                    })
                    .ok());
    return rows;
  }

  std::shared_ptr<CutGate> gate = std::make_shared<CutGate>();
  std::unique_ptr<Table> table;
  std::vector<float> items = std::vector<float>(80);
  std::vector<std::unique_ptr<RowTracked>> pieces;
};

class TrainerTablesTest : public TrainerTest {
 protected:
  std::unique_ptr<Trainer> OpenSparse(SparseTraining* training) {
    TrainerOptions options = Options(training, {.step_interval = 4});
    options.tables = {training->table.get()};
    options.arrays = {training->pieces[0].get(), training->pieces[1].get()};
    return OpenWith(std::move(options), training);
  }
  static Result<TrainResult> RunSparse(Trainer* trainer, SparseTraining* training,
                                       std::int64_t stop = -1) {
    NumberReader reader(kSteps, /*seekable=*/true);
    return trainer->Train(
        2, reader, [&](std::int64_t batch) { return training->StepSparse(batch); },
        [&](const TrainerEvent& event) {
          if (!std::holds_alternative<EndStepEvent>(event)) return;
          if (trainer->global_step() == stop) trainer->Stop();
        });
  }
};

TEST_F(TrainerTablesTest, RowsGoOnAsIfNothingHadHappened) {
  SparseTraining expected;
  {
    auto trainer = OpenSparse(&expected);
    ASSERT_TRUE(RunSparse(trainer.get(), &expected).ok());
    ASSERT_TRUE(trainer->Close().ok());
  }
  for (const std::int64_t stop : {1, 13, 26}) {
    store_ = MemoryStore::Open({.object_store = false}).value();
    {
      SparseTraining first;
      auto trainer = OpenSparse(&first);
      ASSERT_TRUE(RunSparse(trainer.get(), &first, stop).ok());
    }
    SparseTraining training;
    auto trainer = OpenSparse(&training);
    ASSERT_TRUE(trainer->resumed().has_value());
    ASSERT_EQ(trainer->resumed()->tables.size(), 2u);
    const auto result = RunSparse(trainer.get(), &training);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(training.Rows(), expected.Rows()) << stop;
    EXPECT_EQ(training.items, expected.items) << stop;
    EXPECT_TRUE(training.SameState(expected)) << stop;
    const std::string newest = Checkpoints().back().first;
    EXPECT_TRUE(store_->Stat(newest + "/__lookup_table__/trainer_0.safetensors").ok());
  }
}

TEST_F(TrainerTablesTest, RowsThatAHandlerOfBeginEpochChangesAreChangedOnceAnEpoch) {
  const auto run = [&](SparseTraining* training, std::int64_t stop) {
    auto trainer = OpenSparse(training);
    NumberReader reader(kSteps, /*seekable=*/true);
    auto result = trainer->Train(
        2, reader, [&](std::int64_t batch) { return training->StepSparse(batch); },
        [&](const TrainerEvent& event) {
          if (std::holds_alternative<BeginEpochEvent>(event)) training->StepSparse(17);
          if (std::holds_alternative<EndStepEvent>(event) && trainer->global_step() == stop) {
            trainer->Stop();
          }
        });
    EXPECT_TRUE(result.ok()) << result.status().ToString();
  };
  SparseTraining expected;
  run(&expected, -1);
  for (const std::int64_t stop : {1, 13, 26}) {
    store_ = MemoryStore::Open({.object_store = false}).value();
    SparseTraining first;
    run(&first, stop);
    SparseTraining training;
    run(&training, -1);
    EXPECT_EQ(training.Rows(), expected.Rows()) << stop;
    EXPECT_EQ(training.items, expected.items) << stop;
    EXPECT_TRUE(training.SameState(expected)) << stop;
  }
}

TEST_F(TrainerTablesTest, ATableThatIsNotStoredIsRefusedBeforeTheFirstStep) {
  {
    Training training;
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  SparseTraining training;
  TrainerOptions options = Options(&training);
  options.tables = {training.table.get()};
  const auto refused = OpenTrainer(options, Env());
  EXPECT_EQ(refused.status().reason(), Reason::kMismatch) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("users"));
}

TEST_F(TrainerTablesTest, RowsThatWouldBeInNoLaterCheckpointAreNotLostInSilence) {
  SparseTraining training;
  {
    auto trainer = OpenSparse(&training);
    ASSERT_TRUE(RunSparse(trainer.get(), &training).ok());
    ASSERT_TRUE(trainer->Close().ok());
  }
  SparseTraining fresh;
  TrainerOptions options = Options(&fresh);
  const auto refused = OpenTrainer(options, Env());
  EXPECT_EQ(refused.status().reason(), Reason::kMismatch) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("users"));
  EXPECT_TRUE(fresh.SameState(SparseTraining())) << "changed before it was refused";
  options.strict = false;
  EXPECT_TRUE(OpenTrainer(options, Env()).ok());
}

}  // namespace
}  // namespace cairn

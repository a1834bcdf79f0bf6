#include <cairn/estimator.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <vector>

#include "serving/model/test_graph.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kDim = 4;

/// Each step sets the row of its feature, and one dense weight, to the label.
class EstimatorTest : public ::testing::Test {
 protected:
  using Clicks = Estimator<std::int64_t, float, float>;

  EstimatorTest() {
    TableOptions options;
    options.name = "t";
    options.dim = kDim;
    options.optimizer = MakeSgd({0.1F}).value();
    options.initializer = MakeConstant(0).value();
    table_ = Table::Make(options).value();
  }
  SessionOptions Session(bool increments) {
    SessionOptions session;
    session.save_checkpoint_secs = std::nullopt;
    session.save_checkpoint_steps = 100;
    if (increments) session.save_incremental_checkpoint_steps = 1;
    session.tables = {table_.get()};
    session.variables = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &weight_}};
    return session;
  }
  Clicks Make(bool increments) {
    return Clicks(
        [this](const std::int64_t& feature, const float& label, EstimatorMode, const float& scale) {
          return EstimatorSpec{
              .train_op = [this, feature, value = label * scale](std::int64_t) -> Status {
                weight_ = value;
                const std::vector<float> row(kDim, value);
                return table_->Assign(std::vector<std::int64_t>{feature}, row);
              },
              .loss = [label] { return 1.0 - label; }};
        },
        run_, 2.0F, Session(increments));
  }
  /// Batches (1, 1), (2, 2), …
  static Clicks::InputFn Batches(int count) {
    return [count] {
      return [count, next = 0]() mutable -> std::optional<Clicks::Batch> {
        if (next == count) return std::nullopt;
        ++next;
        return Clicks::Batch(next, static_cast<float>(next));
      };
    };
  }
  Clicks::ServingInputReceiverFn Receiver() {
    return [this]() -> Result<serving::ExportRequest> {
      serving::ExportRequest request;
      request.model = serving::SumGraph(kDim);
      request.feed_names = {"rows"};
      request.target_names = {"y"};
      request.tables = {{"rows", serving::ExportTable::Of(*table_)}};
      return request;
    };
  }

  TempDirectory directory_;
  const std::string run_ = directory_ / "run";
  const std::string export_ = directory_ / "export";
  std::unique_ptr<Table> table_;
  float weight_ = 0;
  std::vector<std::int64_t> trained_;
};

TEST_F(EstimatorTest, TrainsGoesOnAndIsServed) {
  Clicks estimator = Make(/*increments=*/true);
  ASSERT_TRUE(estimator.Train(Batches(100), {.steps = 3}).ok());
  EXPECT_EQ(estimator.global_step(), 3);
  EXPECT_EQ(estimator.last_loss(), -2.0);
  const serving::Exported exported =
      estimator.ExportSavedModel(export_, Receiver(), /*save_incr_model=*/true).value();
  EXPECT_EQ(exported.version, 1);

  serving::ModelOptions options;
  options.export_dir = export_;
  options.repository = run_;
  options.follow = false;
  const auto model = serving::Model::Open(options).value();
  const auto first = [&](std::int64_t id) {
    const auto outputs = model->Predict({{"rows", {DType::kI64, {1}, &id}}}).value();
    return *reinterpret_cast<const float*>(outputs[0].data.get());
  };
  EXPECT_EQ(model->Version().value().step, 3);
  EXPECT_EQ(first(3), 12) << "the row is 6, and so is the weight";
  // Another process: the same command goes on after step 3, to 5 in all.
  Clicks again = Make(/*increments=*/true);
  ASSERT_TRUE(again.Train(Batches(100), {.max_steps = 5}).ok());
  EXPECT_EQ(again.global_step(), 5);
  ASSERT_TRUE(model->Update().ok());
  EXPECT_EQ(model->Version().value().step, 5);
  EXPECT_EQ(first(2), 8) << "the second batch of the second training: 4, and the weight 4";
}

TEST_F(EstimatorTest, ACallThatWasCutOffGoesOnInTheData) {
  // Each batch i sets row i to 2 i; the training ends with an error, as a process that is killed.
  const auto cut_off = [this](const EstimatorSteps& wanted, std::int64_t at) {
    Clicks estimator(
        [this, at](const std::int64_t& feature, const float& label, EstimatorMode, const float&) {
          return EstimatorSpec{.train_op = [this, at, feature, label](std::int64_t step) -> Status {
            if (step == at) return InternalError("cut off");
            trained_.push_back(feature);
            return table_->Assign(std::vector<std::int64_t>{feature},
                                  std::vector<float>(kDim, label));
          }};
        },
        run_, 1.0F, Session(/*increments=*/true));
    return estimator.Train(Batches(10), wanted);
  };
  for (const EstimatorSteps& wanted :
       {EstimatorSteps{}, EstimatorSteps{.steps = 8}, EstimatorSteps{.max_steps = 8}}) {
    std::filesystem::remove_all(run_);
    trained_.clear();
    for (const std::int64_t at : {3, 5}) {
      EXPECT_EQ(cut_off(wanted, at).code(), Code::kInternal);
    }
    ASSERT_TRUE(cut_off(wanted, -1).ok());
    const std::int64_t last = wanted.steps || wanted.max_steps ? 8 : 10;
    std::vector<std::int64_t> each(static_cast<std::size_t>(last));
    std::iota(each.begin(), each.end(), 1);
    EXPECT_EQ(trained_, each) << "each batch once";
    // That one is done: the next begins with its own first batch.
    trained_.clear();
    ASSERT_TRUE(cut_off({.steps = 2}, -1).ok());
    EXPECT_THAT(trained_, ElementsAre(1, 2));
  }
}

TEST_F(EstimatorTest, ACallThatWasDoneLeavesTheOneThatWasNot) {
  // Two calls of one program, the second of which is cut off.
  for (const std::int64_t at : {6, -1}) {
    trained_.clear();
    Status done;
    for (const std::int64_t to : {4, 8}) {
      Clicks estimator(
          [&](const std::int64_t& feature, const float&, EstimatorMode, const float&) {
            return EstimatorSpec{.train_op = [this, at, feature](std::int64_t step) -> Status {
              if (step == at) return InternalError("cut off");
              trained_.push_back(feature);
              return table_->Assign(std::vector<std::int64_t>{feature}, std::vector<float>(kDim));
            }};
          },
          run_, 1.0F, Session(/*increments=*/true));
      done = estimator.Train(Batches(10), {.max_steps = to});
    }
    EXPECT_EQ(done.ok(), at < 0);
  }
  EXPECT_THAT(trained_, ElementsAre(3, 4));
}

TEST_F(EstimatorTest, AnExportForIncrementsWantsATrainingThatSavesSome) {
  Clicks estimator = Make(/*increments=*/false);
  ASSERT_TRUE(estimator.Train(Batches(2)).ok()) << "until the data ends";
  EXPECT_EQ(estimator.global_step(), 2);
  const Status refused = estimator.ExportSavedModel(export_, Receiver(), true).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("save_incremental_checkpoint_secs"));
  EXPECT_FALSE(std::filesystem::exists(export_ + "/1"));
  EXPECT_EQ(estimator.ExportSavedModel(export_, Receiver()).value().version, 1);
}

TEST_F(EstimatorTest, WhatCannotBeTrainedIsSaid) {
  Clicks estimator = Make(/*increments=*/false);
  EXPECT_THAT(std::string(estimator.Train(Batches(0)).message()), HasSubstr("no data"));
  EXPECT_EQ(estimator.Train(Batches(1), {.steps = 1, .max_steps = 1}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(estimator.Train(Batches(1), {.steps = 0}).code(), Code::kInvalidArgument);
  Estimator<int> empty([](const int&, const std::monostate&, EstimatorMode,
                          const Value&) { return EstimatorSpec{}; },
                       run_);
  const Status none =
      empty.Train([] { return [] { return std::optional(std::pair(1, std::monostate())); }; });
  EXPECT_THAT(std::string(none.message()), HasSubstr("train_op"));
}

}  // namespace
}  // namespace cairn

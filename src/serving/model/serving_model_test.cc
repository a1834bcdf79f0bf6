#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <thread>
#include <utility>

#include <cairn/serving.h>

#include "serving/model/test_graph.h"
#include "serving/test_writer.h"
#include "storage/local/temp_directory.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kDim = 4;

class ServingModelTest : public ::testing::Test {
 protected:
  ServingModelTest() { session_.save_incremental_checkpoint_secs = 1; }
  Result<Exported> DoExport(bool increments = true) {
    ExportRequest request;
    request.directory = export_;
    request.model = SumGraph(kDim);
    request.feed_names = {"rows"};
    request.target_names = {"y"};
    request.tables = {{"rows", ExportTable::Of(*writer_.table())}};
    request.increments = increments;
    request.session = &session_;
    return Export(request);
  }
  Result<std::unique_ptr<Model>> TryOpen(ModelOptions options = {}) {
    options.export_dir = export_;
    options.repository = run_;
    options.follow = false;
    return Model::Open(options);
  }
  void Open(ModelOptions options = {}) {
    auto model = TryOpen(std::move(options));
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
  }
  /// All elements of "y" for these ids.
  std::vector<float> Predict(const std::vector<std::int64_t>& ids) {
    auto outputs = model_->Predict({{"rows", {DType::kI64, {ids.size()}, ids.data()}}});
    EXPECT_TRUE(outputs.ok()) << outputs.status().ToString();
    if (!outputs.ok()) return {};
    const auto* y = reinterpret_cast<const float*>((*outputs)[0].data.get());
    return {y, y + (*outputs)[0].bytes / 4};
  }

  TempDirectory directory_;
  const std::string run_ = directory_ / "run";
  const std::string export_ = directory_ / "export";
  SessionOptions session_;
  TestWriter writer_{run_};
  std::unique_ptr<Model> model_;
};

TEST_F(ServingModelTest, ServesTablesAndDenseVariablesOfTheNewestCheckpoint) {
  const Exported exported = DoExport().value();
  EXPECT_EQ(exported.version, 1);
  EXPECT_EQ(exported.path, export_ + "/1");
  writer_.Set({1, 2}, 3).Full(3);
  Open();
  EXPECT_EQ(model_->Version().value().step, 3);
  EXPECT_EQ(Predict({1, 7}), (std::vector<float>{6, 6, 6, 6, 3, 3, 3, 3})) << "7 has the default";
  std::vector<float> rows(2 * kDim);
  ASSERT_TRUE(model_->Lookup("t", std::vector<std::int64_t>{2, 7}, rows).ok());
  EXPECT_THAT(rows, ElementsAre(3, 3, 3, 3, 0, 0, 0, 0));
  EXPECT_TRUE(model_->fixed_weights().empty());

  const auto view = model_->Take().value();
  writer_.Set({1, 2}, 4).Increment(4);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{8, 8, 8, 8}));
  EXPECT_EQ(view->version().step, 3) << "a view stays what it was";
  const std::int64_t id = 1;
  const auto old = view->Predict({{"rows", {DType::kI64, {1}, &id}}}).value();
  EXPECT_EQ(*reinterpret_cast<const float*>(old[0].data.get()), 6);

  writer_.Set({8, 9}, 4).Increment(4);
  ASSERT_TRUE(model_->Update().ok());
  std::vector<std::uint64_t> rows_of_versions;
  for (const VersionInfo& info : model_->Versions()) rows_of_versions.push_back(info.rows);
  EXPECT_THAT(rows_of_versions, ElementsAre(2, 2, 4));

  ASSERT_TRUE(model_->Rollback(2).ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{6, 6, 6, 6}));
  writer_.Set({1}, 5).Increment(5);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(model_->Version().value().step, 3) << "held";
  model_->Resume();
  EXPECT_EQ(Predict({1, 2}), (std::vector<float>{10, 10, 10, 10, 9, 9, 9, 9}));
}

TEST_F(ServingModelTest, StopsFollowingAndServesOn) {
  ASSERT_TRUE(DoExport().ok());
  writer_.Set({1}, 3).Full(3);
  ModelOptions options;
  options.export_dir = export_;
  options.repository = run_;
  options.poll = std::chrono::milliseconds(5);
  model_ = Model::Open(options).value();
  model_->StopFollowing();
  writer_.Set({1}, 4).Increment(4);
  model_->Notify();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(model_->Version().value().step, 3);
  EXPECT_EQ(Predict({1}), (std::vector<float>{6, 6, 6, 6}));
  model_->StopFollowing();
}

TEST_F(ServingModelTest, TheSignatureAsksForIds) {
  DoExport().value();
  writer_.Full(1);
  Open();
  const ModelSignature& signature = model_->signature();
  ASSERT_EQ(signature.inputs.size(), 1u);
  EXPECT_EQ(signature.inputs[0], (TensorSignature{"rows", DType::kI64, {-1}}));
  const auto message = [&](const std::map<std::string, FeedTensor>& feeds) {
    const Status status = model_->Predict(feeds).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return std::string(status.message());
  };
  const float x[4] = {};
  const std::int64_t ids[2] = {};
  EXPECT_THAT(message({}), HasSubstr("\"rows\" is missing"));
  EXPECT_THAT(message({{"rows", {DType::kF32, {4}, x}}}), HasSubstr("wants I64"));
  EXPECT_THAT(message({{"rows", {DType::kI64, {1, 2}, ids}}}), HasSubstr("\"rows\""));
  EXPECT_THAT(message({{"rows", {DType::kI64, {2}, ids}}, {"z", {DType::kF32, {1}, x}}}),
              HasSubstr("no feed \"z\""));
  std::vector<float> out(4);
  EXPECT_THAT(std::string(model_->Lookup("u", {ids, 1}, out).message()), HasSubstr("no table"));
  EXPECT_EQ(model_->Lookup("t", ids, out).code(), Code::kInvalidArgument);
}

TEST_F(ServingModelTest, AProbeOutOfItsRangeKeepsTheVersionBefore) {
  DoExport().value();
  writer_.Set({1}, 1).Full(1);
  Probe probe;
  const std::int64_t id = 1;
  probe.feeds["rows"] = {DType::kI64, {1}, std::string(reinterpret_cast<const char*>(&id), 8)};
  probe.output = "y";
  probe.min = 0;
  probe.max = 10;
  for (const auto& [wrong, says] :
       {std::pair<std::function<void(Probe*)>, std::string>([](Probe* p) { p->feeds.clear(); },
                                                            "the input \"rows\" is missing"),
        {[](Probe* p) { p->feeds["rows"].dtype = DType::kF32; }, "not of the dtype and shape"},
        {[](Probe* p) { p->feeds["more"] = p->feeds["rows"]; }, "that the model does not have"},
        {[](Probe* p) { p->output = "z"; }, "\"z\" is no float32 output"},
        {[](Probe* p) { p->min = 11; }, "min is above max"}}) {
    Probe bad = probe;
    wrong(&bad);
    ModelOptions refused;
    refused.probes = {bad};
    refused.require_version = false;
    const Status status = TryOpen(refused).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
  std::vector<UpdateEvent> events;
  ModelOptions options;
  options.probes = {probe};
  options.on_update = [&](const UpdateEvent& event) { events.push_back(event); };
  Open(options);
  writer_.Set({1}, 100).Increment(2);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(model_->Version().value().step, 1);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, UpdateEvent::Kind::kRefused);
  EXPECT_THAT(events[1].message, HasSubstr("not between 0 and 10"));
  EXPECT_EQ(model_->stats().refused, 1u);
  writer_.Set({1}, 3).Increment(3);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{6, 6, 6, 6}));
}

TEST_F(ServingModelTest, ExportsAreNumberedAndRefuseWhatDoesNotFit) {
  EXPECT_EQ(DoExport().value().version, 1);
  session_.save_incremental_checkpoint_secs = 0;
  const Status none = DoExport().status();
  EXPECT_EQ(none.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("save_incremental_checkpoint_secs"));
  EXPECT_EQ(DoExport(/*increments=*/false).value().version, 2) << "a refused one leaves no number";

  ExportRequest request;
  request.directory = export_;
  request.model = SumGraph(kDim + 1);
  request.feed_names = {"rows"};
  request.target_names = {"y"};
  request.tables = {{"rows", ExportTable::Of(*writer_.table())}};
  EXPECT_THAT(std::string(Export(request).status().message()), HasSubstr("weights of a row"));
  request.tables = {{"row", ExportTable::Of(*writer_.table())}};
  EXPECT_THAT(std::string(Export(request).status().message()), HasSubstr("none of feed_names"));
  request.tables = {};
  request.variables = {{"v", "w"}};
  EXPECT_THAT(std::string(Export(request).status().message()), HasSubstr("no weight"));
  EXPECT_FALSE(fs::exists(export_ + "/3"));
}

TEST_F(ServingModelTest, AnExportWithoutIncrementsTakesFullsOnly) {
  DoExport(/*increments=*/false).value();
  writer_.Set({1}, 1).Full(1);
  writer_.Set({1}, 2).Increment(2);
  std::vector<UpdateEvent> events;
  ModelOptions options;
  options.on_update = [&](const UpdateEvent& event) { events.push_back(event); };
  Open(options);
  EXPECT_EQ(model_->Version().value().step, 1);
  ASSERT_FALSE(events.empty());
  EXPECT_THAT(events[0].message, HasSubstr("full checkpoints only"));
  writer_.Full(3);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(model_->Version().value().step, 3);
}

TEST_F(ServingModelTest, WithoutACheckpointOrAnExportItSaysWhatIsMissing) {
  EXPECT_THAT(TryOpen().status().ToString(), HasSubstr("export"));
  DoExport().value();
  EXPECT_THAT(TryOpen().status().ToString(), HasSubstr("no checkpoint yet"));
  ModelOptions patient;
  patient.require_version = false;
  Open(patient);
  EXPECT_EQ(model_->Version().status().code(), Code::kUnavailable);
  EXPECT_EQ(model_->Predict({}).status().code(), Code::kUnavailable);
  writer_.Set({1}, 1).Full(1);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{2, 2, 2, 2}));
}

TEST_F(ServingModelTest, ADenseVariableThatIsNotFiniteIsRefused) {
  DoExport().value();
  writer_.Set({1}, 1).Full(1);
  Open();
  writer_.Weight(std::numeric_limits<float>::quiet_NaN()).Increment(2);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(model_->Version().value().step, 1);
  EXPECT_THAT(model_->stats().last_problem, HasSubstr("\"w\" has NaN"));
}

TEST_F(ServingModelTest, AVariableThatCheckpointsHadDoesNotGoBackToTheExportedOne) {
  DoExport().value();
  writer_.Set({1}, 1).Full(1);
  Open();
  writer_.Name("renamed").Set({1}, 2).Increment(2);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{2, 2, 2, 2})) << "rows and weight of step 1";
  EXPECT_THAT(model_->stats().last_problem, HasSubstr("no variable \"w\""));
  writer_.Name("model/w").Set({1}, 3).Increment(3);
  ASSERT_TRUE(model_->Update().ok());
  EXPECT_EQ(Predict({1}), (std::vector<float>{6, 6, 6, 6})) << "found behind the last /";
}

TEST_F(ServingModelTest, AVariableOfAnotherShapeOrANameThatIsMissingIsSaid) {
  ExportRequest request;
  request.directory = export_;
  request.model = SumGraph(kDim);
  request.feed_names = {"rows"};
  request.target_names = {"y"};
  request.tables = {{"rows", ExportTable::Of(*writer_.table())}};
  request.variables = {{"w", "layer/w"}};
  ASSERT_TRUE(Export(request).ok());
  writer_.Full(1);
  const Status missing = TryOpen().status();
  EXPECT_EQ(missing.reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no variable \"layer/w\""));
}

}  // namespace
}  // namespace cairn::serving

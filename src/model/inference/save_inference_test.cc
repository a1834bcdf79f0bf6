#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>
#include <cairn/io.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTraining = "tests/compat/foreign/onnx_1/training.onnx";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

SaveInferenceRequest Request(const TempDirectory& directory) {
  return {.directory = directory / "model",
          .model_path = kTraining,
          .feed_names = {"x"},
          .target_names = {"probability"}};
}

TEST(SaveInferenceTest, KeepsWhatTheTargetNeedsAndNothingElse) {
  TempDirectory directory;
  const SavedInferenceModel saved = SaveInferenceModel(Request(directory)).value();
  EXPECT_EQ(saved.nodes, 6u);
  EXPECT_EQ(saved.pruned_nodes, 6u);
  EXPECT_THAT(saved.weights, ElementsAre("bn.bias", "bn.mean", "bn.scale", "bn.var", "fc1.b",
                                         "fc1.w", "fc2.b", "fc2.w"));
  EXPECT_THAT(saved.left_out,
              ElementsAre("auc.positives", "fc2.w_velocity", "lr", "ratio", "step", "training"));
  EXPECT_EQ(saved.signature.inputs, (std::vector<TensorSignature>{{"x", DType::kF32, {-1, 5}}}));
  EXPECT_EQ(saved.signature.outputs,
            (std::vector<TensorSignature>{{"probability", DType::kF32, {-1, 1}}}));
  EXPECT_TRUE(Verify(directory / "model", /*deep=*/true).value().ok());
}

TEST(SaveInferenceTest, TheProgramIsNotChanged) {
  TempDirectory directory;
  SaveInferenceRequest request = Request(directory);
  request.model = ReadFile(kTraining);
  request.model_path.clear();
  const std::string before = request.model;
  ASSERT_TRUE(SaveInferenceModel(request).ok());
  EXPECT_EQ(request.model, before);
}

TEST(SaveInferenceTest, TheWeightsAreOneCopyThatBothFilesShare) {
  TempDirectory directory;
  const SavedInferenceModel saved = SaveInferenceModel(Request(directory)).value();
  const std::string params = fs::path(saved.model_path).replace_filename("params.safetensors");
  const std::vector<OwnedTensor> of_params = ReadForeign({.path = params}).value();
  const std::vector<OwnedTensor> of_model = ReadForeign({.path = saved.model_path}).value();
  ASSERT_EQ(of_params.size(), of_model.size());
  for (std::size_t i = 0; i < of_params.size(); ++i) {
    EXPECT_EQ(of_params[i].name, of_model[i].name);
    EXPECT_EQ(of_params[i].shape, of_model[i].shape);
    EXPECT_EQ(0, std::memcmp(of_params[i].data.get(), of_model[i].data.get(), of_params[i].bytes));
  }
  EXPECT_LT(fs::file_size(saved.model_path), fs::file_size(kTraining)) << "no weights inside";
}

TEST(SaveInferenceTest, ParametersAreLoadedOutOfAnInferenceModel) {
  TempDirectory directory;
  ASSERT_TRUE(SaveInferenceModel(Request(directory)).ok());
  Scope scope;
  ASSERT_TRUE(scope.Parameter("fc1.w", DType::kF32, {5, 8}).ok());
  EXPECT_TRUE(LoadVars(directory / "model", &scope, {}, {.stored = StoredVars::kAsked}).ok());
  EXPECT_THAT(LoadParams(directory / "model", &scope).status().ToString(), HasSubstr("fc2.w"));
}

TEST(SaveInferenceTest, StatisticsOfBatchNormalisationAreNoParameters) {
  TempDirectory directory;
  SaveInferenceRequest request = Request(directory);
  request.persistables = {"fc2.b", "nobody's"};
  const SavedInferenceModel saved = SaveInferenceModel(request).value();
  const std::vector<OwnedTensor> stored =
      ReadForeign({.path = saved.info.path + "/__model__"}).value();
  const auto declare = [&](Scope* scope, const std::vector<std::string>& persistables) {
    for (const OwnedTensor& tensor : stored) {
      const bool parameter =
          std::find(persistables.begin(), persistables.end(), tensor.name) == persistables.end();
      const auto role = parameter ? &Scope::Parameter : &Scope::Persistable;
      ASSERT_TRUE((scope->*role)(tensor.name, tensor.dtype, tensor.shape, VariableOptions{}).ok());
    }
  };
  Scope scope;
  declare(&scope, {"bn.mean", "bn.var", "fc2.b"});
  const auto loaded = LoadParams(directory / "model", &scope);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->names.size(), 5u);
  EXPECT_THAT(loaded->skipped, Contains(std::pair("bn.mean", "not a parameter")));
  EXPECT_TRUE(LoadPersistables(directory / "model", &scope).ok());
}

TEST(SaveInferenceTest, AnInnerTensorCanBeAFeed) {
  TempDirectory directory;
  SaveInferenceRequest request = Request(directory);
  request.feed_names = {"h4"};
  const auto saved = SaveInferenceModel(request);
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_EQ(saved->nodes, 2u);
  EXPECT_THAT(saved->weights, ElementsAre("fc2.b", "fc2.w"));
}

struct Refusal {
  std::string name;
  std::vector<std::string> feeds;
  std::vector<std::string> targets;
  std::string says;
};
void PrintTo(const Refusal& r, std::ostream* out) { *out << r.name; }

class SaveInferenceRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(SaveInferenceRefusalTest, NamesTheThingAndWritesNothing) {
  TempDirectory directory;
  SaveInferenceRequest request = Request(directory);
  request.feed_names = GetParam().feeds;
  request.target_names = GetParam().targets;
  const Status refused = SaveInferenceModel(request).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(GetParam().says));
  EXPECT_FALSE(fs::exists(directory / "model"));
}

INSTANTIATE_TEST_SUITE_P(
    Inference, SaveInferenceRefusalTest,
    ::testing::Values(
        Refusal{"a_feed_that_is_missing", {"x"}, {"loss"}, "needs \"label\""},
        Refusal{"a_target_that_is_not_there", {"x"}, {"logits"}, "no operator computes \"logits\""},
        Refusal{"a_feed_that_is_not_there", {"y"}, {"probability"}, "no tensor \"y\""},
        Refusal{"a_feed_that_nothing_needs", {"x", "label"}, {"probability"}, "needs \"label\""},
        Refusal{"a_weight_as_feed", {"fc1.w"}, {"probability"}, "is a weight"},
        Refusal{"no_target", {"x"}, {}, "target_names"},
        Refusal{"a_feed_twice", {"x", "x"}, {"probability"}, "twice"},
        Refusal{"a_feed_as_target", {"h4"}, {"h4"}, "is a feed too"},
        Refusal{"a_training_operator", {"x"}, {"after_update"}, "Momentum"},
        Refusal{"training_statistics", {"x"}, {"bn.new_mean"}, "bn.new_mean"}),
    [](const auto& info) { return info.param.name; });

TEST(SaveInferenceTest, BytesThatAreNoModelAreCorruption) {
  TempDirectory directory;
  SaveInferenceRequest request = Request(directory);
  request.model = "this is no model";
  request.model_path.clear();
  EXPECT_EQ(SaveInferenceModel(request).status().code(), Code::kCorruption);
  request.model.clear();
  EXPECT_EQ(SaveInferenceModel(request).status().code(), Code::kInvalidArgument);
  request.model_path = directory / "nowhere.onnx";
  EXPECT_EQ(SaveInferenceModel(request).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace cairn

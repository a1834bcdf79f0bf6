// Needs the plugin with OpenVINO; skipped where it was not built.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <cairn/inference.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kTraining = "tests/compat/foreign/onnx_1/training.onnx";

class InferenceModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Save(kTraining).ok());
    auto model = InferenceModel::Load(path_);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
  }
  Result<SavedInferenceModel> Save(const std::string& model) {
    return SaveInferenceModel({.directory = path_,
                               .model_path = model,
                               .feed_names = {"x"},
                               .target_names = {"probability", "logit"}});
  }
  Result<std::vector<OwnedTensor>> Run(const std::vector<float>& x) {
    return model_->Run({{"x", {DType::kF32, {x.size() / 5, 5}, x.data()}}});
  }
  static std::vector<float> Floats(const OwnedTensor& tensor) {
    const auto* begin = reinterpret_cast<const float*>(tensor.data.get());
    return {begin, begin + tensor.bytes / 4};
  }

  TempDirectory directory_;
  const std::string path_ = directory_ / "model";
  std::unique_ptr<InferenceModel> model_;
};

TEST_F(InferenceModelTest, RunsTheGraphInInferenceMode) {
  const std::vector<float> x = {1, 2, 3, 4, 5, -1, 0, 1, 0, -1};
  const std::vector<OwnedTensor> first = Run(x).value();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].name, "probability");
  EXPECT_EQ(first[0].shape, (std::vector<std::uint64_t>{2, 1}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(Floats(first[0])[i], 1 / (1 + std::exp(-Floats(first[1])[i])), 1e-6);
  }
  // Neither dropout nor the batch has a say.
  const std::vector<OwnedTensor> again = Run({1, 2, 3, 4, 5}).value();
  EXPECT_NEAR(Floats(again[1])[0], Floats(first[1])[0], 1e-6);
}

TEST_F(InferenceModelTest, AFeedThatDoesNotFitIsNamed) {
  const float x[10] = {};
  const auto message = [&](const std::map<std::string, FeedTensor>& feeds) {
    const Status status = model_->Run(feeds).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("\"x\" is missing"));
  EXPECT_THAT(message({{"x", {DType::kF32, {2, 5}, x}}, {"y", {DType::kF32, {1}, x}}}),
              HasSubstr("no feed \"y\""));
  EXPECT_THAT(message({{"x", {DType::kF64, {1, 5}, x}}}), HasSubstr("F64 [1,5]"));
  EXPECT_THAT(message({{"x", {DType::kF32, {2, 4}, x}}}), HasSubstr("wants F32 [?,5]"));
  EXPECT_THAT(message({{"x", {DType::kF32, {5}, x}}}), HasSubstr("\"x\""));
  EXPECT_THAT(message({{"x", {DType::kF32, {1, 5}, nullptr}}}), HasSubstr("no memory"));
}

TEST_F(InferenceModelTest, ManyThreadsGetTheirOwnAnswers) {
  std::vector<float> expected;
  for (int i = 0; i < 4; ++i) {
    const auto f = static_cast<float>(i);
    expected.push_back(Floats(Run({f, f, f, f, f}).value()[1])[0]);
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto f = static_cast<float>(i);
      for (int round = 0; round < 200; ++round) {
        const auto out = Run({f, f, f, f, f});
        wrong[i] += !out.ok() || Floats((*out)[1])[0] != expected[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

/// Feeds of sizes that are copied and that are not, in turn, from memory of their own or the same:
/// a request that ran before must not answer with what it was given then.
TEST_F(InferenceModelTest, EveryRunHasItsOwnFeedsWhateverRanBefore) {
  const auto row = [](int i) {
    return std::vector<float>{float(i), 0.5F, float(-i), 0.25F * float(i), 1};
  };
  constexpr int kRows = 7;
  std::vector<float> expected;
  for (int i = 0; i < kRows; ++i) expected.push_back(Floats(Run(row(i)).value()[1])[0]);

  const auto wrong = [&](int first, int count, std::vector<float>* x) {
    x->clear();
    for (int i = 0; i < count; ++i) {
      const std::vector<float> values = row((first + i) % kRows);
      x->insert(x->end(), values.begin(), values.end());
    }
    const auto out = Run(*x);
    if (!out.ok()) return count;
    const std::vector<float> logits = Floats((*out)[1]);
    if (static_cast<int>(logits.size()) != count) return count;
    int bad = 0;
    for (int i = 0; i < count; ++i) {
      bad += std::abs(logits[i] - expected[(first + i) % kRows]) > 1e-5F;
    }
    return bad;
  };
  constexpr int kCounts[] = {1, 1, 3, 1, 1000, 1000, 3, 1, 0, 1, 1000, 204, 205, 204, 1};
  std::vector<std::thread> threads;
  std::vector<int> bad(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> same(5000);  // the same memory with other numbers
      for (int round = 0; round < 30; ++round) {
        for (const int count : kCounts) {
          bad[t] += wrong(round + t, count, &same);
          std::vector<float> fresh;
          bad[t] += wrong(round + t + 1, count, &fresh);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, std::vector<int>(3, 0));
}

TEST_F(InferenceModelTest, NewWeightsAreReloadedAndAnotherGraphIsRefused) {
  const float before = Floats(Run({1, 1, 1, 1, 1}).value()[1])[0];
  const std::string first = model_->info().id;
  // The same graph with another bias: its last four bytes of data, found by their value.
  std::ifstream in(kTraining, std::ios::binary);
  std::string model((std::istreambuf_iterator<char>(in)), {});
  const std::size_t name = model.find("fc2.b", model.rfind("fc2.b"));
  ASSERT_NE(name, model.npos);
  const float bias = 100;
  // TensorProto: …, name = "fc2.b" (field 8), raw_data (field 9) = 4 bytes.
  const std::size_t raw = model.find(std::string("\x4a\x04", 2), name);
  ASSERT_NE(raw, model.npos);
  std::memcpy(model.data() + raw + 2, &bias, 4);
  std::ofstream(directory_ / "other.onnx", std::ios::binary) << model;
  ASSERT_TRUE(Save(directory_ / "other.onnx").ok());
  ASSERT_TRUE(model_->Reload().ok());
  EXPECT_GT(Floats(Run({1, 1, 1, 1, 1}).value()[1])[0], before + 50);
  EXPECT_NE(model_->info().id, first);
  EXPECT_EQ(model_->graph_reads(), 1u);

  ASSERT_TRUE(SaveInferenceModel({.directory = path_,
                                  .model_path = kTraining,
                                  .feed_names = {"x"},
                                  .target_names = {"logit"}})
                  .ok());
  EXPECT_EQ(model_->Reload().code(), Code::kFailedPrecondition);
  EXPECT_GT(Floats(Run({1, 1, 1, 1, 1}).value()[1])[0], before + 50) << "as it was";
}

TEST_F(InferenceModelTest, AFlippedByteIsFoundBeforeItRuns) {
  const std::string params =
      fs::path(model_->info().path + "/__model__/params.safetensors").string();
  fs::permissions(params, fs::perms::owner_write, fs::perm_options::add);
  {
    std::fstream file(params, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('~');
  }
  EXPECT_EQ(InferenceModel::Load(path_).status().code(), Code::kCorruption);
}

TEST_F(InferenceModelTest, ASaveOfVariablesIsNoModel) {
  EXPECT_EQ(InferenceModel::Load(directory_ / "nowhere").status().code(), Code::kNotFound);
}

TEST(InferencePluginTest, AMissingRuntimeSaysWhatToInstall) {
  TempDirectory directory;
  ASSERT_TRUE(SaveInferenceModel({.directory = directory / "model",
                                  .model_path = kTraining,
                                  .feed_names = {"x"},
                                  .target_names = {"probability"}})
                  .ok());
  const Status missing =
      InferenceModel::Load(directory / "model", {.plugin = "/nowhere/plugin.so"}).status();
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("OpenVINO"));
}

}  // namespace
}  // namespace cairn

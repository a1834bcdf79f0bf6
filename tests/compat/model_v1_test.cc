// Saves by role and inference models of format version 1, as they were written once and for ever:
// tests/compat/model_v1/ holds a save of variables with a file for each, one in a single file, and
// an inference model. They must load as long as there is a Cairn; the files are never changed.
//
// CAIRN_WRITE_GOLDEN=1 writes those that do not exist yet.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <cairn/io.h>
#include <cairn/scope.h>

#include "model/variable_record.h"
#ifdef CAIRN_COMPAT_INFERENCE
#include <cairn/inference.h>

#include "model/inference/signature.h"
#endif

namespace cairn {
namespace {

namespace fs = std::filesystem;

const std::string kRoot = "tests/compat/model_v1/";

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool Writing(const std::string& path) {
  return std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !fs::exists(path);
}

void Build(Scope* scope) {
  ASSERT_TRUE(scope->Parameter("fc/w", DType::kF32, {2, 3}).ok());
  ASSERT_TRUE(scope->Parameter("fc/b", DType::kF32, {3}).ok());
  ASSERT_TRUE(scope->Persistable("fc/w_velocity", DType::kF32, {2, 3}).ok());
  ASSERT_TRUE(scope->Persistable("step", DType::kI64, {}).ok());
}

void Fill(Scope* scope) {
  float value = 0.5F;
  for (const std::string name : {"fc/w", "fc/b", "fc/w_velocity"}) {
    for (float& element : scope->Values<float>(name).value()) element = value++;
  }
  scope->Values<std::int64_t>("step").value()[0] = 42;
}

void Check(const std::string& name, const std::string& filename) {
  Scope golden;
  Build(&golden);
  Fill(&golden);
  const std::string path = kRoot + name;
  if (Writing(path)) {
    ASSERT_TRUE(SavePersistables(path, golden, {.filename = filename}).ok());
  }
  Scope scope;
  Build(&scope);
  const auto loaded = LoadPersistables(path, &scope);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  for (const Variable& variable : golden.Vars()) {
    const auto found = scope.Bytes(variable.name).value();
    EXPECT_EQ(0, std::memcmp(found.data(), variable.data.get(), variable.bytes)) << variable.name;
  }
  const std::string record = ReadFile(loaded->info.path + "/rank_0/variables.json");
  EXPECT_EQ(EncodeVariableRoles(DecodeVariableRoles(record).value()), record);
}

TEST(ModelFormatV1Test, AFilePerVariableLoads) { Check("variables", ""); }

TEST(ModelFormatV1Test, ThePageShowsTheseBytes) {
  const std::string record = ReadFile(kRoot + "variables/checkpoint_000000/rank_0/variables.json");
  EXPECT_NE(ReadFile("docs/format/variables.md").find("```json\n" + record + "```"),
            std::string::npos);
}

TEST(ModelFormatV1Test, ASingleFileLoads) { Check("single_file", "all"); }

#ifdef CAIRN_COMPAT_INFERENCE
TEST(ModelFormatV1Test, AnInferenceModelLoads) {
  const std::string path = kRoot + "inference";
  if (Writing(path)) {
    ASSERT_TRUE(SaveInferenceModel({.directory = path,
                                    .model_path = "tests/compat/foreign/onnx_1/training.onnx",
                                    .feed_names = {"x"},
                                    .target_names = {"probability"}})
                    .ok());
  }
  const std::string model = path + "/checkpoint_000000/__model__/";
  const std::string record = ReadFile(model + "signature.json");
  const ModelSignature signature = DecodeSignature(record).value();
  EXPECT_EQ(EncodeSignature(signature), record);
  EXPECT_EQ(signature.inputs.at(0), (TensorSignature{"x", DType::kF32, {-1, 5}}));
  EXPECT_EQ(ReadForeign({.path = model + "model.onnx"}).value().size(), 8u);
  const auto program = InferenceModel::Load(path);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const float x[5] = {1, 2, 3, 4, 5};
  EXPECT_TRUE((*program)->Run({{"x", {DType::kF32, {1, 5}, x}}}).ok());
}
#endif

}  // namespace
}  // namespace cairn

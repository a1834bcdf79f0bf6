#include "model/inference/signature.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(SignatureTest, ComesBack) {
  const ModelSignature signature{{{"x", DType::kF32, {-1, 5}}, {"ids", DType::kI64, {}}},
                                 {{"probability", DType::kBF16, {3}}}};
  EXPECT_EQ(DecodeSignature(EncodeSignature(signature)).value(), signature);
}

TEST(SignatureTest, DamageIsCorruption) {
  for (
      const char* text :
      {"", "[]", "{}", R"({"version": 1})", R"({"version": 0, "inputs": [], "outputs": []})",
       R"({"version": 1, "inputs": [1], "outputs": []})",
       R"({"version": 1, "inputs": [{"name": "x", "dtype": "F32"}], "outputs": []})",
       R"({"version": 1, "inputs": [{"name": "x", "dtype": "F33", "shape": []}], "outputs": []})",
       R"({"version": 1, "inputs": [{"name": "x", "dtype": "F32", "shape": [-2]}], "outputs": []})",
       R"({"version": 1, "inputs": [], "outputs": [{"name": "", "dtype": "F32", "shape": []}]})"}) {
    EXPECT_EQ(DecodeSignature(text).status().code(), Code::kCorruption) << text;
  }
  EXPECT_EQ(DecodeSignature(R"({"version": 2, "inputs": [], "outputs": []})").status().code(),
            Code::kUnimplemented);
}

}  // namespace
}  // namespace cairn

#include <cairn/initializer.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "table/random_stream.h"

namespace cairn::table {
namespace {

std::vector<float> Many(const Initializer& initializer) {
  std::vector<float> all;
  std::vector<float> row(16);
  for (std::uint64_t stream = 1; stream <= 4000; ++stream) {
    initializer.Fill(RowStream(7, static_cast<std::int64_t>(stream)), row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

void ExpectMoments(const std::vector<float>& values, double mean, double stddev) {
  double sum = 0;
  double square = 0;
  for (const float x : values) {
    sum += static_cast<double>(x);
    square += static_cast<double>(x) * static_cast<double>(x);
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, mean, 0.02 * (stddev + 0.01));
  EXPECT_NEAR(std::sqrt(square / n - sum / n * (sum / n)), stddev, 0.02 * stddev);
}

TEST(Initializer, ConstantIsConstant) {
  for (const float x : Many(*MakeConstant(0.25F).value())) ASSERT_EQ(x, 0.25F);
}

TEST(Initializer, UniformStaysInsideAndIsEven) {
  const auto values = Many(*MakeUniform(-1, 3).value());
  for (const float x : values) ASSERT_TRUE(x >= -1 && x < 3);
  ExpectMoments(values, 1, 4 / std::sqrt(12.0));
}

TEST(Initializer, NormalHasItsMoments) {
  ExpectMoments(Many(*MakeNormal(0.5F, 2).value()), 0.5, 2);
}

TEST(Initializer, TruncatedNormalStaysWithinTwoDeviations) {
  const auto values = Many(*MakeTruncatedNormal(0, 1).value());
  for (const float x : values) ASSERT_LE(std::fabs(x), 2);
  ExpectMoments(values, 0, 0.8796);
}

TEST(Initializer, IsAPureFunctionOfTheStream) {
  for (const auto& made : {MakeUniform(0, 1), MakeNormal(0, 1), MakeTruncatedNormal(0, 1)}) {
    std::vector<float> first(8);
    std::vector<float> again(8);
    std::vector<float> other(8);
    made.value()->Fill(1, first);
    made.value()->Fill(2, other);
    made.value()->Fill(1, again);
    EXPECT_EQ(first, again);
    EXPECT_NE(first, other);
  }
}

TEST(Initializer, ElementsDoNotDependOnTheLengthOfTheRow) {
  std::vector<float> narrow(4);
  std::vector<float> wide(8);
  const auto normal = MakeNormal(0, 1).value();
  normal->Fill(9, narrow);
  normal->Fill(9, wide);
  EXPECT_EQ(narrow, std::vector<float>(wide.begin(), wide.begin() + 4));
}

TEST(Initializer, RefusesSettingsThatMakeNoSense) {
  EXPECT_TRUE(MakeUniform(1, 0).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(MakeNormal(0, -1).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(MakeConstant(NAN).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

#include "format/row_quantization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace cairn {
namespace {

std::vector<float> RoundTrip(const std::vector<float>& row) {
  const float scale = RowScale(row);
  std::vector<std::int8_t> stored(row.size());
  QuantizeRow(row, scale, stored.data());
  std::vector<float> back(row.size());
  DequantizeRow(stored.data(), scale, back);
  return back;
}

TEST(Quantize, IsOffByHalfAStepAtMost) {
  const std::vector<float> row = {0.1F, -3.7F, 2.2F, 0, 3.6999F, -0.01F};
  const auto back = RoundTrip(row);
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(back[i], row[i], 3.7F / 127 / 2 + 1e-6F);
}

TEST(Quantize, KeepsZerosAndExtremes) {
  EXPECT_EQ(RoundTrip({0, 0, 0}), (std::vector<float>{0, 0, 0}));
  const auto back = RoundTrip({127, -127, 1});
  EXPECT_EQ(back, (std::vector<float>{127, -127, 1}));
}

TEST(Quantize, SmallNumbersBecomeTheSmallestThereIsWhereAskedFor) {
  const std::vector<float> row = {127, 0.001F, 0, -0.001F, 0.6F};
  std::vector<std::int8_t> stored(row.size());
  QuantizeRow(row, RowScale(row), stored.data(), /*keep_small=*/true);
  EXPECT_EQ(stored, (std::vector<std::int8_t>{127, 1, 0, -1, 1}));
  QuantizeRow(row, RowScale(row), stored.data());
  EXPECT_EQ(stored, (std::vector<std::int8_t>{127, 0, 0, 0, 1}));
}

TEST(Quantize, ARowThatIsNotFiniteStaysSo) {
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    for (const float x : RoundTrip({1, bad, 2})) EXPECT_FALSE(std::isfinite(x));
  }
}

TEST(Quantize, TinyNumbersDoNotOverflow) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const float x : RoundTrip({tiny, -tiny})) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace cairn

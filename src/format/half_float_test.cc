#include "format/half_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cairn {
namespace {

TEST(HalfFloat, EveryHalfSurvivesTheWayThroughFloat32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (std::isnan(FromFloat16(half))) {
      EXPECT_TRUE(std::isnan(FromFloat16(ToFloat16(FromFloat16(half)))));
    } else {
      ASSERT_EQ(ToFloat16(FromFloat16(half)), half);
    }
    if (std::isnan(FromBFloat16(half))) {
      EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(FromBFloat16(half)))));
    } else {
      ASSERT_EQ(ToBFloat16(FromBFloat16(half)), half);
    }
  }
}

TEST(HalfFloat, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const float a = FromFloat16(low);
    const float b = FromFloat16(static_cast<std::uint16_t>(low + 1));
    const float middle = (a + b) / 2;  // exact in float32
    ASSERT_EQ(ToFloat16(middle), (low & 1) == 0 ? low : low + 1);
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 0.0F)), low);
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 1e9F)), low + 1);
  }
}

TEST(HalfFloat, LargeNumbersBecomeInfinite) {
  EXPECT_EQ(ToFloat16(65504.0F), 0x7BFF);
  EXPECT_EQ(ToFloat16(65519.0F), 0x7BFF);
  EXPECT_EQ(ToFloat16(65520.0F), 0x7C00);
  EXPECT_EQ(ToFloat16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()), 0x7F80);
}

}  // namespace
}  // namespace cairn

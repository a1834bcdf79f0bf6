#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

void Compare(double power) {
  constexpr double kRate = 0.1;
  constexpr double kL1 = 0.05;
  constexpr double kL2 = 0.02;
  constexpr double kBeta = 0.3;
  const auto optimizer = MakeFtrl({.learning_rate = 0.1F,
                                   .learning_rate_power = static_cast<float>(power),
                                   .initial_accumulator_value = 0.1F,
                                   .l1 = 0.05F,
                                   .l2 = 0.02F,
                                   .beta = 0.3F})
                             .value();
  CompareWithFormula(*optimizer,
                     [&](double* w, double g, std::vector<double>* s, int) {
                       const double before = std::pow((*s)[0], -power);
                       (*s)[0] += g * g;
                       const double after = std::pow((*s)[0], -power);
                       (*s)[1] += g - (after - before) / kRate * *w;
                       const double z = (*s)[1];
                       *w = std::fabs(z) <= kL1 ? 0
                                                : -(z - std::copysign(kL1, z)) /
                                                      ((after + kBeta) / kRate + 2 * kL2);
                     },
                     2, {0.1, 0});
}

TEST(Ftrl, FollowsItsFormula) {
  Compare(-0.5);
  Compare(-0.7);
}

TEST(Ftrl, AGradientOfZeroFromTheStartLeavesNumbers) {
  ExpectFiniteOnZeros(*MakeFtrl({.initial_accumulator_value = 0}).value());
}

TEST(Ftrl, RefusesAPositivePower) {
  EXPECT_TRUE(MakeFtrl({.learning_rate_power = 0.5F}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

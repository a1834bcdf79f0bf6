#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(Adam, FollowsItsFormula) {
  const auto optimizer = MakeAdam({.learning_rate = 0.01F}).value();
  CompareWithFormula(*optimizer,
                     [](double* w, double g, std::vector<double>* s, int t) {
                       (*s)[0] = 0.9 * (*s)[0] + 0.1 * g;
                       (*s)[1] = 0.999 * (*s)[1] + 0.001 * g * g;
                       const double m = (*s)[0] / (1 - std::pow(0.9, t));
                       const double v = (*s)[1] / (1 - std::pow(0.999, t));
                       *w -= 0.01 * m / (std::sqrt(v) + 1e-8);
                     },
                     2, {0, 0});
}

TEST(Adam, CountsTheUpdatesOfEachRow) {
  const auto slots = MakeAdam({}).value()->Slots(8);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[2].name, "updates");
  EXPECT_EQ(slots[2].width, 1u);
}

TEST(Adam, AGradientOfZeroFromTheStartLeavesNumbers) {
  ExpectFiniteOnZeros(*MakeAdam({.epsilon = 0}).value());
}

TEST(Adam, RefusesABetaOfOne) {
  EXPECT_TRUE(MakeAdam({.beta1 = 1}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(MakeAdam({.beta2 = 1}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

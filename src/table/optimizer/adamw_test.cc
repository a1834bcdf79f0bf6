#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(AdamW, FollowsItsFormula) {
  const auto optimizer = MakeAdamW({.learning_rate = 0.01F, .weight_decay = 0.1F}).value();
  CompareWithFormula(*optimizer,
                     [](double* w, double g, std::vector<double>* s, int t) {
                       (*s)[0] = 0.9 * (*s)[0] + 0.1 * g;
                       (*s)[1] = 0.999 * (*s)[1] + 0.001 * g * g;
                       const double m = (*s)[0] / (1 - std::pow(0.9, t));
                       const double v = (*s)[1] / (1 - std::pow(0.999, t));
                       *w -= 0.01 * 0.1 * *w;
                       *w -= 0.01 * m / (std::sqrt(v) + 1e-8);
                     },
                     2, {0, 0});
}

TEST(AdamW, CountsTheUpdatesOfEachRow) {
  const auto slots = MakeAdamW({}).value()->Slots(8);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[2].name, "updates");
  EXPECT_EQ(slots[2].width, 1u);
}

TEST(AdamW, AGradientOfZeroFromTheStartLeavesNumbers) {
  ExpectFiniteOnZeros(*MakeAdamW({.epsilon = 0}).value());
}

TEST(AdamW, RefusesABetaOfOne) {
  EXPECT_TRUE(MakeAdamW({.beta1 = 1}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(MakeAdamW({.beta2 = 1}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(Momentum, FollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    const auto optimizer =
        MakeMomentum({.learning_rate = 0.1F, .momentum = 0.9F, .nesterov = nesterov}).value();
    CompareWithFormula(*optimizer,
                       [&](double* w, double g, std::vector<double>* s, int) {
                         (*s)[0] = 0.9 * (*s)[0] + g;
                         *w -= 0.1 * (nesterov ? g + 0.9 * (*s)[0] : (*s)[0]);
                       },
                       1, {0});
  }
}

TEST(Momentum, RefusesAMomentumOverOne) {
  EXPECT_TRUE(MakeMomentum({.momentum = 1.5F}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(Adagrad, FollowsItsFormula) {
  const auto optimizer =
      MakeAdagrad({.learning_rate = 0.1F, .initial_accumulator_value = 0.3F}).value();
  CompareWithFormula(*optimizer,
                     [](double* w, double g, std::vector<double>* s, int) {
                       (*s)[0] += g * g;
                       *w -= 0.1 * g / std::sqrt((*s)[0]);
                     },
                     1, {0.3F});
}

TEST(Adagrad, AGradientOfZeroFromTheStartChangesNothing) {
  ExpectFiniteOnZeros(*MakeAdagrad({.initial_accumulator_value = 0}).value());
}

TEST(Adagrad, RefusesANegativeAccumulator) {
  EXPECT_TRUE(MakeAdagrad({.initial_accumulator_value = -1}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

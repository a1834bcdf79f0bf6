#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(RowwiseAdagrad, FollowsItsFormula) {
  const auto optimizer =
      MakeRowwiseAdagrad({.learning_rate = 0.1F, .initial_accumulator_value = 0.2F}).value();
  std::vector<float> weights = {1, 2, 3};
  std::vector<float> slots = {0.2F};
  double accumulator = 0.2F;
  std::vector<double> expected = {1, 2, 3};
  for (int step = 0; step < 20; ++step) {
    const std::vector<float> gradient = {std::sin(static_cast<float>(step)), 0.5F, -0.25F};
    double square = 0;
    for (const float g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
    accumulator += square / 3;
    optimizer->Apply(weights.data(), slots.data(), gradient.data(), 3, 0.1F);
    for (std::size_t i = 0; i < 3; ++i) {
      expected[i] -= 0.1 * static_cast<double>(gradient[i]) / (std::sqrt(accumulator) + 1e-8);
      ASSERT_NEAR(static_cast<double>(weights[i]), expected[i], 1e-5);
    }
    ASSERT_NEAR(static_cast<double>(slots[0]), accumulator, 1e-5);
  }
}

TEST(RowwiseAdagrad, KeepsOneNumberARow) {
  EXPECT_EQ(MakeRowwiseAdagrad({}).value()->Slots(64)[0].width, 1u);
}

}  // namespace
}  // namespace cairn::table

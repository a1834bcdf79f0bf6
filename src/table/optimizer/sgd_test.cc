#include <gtest/gtest.h>

#include "table/optimizer/test_optimizer.h"

namespace cairn::table {
namespace {

TEST(Sgd, FollowsItsFormula) {
  const auto optimizer = MakeSgd({.learning_rate = 0.1F}).value();
  CompareWithFormula(*optimizer,
                     [](double* w, double g, std::vector<double>*, int) { *w -= 0.1 * g; }, 0, {});
}

TEST(Sgd, RefusesARateThatIsNoNumber) {
  EXPECT_TRUE(MakeSgd({.learning_rate = NAN}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(MakeSgd({.learning_rate = -1}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table

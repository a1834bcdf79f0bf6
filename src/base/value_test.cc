#include <cairn/value.h>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ValueTest, FindReachesIntoNestedObjects) {
  const Value value = Value::Object{{"eval", Value::Object{{"loss", 0.5}}}, {"a/b", 1}};
  EXPECT_EQ(value.Find("eval/loss")->AsDouble(), 0.5);
  EXPECT_EQ(value.Find("a/b")->AsInt(), 1);
  EXPECT_EQ(value.Find("eval/acc"), nullptr);
  EXPECT_EQ(Value(3).Find("x"), nullptr);
}

TEST(ValueTest, ComparesIntegersAndDoublesExactly) {
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(CompareNumbers(Value(big), Value(9007199254740992.0)), 1);
  EXPECT_EQ(CompareNumbers(Value(big), Value(big)), 0);
  EXPECT_EQ(CompareNumbers(Value(~std::uint64_t{0}), Value(-1)), 1);
  EXPECT_EQ(CompareNumbers(Value(1.5), Value(2)), -1);
}

TEST(ValueTest, IntegersAreEqualByValue) {
  EXPECT_EQ(Value(std::uint64_t{7}), Value(7));
  EXPECT_FALSE(Value(7) == Value(7.0));
}

}  // namespace
}  // namespace cairn

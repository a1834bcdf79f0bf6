#include <cairn/status.h>

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/status_macros.h"

namespace cairn {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgumentError("odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

TEST(StatusTest, ContextIsAddedGoingUp) {
  const Status status = CorruptionError("short read").WithContext("x").WithContext("step 40");
  EXPECT_EQ(status.ToString(), "Corruption: step 40: x: short read");
  EXPECT_TRUE(Status::Ok().WithContext("x").ok());
}

TEST(ResultTest, CarriesTheValueOrTheReason) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().code(), Code::kInvalidArgument);
  EXPECT_THROW(Quarter(6).value(), std::logic_error);
}

TEST(ResultTest, AnOkStatusIsNoResult) {
  const Result<int> result{Status::Ok()};
  EXPECT_EQ(result.status().code(), Code::kInternal);
}

}  // namespace
}  // namespace cairn

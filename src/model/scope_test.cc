#include <cairn/scope.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name);
  return names;
}

std::vector<float> Copy(Scope* scope, const std::string& name) {
  const std::span<float> values = scope->Values<float>(name).value();
  return {values.begin(), values.end()};
}

TEST(ScopeTest, PersistablesIncludeTheParameters) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {2, 3}).ok());
  ASSERT_TRUE(scope.Persistable("lr", DType::kF64, {}).ok());
  ASSERT_TRUE(scope.Temporary("hidden", DType::kF32, {4}).ok());
  EXPECT_THAT(Names(scope.Vars()), ElementsAre("hidden", "lr", "w"));
  EXPECT_THAT(Names(scope.Vars(Role::kParameter)), ElementsAre("w"));
  EXPECT_THAT(Names(scope.Vars(Role::kPersistable)), ElementsAre("lr", "w"));
  EXPECT_THAT(Names(scope.Vars(Role::kTemporary)), ElementsAre("hidden"));
}

TEST(ScopeTest, EndOfAnIterationDestroysTemporariesOnly) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}).ok());
  ASSERT_TRUE(scope.Temporary("hidden", DType::kF32, {1}).ok());
  scope.EndIteration();
  EXPECT_TRUE(scope.Contains("w"));
  EXPECT_EQ(scope.Find("hidden").status().code(), Code::kNotFound);
  EXPECT_TRUE(scope.Temporary("hidden", DType::kF32, {8}).ok()) << "made anew, of any shape";
}

TEST(ScopeTest, DeclaringTwiceIsRefusedAndChangesNothing) {
  Scope scope;
  const float one = 1;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}, {.data = &one}).ok());
  const Status again = scope.Persistable("w", DType::kF32, {2});
  EXPECT_EQ(again.code(), Code::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("\"w\""));
  EXPECT_THAT(Copy(&scope, "w"), ElementsAre(1));
}

TEST(ScopeTest, BadDeclarationsAreRefusedByName) {
  Scope scope;
  EXPECT_EQ(scope.Parameter("", DType::kF32, {1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(scope.Parameter("\xff", DType::kF32, {1}).code(), Code::kInvalidArgument);
  const Status huge = scope.Parameter("w", DType::kF32, {1ULL << 40, 1ULL << 40});
  EXPECT_EQ(huge.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(huge.message()), HasSubstr("\"w\""));
  const Status random_integers =
      scope.Parameter("n", DType::kI32, {2}, {.initializer = VariableInitializer::Uniform(0, 1)});
  EXPECT_EQ(random_integers.code(), Code::kInvalidArgument);
  EXPECT_EQ(
      scope.Parameter("u", DType::kU8, {2}, {.initializer = VariableInitializer::Constant(300)})
          .code(),
      Code::kInvalidArgument);
  EXPECT_TRUE(scope.Vars().empty());
}

TEST(ScopeTest, AMissingVariableIsNamedWithThoseLikeIt) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("encoder/w", DType::kF32, {1}).ok());
  const Status missing = scope.Find("encoder/v").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("encoder/w"));
}

TEST(ScopeTest, ValuesOfAnotherTypeAreRefused) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}).ok());
  EXPECT_EQ(scope.Values<double>("w").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scope.Values<int>("w").status().code(), Code::kInvalidArgument);
}

TEST(ScopeTest, InitialValuesDependOnSeedAndNameNotOnOrder) {
  const VariableOptions uniform{.initializer = VariableInitializer::Uniform(-1, 1)};
  Scope forwards;
  ASSERT_TRUE(forwards.Parameter("a", DType::kF32, {100}, uniform).ok());
  ASSERT_TRUE(forwards.Parameter("b", DType::kF32, {100}, uniform).ok());
  Scope backwards;
  ASSERT_TRUE(backwards.Parameter("b", DType::kF32, {100}, uniform).ok());
  ASSERT_TRUE(backwards.Parameter("a", DType::kF32, {100}, uniform).ok());
  ASSERT_TRUE(forwards.Initialize(7).ok());
  ASSERT_TRUE(backwards.Initialize(7).ok());
  EXPECT_EQ(Copy(&forwards, "a"), Copy(&backwards, "a"));
  EXPECT_EQ(Copy(&forwards, "b"), Copy(&backwards, "b"));
  EXPECT_NE(Copy(&forwards, "a"), Copy(&forwards, "b"));
  ASSERT_TRUE(backwards.Initialize(8).ok());
  EXPECT_NE(Copy(&forwards, "a"), Copy(&backwards, "a"));
}

TEST(ScopeTest, InitializersHaveTheMomentsAsked) {
  constexpr std::uint64_t kCount = 100'000;
  Scope scope;
  ASSERT_TRUE(scope
                  .Parameter("u", DType::kF32, {kCount},
                             {.initializer = VariableInitializer::Uniform(2, 4)})
                  .ok());
  ASSERT_TRUE(scope
                  .Parameter("n", DType::kF32, {kCount},
                             {.initializer = VariableInitializer::Normal(-1, 0.5)})
                  .ok());
  ASSERT_TRUE(scope
                  .Parameter("t", DType::kF32, {kCount},
                             {.initializer = VariableInitializer::TruncatedNormal(0, 1)})
                  .ok());
  ASSERT_TRUE(scope.Initialize(1).ok());
  const auto moments = [&](const std::string& name) {
    double sum = 0;
    double squares = 0;
    for (const float value : Copy(&scope, name)) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const double mean = sum / kCount;
    return std::pair(mean, std::sqrt(squares / kCount - mean * mean));
  };
  EXPECT_NEAR(moments("u").first, 3, 0.01);
  EXPECT_NEAR(moments("u").second, 2 / std::sqrt(12.0), 0.01);
  EXPECT_NEAR(moments("n").first, -1, 0.01);
  EXPECT_NEAR(moments("n").second, 0.5, 0.01);
  EXPECT_NEAR(moments("t").second, 0.88, 0.01);
  for (const float value : Copy(&scope, "t")) EXPECT_LE(std::abs(value), 2);
}

TEST(ScopeTest, HalfPrecisionConstantsAreRoundedToTheNearest) {
  struct Case {
    DType dtype;
    double value;
    std::uint16_t bits;
  };
  for (const auto& [dtype, value, bits] :
       {Case{DType::kF16, 1, 0x3c00}, Case{DType::kF16, -2.5, 0xc100},
        Case{DType::kF16, 65504, 0x7bff}, Case{DType::kF16, 1e9, 0x7c00},
        Case{DType::kF16, 0x1p-24, 0x0001}, Case{DType::kF16, 1 + 0x1p-11, 0x3c00},
        Case{DType::kF16, 2047.5, 0x6800}, Case{DType::kBF16, 1, 0x3f80},
        Case{DType::kBF16, 1 + 0x1p-8, 0x3f80}, Case{DType::kBF16, 1 + 3 * 0x1p-8, 0x3f82}}) {
    Scope scope;
    ASSERT_TRUE(
        scope.Parameter("w", dtype, {1}, {.initializer = VariableInitializer::Constant(value)})
            .ok());
    ASSERT_TRUE(scope.Initialize(0).ok());
    EXPECT_EQ(scope.Values<std::uint16_t>("w").value()[0], bits) << value;
  }
}

TEST(ScopeTest, AnInitializerAfterALoadIsRefusedUnlessToldToOverwrite) {
  Scope scope;
  const VariableOptions constant{.initializer = VariableInitializer::Constant(3)};
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}, constant).ok());
  ASSERT_TRUE(scope.Parameter("v", DType::kF32, {1}, constant).ok());
  scope.Values<float>("w").value()[0] = 5;
  scope.MarkLoaded({"w"});
  const Status refused = scope.Initialize(1);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("w"));
  EXPECT_THAT(Copy(&scope, "w"), ElementsAre(5));
  EXPECT_THAT(Copy(&scope, "v"), ElementsAre(0)) << "nothing at all was initialised";
  ASSERT_TRUE(scope.Initialize(1, {.overwrite = true}).ok());
  EXPECT_THAT(Copy(&scope, "w"), ElementsAre(3));
  EXPECT_TRUE(scope.Initialize(1).ok()) << "the loaded value is gone";
}

TEST(ScopeTest, ACloneForTestingSeesTheParametersAndCannotChangeThem) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}).ok());
  const std::unique_ptr<Scope> test = scope.Clone(/*for_test=*/true).value();
  EXPECT_TRUE(test->frozen());
  scope.Values<float>("w").value()[0] = 2;
  EXPECT_EQ(test->Values<const float>("w").value()[0], 2);
  EXPECT_EQ(test->Values<float>("w").status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(test->MutableBytes("w").status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(test->Find("w")->frozen);
  EXPECT_FALSE(scope.Find("w")->frozen);
  static_assert(std::is_const_v<decltype(Variable::data)::element_type>);
  EXPECT_EQ(test->Initialize(1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(test->Parameter("v", DType::kF32, {1}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(test->Clear().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(test->Temporary("hidden", DType::kF32, {1}).ok());
  test->Values<float>("hidden").value()[0] = 1;
  EXPECT_FALSE(scope.Contains("hidden"));
}

TEST(ScopeTest, AnOrdinaryCloneIsIndependent) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}).ok());
  const std::unique_ptr<Scope> copy = scope.Clone(/*for_test=*/false).value();
  copy->Values<float>("w").value()[0] = 2;
  EXPECT_THAT(Copy(&scope, "w"), ElementsAre(0));
}

TEST(ScopeTest, MemoryOutlivesTheVariableForThoseWhoHoldIt) {
  Scope scope;
  ASSERT_TRUE(scope.Temporary("hidden", DType::kF32, {1}).ok());
  const Variable held = scope.Find("hidden").value();
  const std::span<std::byte> bytes = scope.MutableBytes("hidden").value();
  scope.EndIteration();
  std::memset(bytes.data(), 1, bytes.size());
  EXPECT_EQ(held.data.get()[held.bytes - 1], std::byte{1});
}

TEST(ScopeTest, AFactorOfTheLearningRateIsKeptAndMustBeANumber) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {1}).ok());
  ASSERT_TRUE(scope.Parameter("slow", DType::kF32, {1}, {.learning_rate_factor = 0.1}).ok());
  EXPECT_EQ(scope.Find("w")->learning_rate_factor, 1);
  EXPECT_EQ(scope.Find("slow")->learning_rate_factor, 0.1);
  for (const bool for_test : {false, true}) {
    EXPECT_EQ(scope.Clone(for_test).value()->Find("slow")->learning_rate_factor, 0.1);
  }
  for (const double factor : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const Status refused = scope.Parameter("v", DType::kF32, {1}, {.learning_rate_factor = factor});
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("\"v\": learning_rate_factor"));
  }
  EXPECT_FALSE(scope.Contains("v"));
}

}  // namespace
}  // namespace cairn

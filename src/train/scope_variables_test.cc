// A scope as what is trained: its persistables are saved and come back, its temporaries last for
// one step.

#include "train/scope_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <variant>

#include <cairn/scope.h>
#include <cairn/session.h>
#include <cairn/trainer.h>

#include "storage/local/temp_directory.h"
#include "train/test_training.h"

namespace cairn {
namespace {

using testing::HasSubstr;

void Declare(Scope* scope) {
  ASSERT_TRUE(
      scope->Parameter("fc/w", DType::kF64, {2}, {.initializer = VariableInitializer::Constant(1)})
          .ok());
  ASSERT_TRUE(scope->Persistable("seen", DType::kI64, {}).ok());
}

/// Adds `number` to the weights, by way of a temporary that must not be there yet.
Status Step(Scope* scope, double number) {
  const Status declared = scope->Temporary("error", DType::kF64, {2});
  if (!declared.ok()) return declared;
  auto error = scope->Values<double>("error");
  auto weights = scope->Values<double>("fc/w");
  auto seen = scope->Values<std::int64_t>("seen");
  if (!error.ok() || !weights.ok() || !seen.ok()) return InternalError("a variable is gone");
  (*error)[0] = (*error)[1] = number;
  for (std::size_t i = 0; i < 2; ++i) (*weights)[i] += (*error)[i];
  ++(*seen)[0];
  return Status::Ok();
}

double Weight(Scope* scope) { return scope->Values<double>("fc/w").value()[0]; }
std::int64_t Seen(Scope* scope) { return scope->Values<std::int64_t>("seen").value()[0]; }

TEST(ScopeTrainingTest, ATrainerSavesThePersistablesAndEndsEachIteration) {
  TempDirectory directory;
  const auto train = [&](Scope* scope, std::int64_t epochs) {
    auto trainer =
        Trainer::Open({.scope = scope,
                       .checkpoint_config = CheckpointConfig{.checkpoint_dir = directory / "run"}});
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    NumberReader reader(3, true);
    bool seen_by_handler = false;
    auto result = (*trainer)->Train(
        epochs, reader,
        [&](std::int64_t number) -> Result<Value> {
          const Status stepped = Step(scope, static_cast<double>(number));
          if (!stepped.ok()) return stepped;
          return Value(0.5);
        },
        [&](const TrainerEvent& event) {
          if (!std::holds_alternative<EndStepEvent>(event)) return;
          seen_by_handler = scope->Contains("error");
        });
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_TRUE(seen_by_handler) << "the events of a step belong to its iteration";
    EXPECT_FALSE(scope->Contains("error"));
  };
  Scope first;
  Declare(&first);
  ASSERT_TRUE(first.Initialize(1).ok());
  train(&first, 1);
  EXPECT_EQ(Weight(&first), 1 + 0 + 1 + 2);
  Scope second;
  Declare(&second);
  ASSERT_TRUE(second.Initialize(1).ok());
  train(&second, 2);
  EXPECT_EQ(Weight(&second), 4 + 100 + 101 + 102);
  EXPECT_EQ(Seen(&second), 6);
  EXPECT_THAT(second.Initialize(1).ToString(), HasSubstr("loaded: fc/w"));
}

TEST(ScopeTrainingTest, ASessionSavesThePersistablesAndEndsEachIteration) {
  TempDirectory directory;
  const auto train = [&](Scope* scope, std::int64_t from, std::int64_t to) {
    auto session = TrainingSession::Open({.checkpoint_dir = directory / "run", .scope = scope});
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    EXPECT_EQ((*session)->global_step(), from);
    while ((*session)->global_step() < to) {
      const Status ran = (*session)->Run([&](std::int64_t) { return Step(scope, 1); });
      ASSERT_TRUE(ran.ok()) << ran.ToString();
      EXPECT_FALSE(scope->Contains("error"));
    }
    ASSERT_TRUE((*session)->Close().ok());
  };
  Scope first;
  Declare(&first);
  train(&first, 0, 2);
  Scope second;
  Declare(&second);
  train(&second, 2, 5);
  EXPECT_EQ(Weight(&second), 5);
  EXPECT_EQ(Seen(&second), 5);
  EXPECT_THAT(second.Initialize(1).ToString(), HasSubstr("loaded: fc/w"));
}

TEST(ScopeTrainingTest, AFrozenScopeAndANameTwiceAreRefusedBeforeADirectoryIsMade) {
  TempDirectory directory;
  Scope scope;
  Declare(&scope);
  const auto frozen = scope.Clone(/*for_test=*/true).value();
  const std::string where = directory / "run";
  const CheckpointConfig config{.checkpoint_dir = where};
  EXPECT_THAT(
      Trainer::Open({.scope = frozen.get(), .checkpoint_config = config}).status().ToString(),
      HasSubstr("cannot be trained"));
  EXPECT_THAT(
      TrainingSession::Open({.checkpoint_dir = where, .scope = frozen.get()}).status().ToString(),
      HasSubstr("cannot be trained"));
  double other[2] = {};
  EXPECT_THAT(
      Trainer::Open({.model = {{.name = "fc/w", .dtype = DType::kF64, .shape = {2}, .data = other}},
                     .scope = &scope,
                     .checkpoint_config = config})
          .status()
          .ToString(),
      HasSubstr("two variables are called \"fc/w\""));
  EXPECT_THAT(TrainingSession::Open({.checkpoint_dir = where,
                                     .variables = {{"fc/w", DType::kF64, {2}, other}},
                                     .scope = &scope})
                  .status()
                  .ToString(),
              HasSubstr("two variables are called \"fc/w\""));
  EXPECT_FALSE(std::filesystem::exists(where));
}

}  // namespace
}  // namespace cairn

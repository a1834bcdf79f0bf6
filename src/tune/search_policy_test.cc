#include "tune/search_policy.h"

#include <gtest/gtest.h>

#include "format/json.h"

namespace cairn::tune {
namespace {

Value Json(std::string_view text) { return DecodeJson(text).value(); }

SearchPolicyParts Parts(std::string_view space, std::int64_t num_samples = 1) {
  SearchPolicyParts parts;
  VariantOptions options;
  options.space = SearchSpace::Parse(Json(space)).value();
  options.num_samples = num_samples;
  parts.searcher = MakeVariantSearcher(std::move(options)).value();
  return parts;
}

Value Report(double loss, int iteration) {
  return Value::Object{{"loss", loss}, {"training_iteration", iteration}};
}

TEST(SearchPolicyTest, AsksItsParts) {
  SearchPolicyParts parts = Parts(R"({"x": {"grid_search": [1, 2, 3]}})");
  parts.scheduler =
      MakeScheduler(
          Json(
              R"({"name": "asha", "metric": "loss", "mode": "min", "max_t": 8, "reduction_factor": 2})"))
          .value();
  parts.stopper = MakeStopper(Json(R"({"name": "bounds", "bounds": {"training_iteration": 5}})"),
                              Clock::System())
                      .value();
  parts.metric = "loss";
  auto policy = MakeSearchPolicy(std::move(parts)).value();
  EXPECT_EQ(policy->Suggest("a")->config, Json(R"({"x": 1})"));
  // As after a restart: what is on record counts, and the searcher has gone on.
  ASSERT_TRUE(policy->OnTrialAdd("b", Json(R"({"x": 20})")).ok());
  EXPECT_EQ(policy->Suggest("c")->config, Json(R"({"x": 3})"));
  EXPECT_EQ(policy->Suggest("d")->kind, Suggestion::Kind::kFinished);
  EXPECT_EQ(policy->OnResult("a", Report(1, 1))->action, TrialAction::kContinue);
  EXPECT_EQ(policy->OnResult("b", Report(2, 1))->action, TrialAction::kStop);
  EXPECT_EQ(policy->OnResult("a", Report(0.5, 5))->action, TrialAction::kStop);
  EXPECT_TRUE(policy->OnResult("c", Json(R"({"training_iteration": 1})"))
                  .status()
                  .Is(Code::kInvalidArgument));
  const std::vector<std::string> pending = {"c"};
  EXPECT_EQ(policy->Choose({pending, {}, false})->trial, "c");
  EXPECT_TRUE(policy->OnEnd("a", Report(0.5, 5), false).ok());
  EXPECT_TRUE(policy->OnEnd("c", {}, true).ok());
  EXPECT_FALSE(policy->StopAll());
}

TEST(SearchPolicyTest, WhoSaysThatItIsDoneIsNotPaused) {
  SearchPolicyParts parts = Parts(R"({"x": {"grid_search": [1, 2]}})");
  parts.scheduler =
      MakeScheduler(Json(R"({"name": "asha", "metric": "loss", "mode": "min", "max_t": 8,
                                           "reduction_factor": 2, "promote": true})"))
          .value();
  auto policy = MakeSearchPolicy(std::move(parts)).value();
  ASSERT_TRUE(policy->Suggest("a").ok());
  ASSERT_TRUE(policy->Suggest("b").ok());
  EXPECT_EQ(policy->OnResult("a", Report(1, 1))->action, TrialAction::kPause);
  const Value done = Json(R"({"loss": 2, "training_iteration": 1, "done": true})");
  EXPECT_EQ(policy->OnResult("b", done)->action, TrialAction::kStop);
  ASSERT_TRUE(policy->OnEnd("b", done, false).ok());
  // Its last result counts: of two, the better one goes on.
  const std::vector<std::string> paused = {"a"};
  EXPECT_EQ(policy->Choose({{}, paused, false})->trial, "a");
}

TEST(SearchPolicyTest, WhatCannotBeIsRefused) {
  EXPECT_TRUE(MakeSearchPolicy({}).status().Is(Code::kInvalidArgument));
  auto policy = MakeSearchPolicy(Parts(R"({"x": {"__domain__": "sample_from", "id": 0}})")).value();
  EXPECT_TRUE(policy->Suggest("a").status().Is(Code::kInvalidArgument));
}

constexpr char kDescription[] = R"({
    "space": {"x": {"grid_search": [1, 2, 3, 4, 5, 6]}, "y": {"__domain__": "uniform", "lower": 0, "upper": 1}},
    "num_samples": 1, "seed": 3, "max_concurrent": 4, "metric": "loss",
    "scheduler": {"name": "asha", "metric": "loss", "mode": "min", "max_t": 8, "reduction_factor": 2},
    "stop": {"name": "combined", "stoppers": [{"name": "iterations", "max_iter": 5},
                                              {"name": "timeout", "timeout": 100}]}})";

/// Six trials that report in turn; what was answered, as text.
std::string Play(TunePolicy* policy, int from, int to) {
  std::string answers;
  for (int step = from; step < to; ++step) {
    const std::string trial(1, static_cast<char>('a' + step % 4));
    if (step < 4) {
      answers += EncodeJson(policy->Suggest(trial)->config);
    } else {
      const auto decided = policy->OnResult(trial, Report(1.0 / (1 + step % 5), step / 4));
      answers += std::to_string(static_cast<int>(decided->action));
    }
  }
  return answers;
}

TEST(SearchPolicyTest, MadeFromADescriptionItGoesOnFromItsState) {
  auto whole = MakeSearchPolicy(Json(kDescription), Clock::System()).value();
  const std::string expected = Play(whole.get(), 0, 24);
  for (int at = 0; at <= 24; ++at) {
    auto first = MakeSearchPolicy(Json(kDescription), Clock::System()).value();
    const std::string before = Play(first.get(), 0, at);
    const Value state = Json(EncodeJson(first->Save()));
    auto second = MakeSearchPolicy(Json(kDescription), Clock::System()).value();
    ASSERT_TRUE(second->Load(state).ok());
    EXPECT_EQ(before + Play(second.get(), at, 24), expected) << at;
  }
  EXPECT_TRUE(whole->Load(Json(R"({"searcher": 1})")).Is(Code::kCorruption));
  EXPECT_TRUE(MakeSearchPolicy(Json(R"({"spice": {}})"), Clock::System())
                  .status()
                  .Is(Code::kInvalidArgument));
}

TEST(SearchPolicyTest, TimeOfEarlierLivesCountsForABudget) {
  auto policy = MakeSearchPolicy(Json(kDescription), Clock::System()).value();
  EXPECT_FALSE(policy->StopAll());
  ASSERT_TRUE(policy->OnElapsed(std::chrono::seconds(99)).ok());
  EXPECT_FALSE(policy->StopAll());
  ASSERT_TRUE(policy->OnElapsed(std::chrono::seconds(100)).ok());
  EXPECT_TRUE(policy->StopAll());
}

TEST(SearchPolicyTest, AStateWithoutItsLogIsNoState) {
  auto policy =
      MakeSearchPolicy(
          Json(R"({"space": {}, "scheduler": {"name": "pbt", "metric": "loss", "mode": "min",
                             "hyperparam_mutations": {"x": [1, 2]}}})"),
          Clock::System())
          .value();
  EXPECT_TRUE(policy->Save().is_null());
}

}  // namespace
}  // namespace cairn::tune

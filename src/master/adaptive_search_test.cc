#include "master/adaptive_search.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/json.h"

namespace cairn::master {
namespace {

SearcherConfig Config(SearcherConfig::Mode mode = SearcherConfig::Mode::kAggressive) {
  return {.kind = SearcherConfig::Kind::kAdaptiveAsha,
          .metric = "loss",
          .smaller_is_better = true,
          .max_trials = 8,
          .max_length = 16,
          .max_rungs = 3,
          .divisor = 2,
          .mode = mode};
}

/// Rungs at 4, 8 and 16 steps.
struct Row {
  const char* trial;
  std::int64_t steps;
  double loss;
  bool stops;
};
constexpr Row kTable[] = {
    {"1", 2, 9.0, false},   // before the first rung
    {"1", 4, 0.5, false},   // the first to come goes on
    {"2", 4, 0.6, true},    // the middle of {0.5} is better
    {"3", 4, 0.4, false},   // the best
    {"4", 5, 0.45, false},  // the middle of {0.4, 0.5, 0.6} is 0.5
    {"5", 4, 0.48, true},   // the middle of {0.4, 0.45, 0.5, 0.6} is 0.475
    {"1", 8, 0.3, false},   // the first at the second rung
    {"3", 8, 0.35, true},  {"4", 8, 0.2, false}, {"4", 9, 7.0, false},  // between rungs
    {"4", 16, 0.1, false}, {"1", 16, 0.2, true},                        // at the last
};

TEST(AdaptiveSearchTest, DecidesAsTheTableAndAgainAfterBeingLoaded) {
  for (const bool reload : {false, true}) {
    auto search = AdaptiveSearch::Make(Config(), Value()).value();
    for (const char* trial : {"1", "2", "3", "4", "5"}) ASSERT_TRUE(search->AddTrial(trial).ok());
    std::uint64_t seq = 100;
    for (const Row& row : kTable) {
      seq += 3;
      ASSERT_TRUE(
          search->OnValidation(seq, row.trial, row.steps, Value::Object{{"loss", row.loss}}).ok());
      EXPECT_EQ(search->to_stop().contains(row.trial), row.stops)
          << row.trial << " at " << row.steps;
      if (reload) {
        // As it comes back from a database.
        const Value saved = DecodeJson(EncodeJson(search->Save())).value();
        search = AdaptiveSearch::Make(Config(), saved).value();
        EXPECT_EQ(search->Save(), saved);
        EXPECT_EQ(search->to_stop().contains(row.trial), row.stops);
        // Told again what it knows.
        ASSERT_TRUE(
            search->OnValidation(seq, row.trial, row.steps, Value::Object{{"loss", -1}}).ok());
        EXPECT_FALSE(search->changed());
      }
      search->OnStopped(row.trial);
      EXPECT_FALSE(search->to_stop().contains(row.trial));
    }
  }
}

TEST(AdaptiveSearchTest, ARunThatWentBackChangesNothing) {
  auto search = AdaptiveSearch::Make(Config(), Value()).value();
  for (const char* trial : {"1", "2"}) ASSERT_TRUE(search->AddTrial(trial).ok());
  ASSERT_TRUE(search->OnValidation(1, "1", 4, Value::Object{{"loss", 0.5}}).ok());
  search->Saved();
  ASSERT_TRUE(search->OnValidation(2, "1", 3, Value::Object{{"loss", 0.1}}).ok());
  ASSERT_TRUE(search->OnValidation(3, "1", 4, Value::Object{{"loss", 0.1}}).ok());
  EXPECT_FALSE(search->changed());
  ASSERT_TRUE(search->OnValidation(4, "2", 4, Value::Object{{"loss", 0.4}}).ok());
  EXPECT_FALSE(search->to_stop().contains("2")) << "it is compared with 0.5";
}

TEST(AdaptiveSearchTest, WhatIsNoMetricDecidesNothing) {
  auto search = AdaptiveSearch::Make(Config(), Value()).value();
  ASSERT_TRUE(search->AddTrial("1").ok());
  EXPECT_TRUE(search->OnValidation(1, "1", 4, Value::Object{{"other", 1}}).ok());
  EXPECT_FALSE(search->OnValidation(2, "1", 8, Value::Object{{"loss", "high"}}).ok());
  EXPECT_TRUE(search->OnValidation(3, "stranger", 4, Value::Object{{"loss", 1}}).ok());
  EXPECT_TRUE(search->to_stop().empty());
}

TEST(AdaptiveSearchTest, DamagedStateIsRefused) {
  auto search = AdaptiveSearch::Make(Config(), Value()).value();
  ASSERT_TRUE(search->AddTrial("1").ok());
  const Value whole = search->Save();
  for (const auto& [name, member] : *whole.if_object()) {
    Value damaged = whole;
    damaged.if_object()->erase(name);
    EXPECT_FALSE(AdaptiveSearch::Make(Config(), damaged).ok()) << name;
  }
  EXPECT_FALSE(AdaptiveSearch::Make(Config(), Value(3)).ok());
}

TEST(AdaptiveSearchTest, FewerStepsThanRungsMakeFewerRungs) {
  SearcherConfig config = Config(SearcherConfig::Mode::kConservative);
  for (const std::int64_t length : {1, 2, 3, 5, 16, 1000}) {
    for (const double divisor : {1.5, 2.0, 3.0, 4.0}) {
      config.max_length = length;
      config.divisor = divisor;
      config.max_rungs = 6;
      EXPECT_TRUE(AdaptiveSearch::Make(config, Value()).ok()) << length << " by " << divisor;
    }
  }
}

}  // namespace
}  // namespace cairn::master

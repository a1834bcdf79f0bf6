#include "checkpoint/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

RetentionItem Full(std::string id, std::int64_t step) {
  RetentionItem item;
  item.id = std::move(id);
  item.step = step;
  item.needs = {item.id};
  return item;
}

RetentionItem Increment(std::string id, std::int64_t step, std::vector<std::string> below) {
  RetentionItem item = Full(std::move(id), step);
  item.full = false;
  item.needs.insert(item.needs.end(), below.begin(), below.end());
  return item;
}

TEST(ChooseRemovals, KeepsTheLastAndWhatTheyBuildOn) {
  const std::vector<RetentionItem> items = {Full("A", 10), Increment("a1", 20, {"A"}),
                                            Increment("a2", 30, {"A"}), Full("B", 40),
                                            Increment("b1", 50, {"B"})};
  Retention retention;
  retention.keep_last = 2;
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("a2", "a1", "A"));
  retention.keep_last = 3;
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("a1"));
  retention.keep_last.reset();
  EXPECT_THAT(ChooseRemovals(retention, items), IsEmpty());
}

TEST(ChooseRemovals, RemovesIncrementsBeforeWhatTheyBuildOn) {
  const std::vector<RetentionItem> items = {Full("A", 10), Increment("a1", 20, {"A"}),
                                            Increment("a2", 30, {"A", "a1"}), Full("B", 40)};
  Retention retention;
  retention.keep_last = 1;
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("a2", "a1", "A"));
}

TEST(ChooseRemovals, APinnedIncrementKeepsItsChainAndNoMore) {
  std::vector<RetentionItem> items = {Full("A", 10), Increment("a1", 20, {"A"}),
                                      Increment("a2", 30, {"A", "a1"}),
                                      Increment("a3", 40, {"A", "a1", "a2"}), Full("B", 50)};
  items[2].pinned = true;
  Retention retention;
  retention.keep_last = 1;
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("a3"));
}

TEST(ScoreIn, WhetherSomethingWasReachedIsAScoreToo) {
  const Value metrics = Value::Object{{"yes", true}, {"no", false}, {"text", "a"}};
  EXPECT_EQ(ScoreIn(metrics, "yes"), Value(1));
  EXPECT_EQ(ScoreIn(metrics, "no"), Value(0));
  EXPECT_TRUE(ScoreIn(metrics, "text").is_null());
  EXPECT_TRUE(ScoreIn(metrics, "none").is_null());
}

TEST(ChooseRemovals, BrokenOnesUseUpNoPlace) {
  std::vector<RetentionItem> items = {Full("A", 10), Full("B", 20), Increment("x", 30, {}),
                                      Increment("y", 40, {})};
  items[2].broken = items[3].broken = true;
  Retention retention;
  retention.keep_last = 2;
  EXPECT_THAT(ChooseRemovals(retention, items), IsEmpty());
  items.push_back(Full("C", 50));
  items.push_back(Full("D", 60));
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("y", "x", "B", "A"));
}

TEST(ChooseRemovals, KeepsFullOnesBesides) {
  const std::vector<RetentionItem> items = {Full("A", 10), Full("B", 20), Full("C", 30),
                                            Increment("c1", 40, {"C"}), Increment("c2", 50, {"C"})};
  Retention retention;
  retention.keep_last = 1;
  retention.keep_fulls = 2;
  EXPECT_THAT(ChooseRemovals(retention, items), ElementsAre("c1", "A"));
}

TEST(ChooseRemovals, WhatTheBranchStandsOnStays) {
  const std::vector<RetentionItem> items = {Full("A", 10), Increment("a1", 20, {"A"}),
                                            Full("B", 30), Full("C", 40)};
  Retention retention;
  retention.keep_last = 1;
  EXPECT_THAT(ChooseRemovals(retention, items, {"a1"}), ElementsAre("B"));
}

TEST(ChooseRemovals, TheBestKeepWhatTheyBuildOn) {
  std::vector<RetentionItem> items = {Full("A", 10), Increment("a1", 20, {"A"}), Full("B", 30)};
  items[1].metrics = Value::Object{{"score", 0.9}};
  Retention retention;
  retention.keep_last = 1;
  retention.keep_best = 1;
  retention.score = "score";
  EXPECT_THAT(ChooseRemovals(retention, items), IsEmpty());
}

}  // namespace
}  // namespace cairn

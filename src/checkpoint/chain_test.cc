#include "checkpoint/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint Make(std::string id, std::string base = "", std::string parent = "",
                std::string replaces = "") {
  auto manifest = std::make_shared<Manifest>();
  manifest->id = id;
  manifest->base = std::move(base);
  manifest->parent = std::move(parent);
  manifest->replaces = std::move(replaces);
  if (!manifest->base.empty()) {
    manifest->kind = CheckpointKind::kIncrement;
    manifest->chain = manifest->parent.empty() ? "cumulative" : "consecutive";
  }
  Checkpoint checkpoint;
  checkpoint.directory = "dir_" + id;
  checkpoint.manifest = std::move(manifest);
  checkpoint.counts = true;
  return checkpoint;
}

std::vector<std::string> Resolved(const std::vector<Checkpoint>& all, std::string_view id) {
  for (const Checkpoint& checkpoint : all) {
    if (checkpoint.manifest->id != id) continue;
    const auto chain = ChainIndex(all).Resolve(checkpoint);
    if (!chain.ok()) return {std::string(chain.status().message())};
    std::vector<std::string> ids;
    for (const Checkpoint* one : *chain) ids.push_back(one->manifest->id);
    return ids;
  }
  return {};
}

TEST(ChainIndex, FollowsIds) {
  const std::vector<Checkpoint> all = {Make("A"), Make("a1", "A", "A"), Make("a2", "A", "a1"),
                                       Make("c", "A"), Make("a3", "A", "c")};
  EXPECT_THAT(Resolved(all, "A"), ElementsAre("A"));
  EXPECT_THAT(Resolved(all, "a2"), ElementsAre("A", "a1", "a2"));
  EXPECT_THAT(Resolved(all, "c"), ElementsAre("A", "c"));
  EXPECT_THAT(Resolved(all, "a3"), ElementsAre("A", "c", "a3"));
  EXPECT_FALSE(HasBrokenChain(all));
}

TEST(ChainIndex, SaysWhatIsMissing) {
  const std::vector<Checkpoint> all = {Make("A"), Make("a2", "A", "a1"), Make("a3", "A", "a2"),
                                       Make("c", "B")};
  EXPECT_THAT(Resolved(all, "a2")[0], HasSubstr("builds on the checkpoint a1"));
  EXPECT_THAT(Resolved(all, "a3")[0], HasSubstr("by way of dir_a2"));
  EXPECT_THAT(Resolved(all, "c")[0], HasSubstr("full checkpoint B"));
  EXPECT_TRUE(HasBrokenChain(all));
}

TEST(ChainIndex, WhatDoesNotCountIsNotThereForWhatDoes) {
  std::vector<Checkpoint> all = {Make("A"), Make("c", "A")};
  all[0].counts = false;
  EXPECT_THAT(Resolved(all, "c")[0], HasSubstr("not there"));
  all[1].counts = false;  // asked for by id, from a branch that was given up
  EXPECT_THAT(Resolved(all, "c"), ElementsAre("A", "c"));
  all[0].removed = true;
  EXPECT_THAT(Resolved(all, "c")[0], HasSubstr("not there"));
}

TEST(ChainIndex, RefusesCirclesAndOtherBases) {
  const std::vector<Checkpoint> all = {Make("A"),
                                       Make("B"),
                                       Make("x", "A", "y"),
                                       Make("y", "A", "x"),
                                       Make("b1", "B", "B"),
                                       Make("z", "A", "b1"),
                                       Make("w", "b1")};
  EXPECT_THAT(Resolved(all, "x")[0], HasSubstr("builds on itself"));
  EXPECT_THAT(Resolved(all, "z")[0], HasSubstr("not of the base A"));
  EXPECT_THAT(Resolved(all, "w")[0], HasSubstr("not of the base b1"));
}

TEST(ChainIndex, AReplacementStandsForWhatItReplaces) {
  std::vector<Checkpoint> all = {Make("A"), Make("a1", "A", "A"), Make("a2", "A", "a1"),
                                 Make("F", "", "a1", "a2"), Make("a3", "A", "a2")};
  EXPECT_THAT(Resolved(all, "a3"), ElementsAre("F", "a3")) << "it needs less below it";
  all.erase(all.begin(), all.begin() + 3);
  EXPECT_THAT(Resolved(all, "a3"), ElementsAre("F", "a3"));
}

TEST(DependentsOf, NamesAllThatNeedIt) {
  const std::vector<Checkpoint> all = {Make("A"), Make("a1", "A", "A"), Make("a2", "A", "a1"),
                                       Make("c", "A")};
  EXPECT_EQ(DependentsOf("A", all), "dir_a1, dir_a2, dir_c");
  EXPECT_EQ(DependentsOf("a1", all), "dir_a2");
  EXPECT_EQ(DependentsOf("c", all), "");
}

}  // namespace
}  // namespace cairn

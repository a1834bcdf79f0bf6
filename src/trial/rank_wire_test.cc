#include "trial/rank_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "net/token.h"
#include "trial/rank_place.h"

namespace cairn::core {
namespace {

using ::testing::HasSubstr;

Value Back(const Value& value) { return DecodeRankValue(EncodeRankValue(value).value()).value(); }

TEST(RankWireTest, ValuesComeBackAsTheyWere) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Value& value :
       {Value(), Value(true), Value(-3), Value(std::numeric_limits<std::uint64_t>::max()),
        Value(0.1), Value(infinity), Value(-infinity), Value("é"),
        Value(std::string("\xFF\x00zz", 4)), Value(Value::List{1, "a", Value::List{}}),
        Value(Value::Object{{"a", Value::Object{}}}),
        Value(Value::Object{{"__cairn__", "mine"}, {"v", 1}})}) {
    EXPECT_EQ(Back(value), value) << EncodeRankValue(value).value();
  }
  EXPECT_TRUE(std::isnan(*Back(std::nan("")).if_double()));
  for (int length = 0; length < 8; ++length) {
    const std::string bytes = std::string(static_cast<std::size_t>(length), '\xFE') + '\xFF';
    EXPECT_EQ(*Back(bytes).if_string(), bytes);
  }
}

// As python/cairn/core/_wire.py writes them.
TEST(RankWireTest, WhatPythonRanksSendIsUnderstood) {
  EXPECT_EQ(*DecodeRankValue(R"({"__cairn__":"tuple","v":[1,{"__cairn__":"set","v":[2,3]}]})"),
            Value(Value::List{1, Value::List{2, 3}}));
  EXPECT_EQ(*DecodeRankValue(R"({"__cairn__":"bytes","v":"aGkA"})"), Value(std::string("hi\0", 3)));
  EXPECT_EQ(*DecodeRankValue(R"({"__cairn__":"dict","v":[["__cairn__",1]]})"),
            Value(Value::Object{{"__cairn__", 1}}));
  EXPECT_EQ(
      *DecodeRankValue(
          R"({"__cairn__":"array","dtype":"<i4","shape":[2,2],"v":"AQAAAAIAAAADAAAABAAAAA=="})"),
      Value(Value::List{Value::List{1, 2}, Value::List{3, 4}}));
  EXPECT_EQ(*DecodeRankValue(R"({"__cairn__":"array","dtype":"<f2","shape":[2],"v":"ADwAwA=="})"),
            Value(Value::List{1.0, -2.0}));
  EXPECT_EQ(*DecodeRankValue(R"({"__cairn__":"array","dtype":"|b1","shape":[],"v":"AQ=="})"),
            Value(true));
}

TEST(RankWireTest, WhatIsNoMessageIsRefused) {
  for (const char* text :
       {"", "{", R"({"__cairn__":5,"v":1})", R"({"__cairn__":"bytes","v":"a"})",
        R"({"__cairn__":"bytes","v":"a*b="})", R"({"__cairn__":"float","v":"1"})",
        R"({"__cairn__":"tuple"})", R"({"__cairn__":"dict","v":[[1]]})",
        R"({"__cairn__":"array","dtype":"<i4","shape":[1000000000],"v":"AQAAAA=="})",
        R"({"__cairn__":"array","dtype":"<i4","shape":[-1],"v":"AQAAAA=="})",
        R"({"__cairn__":"array","dtype":"<i4","shape":[4294967296,4294967296],"v":""})"}) {
    EXPECT_EQ(DecodeRankValue(text).status().code(), Code::kCorruption) << text;
  }
  for (const char* text :
       {R"({"__cairn__":"spell","v":1})", R"({"__cairn__":"dict","v":[[1,2]]})",
        R"({"__cairn__":"array","dtype":"<c8","shape":[1],"v":"AQAAAAAAAAA="})"}) {
    EXPECT_EQ(DecodeRankValue(text).status().code(), Code::kUnimplemented) << text;
  }
  EXPECT_EQ(EncodeRankValue(Value::Object{{"\xFF", 1}}).status().code(), Code::kInvalidArgument);
}

Variables Of(std::map<std::string, std::string> given) {
  return [given = std::move(given)](const std::string& name) -> std::optional<std::string> {
    const auto at = given.find(name);
    return at == given.end() ? std::nullopt : std::optional(at->second);
  };
}

TEST(RankPlaceTest, ComesFromTheVariablesOfEachLauncher) {
  EXPECT_EQ(RankPlaceFrom(Of({}))->size, 1);
  const auto ours = RankPlaceFrom(Of({{"CAIRN_RANK", "3"},
                                      {"CAIRN_WORLD_SIZE", "4"},
                                      {"CAIRN_LOCAL_RANK", "1"},
                                      {"CAIRN_LOCAL_SIZE", "2"},
                                      {"CAIRN_CHIEF", "file:/x"},
                                      {"CAIRN_LAUNCH_KEY", "key"},
                                      {"RANK", "0"},
                                      {"WORLD_SIZE", "9"}}))
                        .value();
  EXPECT_EQ(ours.rank, 3);
  EXPECT_EQ(ours.size, 4);
  EXPECT_EQ(ours.local_rank, 1);
  EXPECT_EQ(ours.local_size, 2);
  EXPECT_EQ(ours.chief, "file:/x");
  EXPECT_EQ(ours.token, "key");
  const auto torchrun = RankPlaceFrom(Of({{"RANK", "3"},
                                          {"WORLD_SIZE", "4"},
                                          {"LOCAL_RANK", "1"},
                                          {"LOCAL_WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "node0"},
                                          {"MASTER_PORT", "29500"}}))
                            .value();
  EXPECT_EQ(torchrun.chief, "node0:29501");
  const auto mpi =
      RankPlaceFrom(Of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}})).value();
  EXPECT_EQ(mpi.local_size, 2);
  EXPECT_THAT(mpi.chief, HasSubstr("file:"));
  const auto refused = RankPlaceFrom(Of({{"RANK", "x"}, {"WORLD_SIZE", "2"}})).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("RANK must be an integer"));
  EXPECT_THAT(std::string(RankPlaceFrom(Of({{"PMI_RANK", "0"},
                                            {"PMI_SIZE", "4"},
                                            {"MPI_LOCALRANKID", "0"},
                                            {"MPI_LOCALNRANKS", "2"}}))
                              .status()
                              .message()),
              HasSubstr("CAIRN_CHIEF"));
}

TEST(RankPlaceTest, ALauncherBelowTheOnlyProcessOfOursPlacesItsRanks) {
  const std::map<std::string, std::string> run = {
      {"CAIRN_RANK", "0"},       {"CAIRN_WORLD_SIZE", "1"},    {"CAIRN_LOCAL_RANK", "0"},
      {"CAIRN_LOCAL_SIZE", "1"}, {"CAIRN_CHIEF", "file:/x/c"}, {"CAIRN_LAUNCH_KEY", "key"}};
  const auto below = [&](std::map<std::string, std::string> inner) {
    inner.insert(run.begin(), run.end());
    return RankPlaceFrom(Of(std::move(inner)));
  };
  const auto torchrun = below({{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "here"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"}})
                            .value();
  EXPECT_EQ(torchrun.rank, 1);
  EXPECT_EQ(torchrun.size, 2);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.local_size, 2);
  EXPECT_EQ(torchrun.token, "key");
  // What Python makes of the same: sha256("none 29500 ").
  EXPECT_EQ(torchrun.chief, "file:/x/c-" + HashToken("none 29500 ").substr(0, 16));
  const auto far = below({{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"}})
                       .value();
  EXPECT_EQ(far.chief, "node0:29501");
  const auto mpi = below({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).value();
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_THAT(mpi.chief, HasSubstr("file:/x/c-"));
  EXPECT_EQ(below({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->chief, "file:/x/c");
}

TEST(RankPlaceTest, TasksOfSrunAreRanksAndABatchScriptIsAlone) {
  const std::map<std::string, std::string> task = {{"SLURM_JOB_ID", "7"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_PROCID", "2"},
                                                   {"SLURM_NTASKS", "3"},
                                                   {"SLURM_STEP_NUM_TASKS", "3"},
                                                   {"SLURM_LOCALID", "2"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "3"}};
  const auto with = [&](std::map<std::string, std::string> more) {
    more.insert(task.begin(), task.end());
    return RankPlaceFrom(Of(std::move(more)));
  };
  const auto here = with({}).value();
  EXPECT_EQ(here.rank, 2);
  EXPECT_EQ(here.size, 3);
  EXPECT_EQ(here.local_rank, 2);
  EXPECT_EQ(here.local_size, 3);
  EXPECT_THAT(here.chief, HasSubstr(HashToken("7.0  ").substr(0, 16)));
  const auto far = with({{"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                         {"SLURM_STEP_NUM_TASKS", "5"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_PROCID", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"CAIRN_CHIEF", "node0:5000"}})
                       .value();
  EXPECT_EQ(far.local_size, 1);
  EXPECT_EQ(far.chief, "node0:5000");
  EXPECT_THAT(std::string(with({{"SLURM_STEP_TASKS_PER_NODE", "two"}}).status().message()),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
  EXPECT_EQ(RankPlaceFrom(Of({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}}))
                ->size,
            1);
}

}  // namespace
}  // namespace cairn::core

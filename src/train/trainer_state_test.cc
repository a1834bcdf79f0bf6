#include "train/trainer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace cairn {
namespace {

TrainerState Example() {
  TrainerState state;
  state.progress = {.epoch = 3, .next_step = 8, .global_step = 83, .epoch_complete = false};
  state.trainer_id = 1;
  state.num_trainers = 2;
  state.reader = Value::Object{{"position", 12}};
  return state;
}

TEST(TrainerStateTest, TheIdsArePlainNumbersOfTheLastCompletedStep) {
  auto files = EncodeTrainerState(Example());
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->at("epoch_id"), "3");
  EXPECT_EQ(files->at("step_id"), "7");
  auto state = DecodeTrainerState(*files);
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->progress, Example().progress);
  EXPECT_EQ(state->trainer_id, 1);
  EXPECT_EQ(state->num_trainers, 2);
  EXPECT_EQ(state->reader, Example().reader);
}

// Written by the first version; must be read for ever.
constexpr std::string_view kGolden = R"({
  "epoch": 3,
  "epoch_complete": false,
  "global_step": 83,
  "next_step": 8,
  "num_trainers": 2,
  "reader": {
    "position": 12
  },
  "state": {
    "lr": 0.1,
    "worst": {
      "$f64": "7ff0000000000000"
    }
  },
  "trainer": 1,
  "trainer_id": 1
}
)";

TEST(TrainerStateTest, ReadsAndWritesTheGoldenFile) {
  TrainerState state = Example();
  state.values["lr"] = 0.1;
  state.values["worst"] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(EncodeTrainerState(state)->at("state.json"), kGolden);
  auto decoded = DecodeTrainerState({{"state.json", std::string(kGolden)}});
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->progress, state.progress);
  EXPECT_EQ(decoded->values, state.values);
  EXPECT_EQ(decoded->reader, state.reader);
}

TEST(TrainerStateTest, GeneratorsOfTheEpochsBeginningAreKeptWhereThereAreAny) {
  TrainerState state = Example();
  state.values["random"] = "7 8";
  state.epoch_generators["random"] = "5 6";
  auto decoded = DecodeTrainerState(EncodeTrainerState(state).value());
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->values, state.values);
  EXPECT_EQ(decoded->epoch_generators, state.epoch_generators);
}

TEST(TrainerStateTest, NumbersComeBackWithTheirExactBits) {
  const std::uint64_t patterns[] = {
      0,
      0x8000000000000000,  // -0
      1,                   // the smallest
      std::bit_cast<std::uint64_t>(0.1),
      std::bit_cast<std::uint64_t>(std::numeric_limits<double>::max()),
      std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity()),
      std::bit_cast<std::uint64_t>(-std::numeric_limits<double>::infinity()),
      0x7ff8000000000000,  // NaN
      0xfff8000000000001,  // another one
  };
  TrainerState state = Example();
  Value::List list;
  for (const std::uint64_t bits : patterns) list.emplace_back(std::bit_cast<double>(bits));
  state.values["doubles"] = Value::Object{{"nested", list}};
  state.values["count"] = ~std::uint64_t{0};
  state.values["text"] = "NaN";
  state.values["none"] = Value();
  auto decoded = DecodeTrainerState(EncodeTrainerState(state).value());
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  const Value::List& got = *decoded->values["doubles"].Find("nested")->if_list();
  ASSERT_EQ(got.size(), std::size(patterns));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].is_double()) << i;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(*got[i].if_double()), patterns[i]) << i;
  }
  EXPECT_EQ(decoded->values["count"], Value(~std::uint64_t{0}));
  EXPECT_EQ(decoded->values["text"], Value("NaN"));
  EXPECT_TRUE(decoded->values.at("none").is_null());
}

TEST(TrainerStateTest, WhatJsonCannotHoldIsRefusedByName) {
  TrainerState state = Example();
  state.values["bytes"] = std::string("\xff\xfe");
  auto files = EncodeTrainerState(state);
  EXPECT_EQ(files.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(files.status().ToString(), testing::HasSubstr("\"bytes\""));
  state = Example();
  state.values["reserved"] = Value::Object{{"$f64", 1}};
  EXPECT_EQ(EncodeTrainerState(state).status().code(), Code::kInvalidArgument);
  state = Example();
  Value deep;
  for (int i = 0; i < 100; ++i) deep = Value::List{deep};
  state.values["deep"] = deep;
  EXPECT_EQ(EncodeTrainerState(state).status().code(), Code::kInvalidArgument);
}

TEST(TrainerStateTest, OtherFilesAreRefused) {
  EXPECT_EQ(DecodeTrainerState({}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(DecodeTrainerState({{"state.json", "{}"}}).status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(DecodeTrainerState({{"state.json", "{\"trainer\": 1"}}).ok());
  auto files = EncodeTrainerState(Example()).value();
  std::string& json = files["state.json"];
  json.replace(json.find("83"), 2, "-1");
  EXPECT_EQ(DecodeTrainerState(files).status().code(), Code::kCorruption);
}

}  // namespace
}  // namespace cairn

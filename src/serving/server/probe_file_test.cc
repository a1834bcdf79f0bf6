#include "serving/server/probe_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace cairn::serving {
namespace {

using ::testing::HasSubstr;

constexpr const char* kInputs =
    R"("inputs": [{"name": "ids", "datatype": "INT64", "shape": [2], "data": [7, -1]}])";

std::string Message(const std::string& text) {
  const Status status = DecodeProbes(text).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(ProbeFileTest, ReadsFeedsOutputAndRange) {
  const auto probes = DecodeProbes(std::string(R"({"probes": [{)") + kInputs +
                                   R"(, "output": "score", "min": -0.5, "max": 1}, {)" + kInputs +
                                   R"(, "output": "other", "max": 3}]})");
  ASSERT_TRUE(probes.ok()) << probes.status().ToString();
  ASSERT_EQ(probes->size(), 2u);
  const Probe& first = probes->front();
  EXPECT_EQ(first.output, "score");
  EXPECT_EQ(first.min, -0.5);
  EXPECT_EQ(first.max, 1);
  const Probe::Feed& feed = first.feeds.at("ids");
  EXPECT_EQ(feed.dtype, DType::kI64);
  EXPECT_EQ(feed.shape, std::vector<std::uint64_t>{2});
  std::int64_t ids[2];
  ASSERT_EQ(feed.bytes.size(), sizeof(ids));
  std::memcpy(ids, feed.bytes.data(), sizeof(ids));
  EXPECT_EQ(ids[1], -1);
  EXPECT_EQ(probes->back().min, -std::numeric_limits<double>::infinity());
}

TEST(ProbeFileTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Message("{"), HasSubstr("is no JSON"));
  EXPECT_THAT(Message("[]"), HasSubstr("probes: is missing"));
  EXPECT_THAT(Message(R"({"probes": []})"), HasSubstr("probes: is no list of any"));
  EXPECT_THAT(Message(R"({"probes": [1]})"), HasSubstr("probes[0]: is no object"));
  const auto with = [](const std::string& members) {
    return Message(std::string(R"({"probes": [{)") + kInputs + members + "}]}");
  };
  EXPECT_THAT(with(""), HasSubstr("probes[0]: output: is missing"));
  EXPECT_THAT(with(R"(, "output": "y")"), HasSubstr("min and max: are missing"));
  EXPECT_THAT(with(R"(, "output": "y", "min": "low")"), HasSubstr("min: is no number"));
  EXPECT_THAT(with(R"(, "output": "y", "min": "NaN")"), HasSubstr("min: is no number"));
  EXPECT_THAT(with(R"(, "output": "y", "maximum": 1)"), HasSubstr("\"maximum\": is not known"));
  EXPECT_THAT(Message(R"({"probes": [{"output": "y", "min": 0}]})"),
              HasSubstr("probes[0]: inputs: is missing"));
  EXPECT_THAT(Message(R"({"probes": [{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3],
                                                  "data": [1]}], "output": "y", "min": 0}]})"),
              HasSubstr("probes[0]: inputs[0].data: 1 elements"));
}

TEST(ProbeFileTest, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(ReadProbes("/nowhere/probes.json").status().ToString(),
              HasSubstr("/nowhere/probes.json"));
}

}  // namespace
}  // namespace cairn::serving

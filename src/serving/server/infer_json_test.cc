#include "serving/server/infer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "format/json.h"

namespace cairn::serving {
namespace {

using ::testing::HasSubstr;

std::string Message(std::string_view body) {
  const Status status = DecodeInferRequest(body).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << body;
  return std::string(status.message());
}

OwnedTensor Floats(const std::string& name, const std::vector<float>& values) {
  OwnedTensor tensor;
  tensor.name = name;
  tensor.shape = {values.size()};
  tensor.bytes = values.size() * sizeof(float);
  tensor.data = std::shared_ptr<std::byte>(new std::byte[tensor.bytes + 1],
                                           std::default_delete<std::byte[]>());
  if (!values.empty()) std::memcpy(tensor.data.get(), values.data(), tensor.bytes);
  return tensor;
}

TEST(InferJsonTest, ReadsFlatAndNestedData) {
  const InferRequest request = DecodeInferRequest(R"({"id": "7", "inputs": [
        {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2.5], [-3, "NaN"]]},
        {"name": "ids", "shape": [3], "datatype": "INT64", "data": [1, -2, 9223372036854775807]}],
        "outputs": [{"name": "y"}], "parameters": {}})")
                                   .value();
  EXPECT_EQ(request.id, "7");
  EXPECT_EQ(request.outputs, std::vector<std::string>{"y"});
  const auto feeds = request.Feeds();
  const auto* x = static_cast<const float*>(feeds.at("x").data);
  EXPECT_EQ(x[1], 2.5F);
  EXPECT_TRUE(x[3] != x[3]);
  EXPECT_EQ(static_cast<const std::int64_t*>(feeds.at("ids").data)[2],
            std::numeric_limits<std::int64_t>::max());
}

TEST(InferJsonTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Message("{"), HasSubstr("no JSON"));
  EXPECT_THAT(Message("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(Message("{}"), HasSubstr("inputs: is missing"));
  EXPECT_THAT(Message(R"({"inputs": 3})"), HasSubstr("inputs: is no list"));
  EXPECT_THAT(Message(R"({"inputs": [3]})"), HasSubstr("inputs[0]: is no object"));
  EXPECT_THAT(Message(R"({"inputs": [{}]})"), HasSubstr("inputs[0].name: is missing"));
  EXPECT_THAT(Message(R"({"id": 3, "inputs": []})"), HasSubstr("id: "));
  const auto with = [](const std::string& members) {
    return Message(R"({"inputs": [{"name": "x", )" + members + "}]}");
  };
  EXPECT_THAT(with(R"("shape": [1])"), HasSubstr("inputs[0].datatype: is missing"));
  EXPECT_THAT(with(R"("datatype": "FP99")"), HasSubstr("inputs[0].datatype: \"FP99\""));
  EXPECT_THAT(with(R"("datatype": "FP32")"), HasSubstr("inputs[0].shape: is missing"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [-1])"), HasSubstr("inputs[0].shape"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [1])"), HasSubstr("inputs[0].data: is missing"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [3], "data": [1, 2])"),
              HasSubstr("2 elements, and the shape has 3"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [1], "data": ["x"])"), HasSubstr("no number"));
  EXPECT_THAT(with(R"("datatype": "INT8", "shape": [1], "data": [300])"),
              HasSubstr("does not hold"));
  EXPECT_THAT(with(R"("datatype": "INT64", "shape": [1], "data": [1.5])"), HasSubstr("no integer"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [1], "data": [-1e300])"),
              HasSubstr("inputs[0].data: a number that its datatype does not hold"));
  EXPECT_THAT(with(R"("datatype": "FP16", "shape": [1], "data": [1])"), HasSubstr("JSON"));
  EXPECT_THAT(with(R"("datatype": "FP32", "shape": [4294967296, 4294967296, 64], "data": [])"),
              HasSubstr("inputs[0].shape"));
  EXPECT_THAT(
      Message(R"({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [1], "data": [true]},
                             {"name": "x", "datatype": "BOOL", "shape": [1], "data": [true]}]})"),
      HasSubstr("twice"));
}

TEST(InferJsonTest, NestedDataHasTheShape) {
  const auto message = [](const std::string& shape, const std::string& data) {
    return Message(R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": )" + shape +
                   R"(, "data": )" + data + "}]}");
  };
  const auto otherwise = HasSubstr("inputs[0].data: is nested otherwise than the shape says");
  EXPECT_THAT(message("[2, 2]", "[[1], [2, 3, 4]]"), otherwise);
  EXPECT_THAT(message("[2, 2]", "[1, [2, 3, 4]]"), otherwise);
  EXPECT_THAT(message("[4]", "[[1, 2], [3, 4]]"), otherwise);
  EXPECT_THAT(message("[2, 2]", "[[[1, 2]], [[3, 4]]]"), otherwise);
  EXPECT_THAT(message("[]", "[[1]]"), otherwise);
  const auto largest = DecodeInferRequest(
      R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2],
                      "data": [[3.4028235e38, "-Infinity"]]}]})");
  ASSERT_TRUE(largest.ok()) << largest.status().ToString();
  const auto feeds = largest->Feeds();
  EXPECT_EQ(static_cast<const float*>(feeds.at("x").data)[0], std::numeric_limits<float>::max());
}

TEST(InferJsonTest, AnswersAreJsonAlsoWhereNumbersAreNot) {
  InferRequest request;
  request.id = "a\"b";
  const std::string text =
      EncodeInferResponse(
          "m", "12", request,
          {Floats("y", {0.1F, std::numeric_limits<float>::infinity()}), Floats("empty", {})})
          .value();
  const Value value = DecodeJson(text).value();
  EXPECT_EQ(*value.Find("model_version")->if_string(), "12");
  EXPECT_EQ(*value.Find("id")->if_string(), "a\"b");
  const Value& y = (*value.Find("outputs")->if_list())[0];
  EXPECT_EQ(static_cast<float>((*y.Find("data")->if_list())[0].AsDouble()), 0.1F);
  EXPECT_EQ(*(*y.Find("data")->if_list())[1].if_string(), "Infinity");
  request.outputs = {"z"};
  EXPECT_THAT(std::string(EncodeInferResponse("m", "1", request, {}).status().message()),
              HasSubstr("outputs[0].name"));
}

TEST(InferJsonTest, InputsThatTheModelDoesNotWantAreNamedInTheProtocolsWords) {
  const std::vector<TensorSignature> wanted = {{"ids", DType::kI64, {-1}},
                                               {"x", DType::kF32, {-1, 2}}};
  const auto check = [&](const std::string& first, const std::string& second) {
    const auto request = DecodeInferRequest("{\"inputs\": [" + first + ", " + second + "]}");
    EXPECT_TRUE(request.ok()) << request.status().ToString();
    return std::string(CheckInputs(*request, wanted).message());
  };
  const std::string ids = R"({"name": "ids", "datatype": "INT64", "shape": [1], "data": [7]})";
  const std::string x = R"({"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]})";
  EXPECT_EQ(check(x, ids), "");
  EXPECT_EQ(check(ids, R"({"name": "y", "datatype": "FP32", "shape": [1], "data": [1]})"),
            "inputs[1].name: the model has no input \"y\"; it has ids, x");
  EXPECT_EQ(check(x, R"({"name": "ids", "datatype": "FP32", "shape": [1], "data": [1]})"),
            "inputs[1].datatype: FP32, and the model wants INT64");
  EXPECT_EQ(check(R"({"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]})", ids),
            "inputs[0].shape: [1,3], and the model wants [-1,2] (-1: any size)");
  EXPECT_EQ(CheckInputs(*DecodeInferRequest("{\"inputs\": [" + x + "]}"), wanted).message(),
            "inputs: \"ids\" is missing");
}

}  // namespace
}  // namespace cairn::serving

#include "bench/onnx_models.h"

#include <cstdint>
#include <vector>

namespace cairn::bench {
namespace {

// Field numbers of onnx.proto.
void Varint(std::uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}
void Number(int field, std::uint64_t value, std::string* out) {
  Varint(static_cast<std::uint64_t>(field) << 3, out);
  Varint(value, out);
}
void Bytes(int field, const std::string& value, std::string* out) {
  Varint(static_cast<std::uint64_t>(field) << 3 | 2, out);
  Varint(value.size(), out);
  *out += value;
}

std::string Node(const std::string& type, const std::vector<std::string>& inputs,
                 const std::string& output) {
  std::string node;
  for (const std::string& input : inputs) Bytes(1, input, &node);
  Bytes(2, output, &node);
  Bytes(4, type, &node);
  return node;
}

std::string Weight(const std::string& name, const std::vector<std::uint64_t>& shape) {
  std::string tensor;
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : shape) {
    Number(1, dim, &tensor);
    elements *= dim;
  }
  Number(2, 1, &tensor);  // float
  Bytes(8, name, &tensor);
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 37 % 101) / 1000 - 0.05F;
  }
  Bytes(9, std::string(reinterpret_cast<const char*>(values.data()), elements * 4), &tensor);
  return tensor;
}

std::string Value(const std::string& name, std::uint64_t width) {
  std::string any;
  Bytes(2, "batch", &any);
  std::string size;
  Number(1, width, &size);
  std::string shape;
  Bytes(1, any, &shape);
  Bytes(1, size, &shape);
  std::string tensor;
  Number(1, 1, &tensor);
  Bytes(2, shape, &tensor);
  std::string type;
  Bytes(1, tensor, &type);
  std::string value;
  Bytes(1, name, &value);
  Bytes(2, type, &value);
  return value;
}

std::string Model(std::string graph, std::uint64_t width) {
  Bytes(2, "bench", &graph);
  Bytes(11, Value("x", width), &graph);
  Bytes(12, Value("y", width), &graph);
  std::string opset;
  Bytes(1, "", &opset);
  Number(2, 17, &opset);
  std::string model;
  Number(1, 8, &model);  // version of the representation
  Bytes(7, graph, &model);
  Bytes(8, opset, &model);
  return model;
}

}  // namespace

std::string ChainModel(std::size_t nodes) {
  constexpr std::uint64_t kWidth = 16;
  std::string graph;
  const std::size_t branch = nodes / 3;
  const std::size_t chain = nodes - branch;
  const auto name = [](const char* prefix, std::size_t i) { return prefix + std::to_string(i); };
  for (std::size_t i = 0; i < chain; ++i) {
    const std::string input = i == 0 ? "x" : name("t", i - 1);
    Bytes(1, Node("Add", {input, name("w", i / 10)}, i + 1 == chain ? "y" : name("t", i)), &graph);
    if (i < branch) {
      Bytes(1, Node("Add", {i == 0 ? "x" : name("b", i - 1), name("v", i / 10)}, name("b", i)),
            &graph);
    }
  }
  for (std::size_t i = 0; i <= chain / 10; ++i) Bytes(5, Weight(name("w", i), {kWidth}), &graph);
  for (std::size_t i = 0; i <= branch / 10; ++i) Bytes(5, Weight(name("v", i), {kWidth}), &graph);
  return Model(std::move(graph), kWidth);
}

std::string LayersModel(std::size_t layers, std::size_t width) {
  std::string graph;
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    const std::string input = i == 0 ? "x" : "r" + std::to_string(i - 1);
    Bytes(1, Node("MatMul", {input, "w" + n}, "m" + n), &graph);
    Bytes(1, Node("Relu", {"m" + n}, i + 1 == layers ? "y" : "r" + n), &graph);
    Bytes(5, Weight("w" + n, {width, width}), &graph);
  }
  return Model(std::move(graph), width);
}

}  // namespace cairn::bench

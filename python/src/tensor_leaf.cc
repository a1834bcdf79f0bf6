#include "src/tensor_leaf.h"

#include <charconv>
#include <cstddef>

#include "format/json.h"

namespace cairn::python {

void AppendTensorLeaf(const TensorLeaf& leaf, std::span<const std::uint64_t> shape,
                      std::string* json) {
  *json += R"({"tensor":{"name":)";
  AppendJsonString(leaf.name, json);
  *json += R"(,"dtype":")";
  *json += DTypeName(leaf.dtype);
  *json += R"(","shape":[)";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) *json += ',';
    char digits[24];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, shape[i]);
    json->append(digits, end);
  }
  *json += leaf.torch ? R"(],"kind":"torch")" : R"(],"kind":"numpy")";
  if (leaf.group == TensorGroup::kState) *json += R"(,"group":"state")";
  if (leaf.requires_grad) *json += R"(,"requires_grad":true)";
  if (leaf.parameter) *json += R"(,"parameter":true)";
  *json += "}}";
}

}  // namespace cairn::python

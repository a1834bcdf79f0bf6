#include "model/foreign/paddle_pickle.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/status_macros.h"
#include "model/foreign/numpy_pickle.h"
#include "model/foreign/pickled_tree.h"

namespace cairn {
namespace {

using Kind = PickleValue::Kind;

// Paddle's own tables beside the arrays.
constexpr std::string_view kStructuredNames = "StructuredToParameterName@@";
constexpr std::string_view kBigArrays = "UnpackBigParamInfor@@";

constexpr std::array<std::string_view, 3> kAllowed = {
    "collections.OrderedDict",
    "builtins.tuple",
    "__builtin__.tuple",
};

bool Allowed(std::string_view global) {
  return IsNumpyConstructor(global) ||
         std::find(kAllowed.begin(), kAllowed.end(), global) != kAllowed.end();
}

Result<bool> ReadArray(const PickleValue& value, ForeignTensor* tensor) {
  ASSIGN_OR_RETURN(const bool is_array, ReadNumpyArray(value, tensor));
  if (is_array || value.kind != Kind::kCall) return is_array;
  // A tensor outside of a state dict: tuple((name, array)).
  const auto& arguments = value.arguments->items;
  if (value.callee->text.ends_with(".tuple") && arguments.size() == 1) {
    const auto pair = arguments[0]->Sequence();
    if (pair.size() == 2 && pair[0]->kind == Kind::kText) return ReadNumpyArray(*pair[1], tensor);
  }
  return false;
}

}  // namespace

Result<std::vector<ForeignTensor>> DecodePaddlePickle(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const Pickle pickle, DecodePickle(bytes, Allowed));
  PickleValue arrays;
  arrays.kind = Kind::kDict;
  const auto& items = pickle.root().items;
  if (pickle.root().kind != Kind::kDict && !pickle.root().Calls("collections.OrderedDict")) {
    return InvalidArgumentError("the file is no state dict; paddle.save it as a dict of tensors");
  }
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::kText && items[i]->text == kStructuredNames) continue;
    if (items[i]->kind == Kind::kText && items[i]->text == kBigArrays) {
      return UnimplementedError(
          "the file holds arrays in slices (pickle protocol 2 or 3); save it again with "
          "protocol=4");
    }
    arrays.items.push_back(items[i]);
    arrays.items.push_back(items[i + 1]);
  }
  return CollectPickled(arrays, ReadArray, bytes.size());
}

}  // namespace cairn

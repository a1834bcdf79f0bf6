#include "model/foreign/numpy_pickle.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/pickled_tree.h"

namespace cairn {
namespace {

using Kind = PickleValue::Kind;

constexpr std::array<std::string_view, 11> kConstructors = {
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
    "_codecs.encode",
    "builtins.bytearray",
    "__builtin__.bytearray",
};

/// "f4" with '<' → F32.
struct ArrayType {
  DType dtype = DType::kF32;
  bool swapped = false;
};

Result<ArrayType> FromNumpy(std::string_view code, std::string_view order) {
  static const std::map<std::string_view, DType> kTypes = {
      {"b1", DType::kBool}, {"u1", DType::kU8},  {"i1", DType::kI8},  {"u2", DType::kU16},
      {"i2", DType::kI16},  {"u4", DType::kU32}, {"i4", DType::kI32}, {"u8", DType::kU64},
      {"i8", DType::kI64},  {"f2", DType::kF16}, {"f4", DType::kF32}, {"f8", DType::kF64},
      {"c8", DType::kC64}};
  const auto it = kTypes.find(code);
  if (it == kTypes.end()) {
    return UnimplementedError("arrays of NumPy's dtype " + QuoteForMessage(code) +
                              " have no place here");
  }
  if (order == ">" && it->second == DType::kC64) {
    return UnimplementedError("big-endian complex arrays");
  }
  return ArrayType{it->second, order == ">" && DTypeBits(it->second) > 8};
}

/// numpy.dtype("f4", False, True) with the state (3, "<", …).
Result<ArrayType> ReadDtype(const PickleValue& value) {
  if (!value.Calls("numpy.dtype") || value.arguments->items.empty() ||
      value.arguments->items[0]->kind != Kind::kText) {
    return CorruptionError("an array's dtype is none");
  }
  std::string_view order = "|";
  if (value.state != nullptr && value.state->items.size() >= 2 &&
      value.state->items[1]->kind == Kind::kText) {
    order = value.state->items[1]->text;
  }
  return FromNumpy(value.arguments->items[0]->text, order);
}

/// Bytes, or the way that older protocols write them: _codecs.encode(text, "latin1").
Status ReadBytes(const PickleValue& value, ForeignTensor* tensor,
                 std::span<const std::byte>* bytes) {
  const PickleValue* inner = &value;
  // Not by recursion: a hostile file nests them as deep as it likes.
  while ((inner->Calls("builtins.bytearray") || inner->Calls("__builtin__.bytearray")) &&
         inner->arguments->items.size() == 1) {
    inner = inner->arguments->items[0];
  }
  if (inner->kind == Kind::kBytes) {
    *bytes = inner->bytes;
    return Status::Ok();
  }
  if (!inner->Calls("_codecs.encode") || inner->arguments->items.size() != 2 ||
      inner->arguments->items[0]->kind != Kind::kText) {
    return CorruptionError("an array's elements are no bytes");
  }
  const std::string_view text = inner->arguments->items[0]->text;
  tensor->own.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      tensor->own.push_back(std::byte{c});
      continue;
    }
    // Latin-1 has the first 256 characters: two bytes of UTF-8 that begin with C2 or C3.
    if ((c != 0xc2 && c != 0xc3) || i + 1 >= text.size()) {
      return CorruptionError("an array's elements are no Latin-1");
    }
    const auto next = static_cast<unsigned char>(text[++i]);
    tensor->own.push_back(static_cast<std::byte>(((c & 3) << 6) | (next & 0x3f)));
  }
  *bytes = tensor->own;
  return Status::Ok();
}

void SwapElements(ForeignTensor* tensor) {
  if (tensor->own.empty()) tensor->own.assign(tensor->borrowed.begin(), tensor->borrowed.end());
  const std::size_t element = static_cast<std::size_t>(DTypeBits(tensor->dtype)) / 8;
  for (std::size_t i = 0; i + element <= tensor->own.size(); i += element) {
    std::reverse(tensor->own.begin() + static_cast<std::ptrdiff_t>(i),
                 tensor->own.begin() + static_cast<std::ptrdiff_t>(i + element));
  }
}

Status FillArray(const PickleValue& shape, const PickleValue& dtype, bool column_major,
                 const PickleValue& elements, ForeignTensor* tensor) {
  ASSIGN_OR_RETURN(tensor->shape, PickledDims(shape));
  ASSIGN_OR_RETURN(const ArrayType type, ReadDtype(dtype));
  tensor->dtype = type.dtype;
  std::span<const std::byte> bytes;
  RETURN_IF_ERROR(ReadBytes(elements, tensor, &bytes));
  const auto wanted = TensorBytes(tensor->dtype, tensor->shape);
  if (!wanted.ok() || *wanted != bytes.size()) {
    return CorruptionError("an array's elements do not fill its shape");
  }
  if (column_major && tensor->shape.size() > 1) {
    // Column-major: the first dimension's neighbours stand beside each other.
    std::vector<std::uint64_t> strides;
    std::uint64_t stride = 1;
    for (const std::uint64_t dimension : tensor->shape) {
      strides.push_back(stride);
      stride *= dimension;
    }
    const std::vector<std::byte> source(bytes.begin(), bytes.end());
    tensor->own.clear();
    ForeignTensor gathered;
    gathered.dtype = tensor->dtype;
    gathered.shape = tensor->shape;
    RETURN_IF_ERROR(GatherStrided(source, 0, strides, &gathered));
    const std::span<const std::byte> rows = gathered.Bytes();
    tensor->own.assign(rows.begin(), rows.end());
  } else if (tensor->own.empty()) {
    tensor->borrowed = bytes;
  }
  if (type.swapped) SwapElements(tensor);
  return Status::Ok();
}

/// numpy's _reconstruct(ndarray, (0,), b"b") with the state (1, shape, dtype, fortran, bytes).
Status ReadReconstructed(const PickleValue& value, ForeignTensor* tensor) {
  if (value.state == nullptr || value.state->items.size() != 5) {
    return CorruptionError("an array has no elements");
  }
  const auto& state = value.state->items;
  return FillArray(*state[1], *state[2], state[3]->integer != 0, *state[4], tensor);
}

}  // namespace

bool IsNumpyConstructor(std::string_view global) {
  return std::find(kConstructors.begin(), kConstructors.end(), global) != kConstructors.end();
}

Result<bool> ReadNumpyArray(const PickleValue& value, ForeignTensor* tensor) {
  if (value.kind != Kind::kCall) return false;
  const std::string_view callee = value.callee->text;
  const auto& arguments = value.arguments->items;
  if (callee.ends_with("._reconstruct")) {
    RETURN_IF_ERROR(ReadReconstructed(value, tensor));
    return true;
  }
  if (callee.ends_with("._frombuffer") && arguments.size() == 4) {
    const bool column_major = arguments[3]->kind == Kind::kText && arguments[3]->text == "F";
    RETURN_IF_ERROR(FillArray(*arguments[2], *arguments[1], column_major, *arguments[0], tensor));
    return true;
  }
  if (callee.ends_with("multiarray.scalar") && arguments.size() == 2) {
    PickleValue scalar_shape;
    scalar_shape.kind = Kind::kTuple;
    RETURN_IF_ERROR(FillArray(scalar_shape, *arguments[0], false, *arguments[1], tensor));
    return true;
  }
  return false;
}

}  // namespace cairn

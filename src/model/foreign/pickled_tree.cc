#include "model/foreign/pickled_tree.h"

#include <fmt/format.h>

#include <cstring>
#include <set>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/copy_limit.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 64;
// A pickle may name one value many times; the walk counts visits, not values.
constexpr std::size_t kMaxVisits = 20'000'000;
constexpr std::size_t kMaxNameBytes = 64 << 10;
constexpr std::size_t kMaxDimensions = 64;

void Store(const void* value, std::size_t bytes, DType dtype, ForeignTensor* tensor) {
  tensor->dtype = dtype;
  tensor->shape.clear();
  tensor->own.resize(bytes);
  std::memcpy(tensor->own.data(), value, bytes);
}

/// Strides of 0 (an expanded tensor) repeat elements: a small file must not ask for much memory.
Status Repeats() {
  return UnimplementedError(
      "a tensor is larger than its storage, whose elements it repeats (it was expanded); save a "
      "contiguous copy of it");
}

/// One walk.
class Collector {
 public:
  Collector(const PickledLeaf& leaf, std::uint64_t file_bytes)
      : leaf_(leaf), copies_left_(MostCopiedBytes(file_bytes)) {}

  Status Walk(const PickleValue& value, const std::string& name, int depth) {
    using Kind = PickleValue::Kind;
    if (++visits_ > kMaxVisits || depth > kMaxDepth || name.size() > kMaxNameBytes) {
      return CorruptionError("the pickled tree is deeper or larger than any model");
    }
    ForeignTensor tensor;
    ASSIGN_OR_RETURN(const bool is_tensor, leaf_(value, &tensor));
    if (is_tensor) return Add(name, std::move(tensor));
    switch (value.kind) {
      case Kind::kInt:
      case Kind::kBool:
        Store(&value.integer, sizeof(value.integer), DType::kI64, &tensor);
        return Add(name, std::move(tensor));
      case Kind::kFloat:
        Store(&value.number, sizeof(value.number), DType::kF64, &tensor);
        return Add(name, std::move(tensor));
      case Kind::kDict:
        return WalkDict(value, name, depth);
      case Kind::kCall:
        return value.Calls("collections.OrderedDict") ? WalkDict(value, name, depth) : Status::Ok();
      case Kind::kList:
      case Kind::kTuple:
        for (std::size_t i = 0; i < value.items.size(); ++i) {
          RETURN_IF_ERROR(Walk(*value.items[i], Below(name, std::to_string(i)), depth + 1));
        }
        return Status::Ok();
      default:
        return Status::Ok();
    }
  }

  std::vector<ForeignTensor> Take() { return std::move(tensors_); }

 private:
  static std::string Below(const std::string& name, std::string_view key) {
    return name.empty() ? std::string(key) : fmt::format("{}/{}", name, key);
  }

  Status WalkDict(const PickleValue& value, const std::string& name, int depth) {
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const PickleValue& key = *value.items[i];
      std::string text;
      if (key.kind == PickleValue::Kind::kText) {
        text = key.text;
      } else if (key.kind == PickleValue::Kind::kInt) {
        text = std::to_string(key.integer);
      } else {
        return InvalidArgumentError(
            (name.empty() ? std::string() : "below " + QuoteForMessage(name) + ": ") +
            "a key of a dict is neither a text nor a number, and cannot be a name; save it with "
            "others");
      }
      RETURN_IF_ERROR(Walk(*value.items[i + 1], Below(name, text), depth + 1));
    }
    return Status::Ok();
  }

  Status Add(const std::string& name, ForeignTensor tensor) {
    if (name.empty()) {
      return InvalidArgumentError(
          "it holds a tensor without a name; save it in a dict, {name: tensor}");
    }
    tensor.name = name;
    if (!seen_.insert(name).second) {
      return CorruptionError("the tensor " + QuoteForMessage(name) + " is there twice");
    }
    const std::uint64_t copied = name.size() + tensor.own.size();
    if (copied > copies_left_) return RepeatedOverAndOver();
    copies_left_ -= copied;
    tensors_.push_back(std::move(tensor));
    return Status::Ok();
  }

  const PickledLeaf& leaf_;
  std::uint64_t copies_left_;
  std::size_t visits_ = 0;
  std::set<std::string> seen_;
  std::vector<ForeignTensor> tensors_;
};

}  // namespace

Result<std::vector<ForeignTensor>> CollectPickled(const PickleValue& root, const PickledLeaf& leaf,
                                                  std::uint64_t file_bytes) {
  Collector collector(leaf, file_bytes);
  RETURN_IF_ERROR(collector.Walk(root, "", 0));
  return collector.Take();
}

Result<std::vector<std::uint64_t>> PickledDims(const PickleValue& value) {
  const PickleValue* list = &value;
  if (value.Calls("torch.Size") && value.arguments->items.size() == 1) {
    list = value.arguments->items[0];
  }
  if (list->kind != PickleValue::Kind::kTuple && list->kind != PickleValue::Kind::kList) {
    return CorruptionError("a tensor's dimensions are no tuple");
  }
  if (list->items.size() > kMaxDimensions) return CorruptionError("too many dimensions");
  std::vector<std::uint64_t> dims;
  for (const PickleValue* item : list->items) {
    if (item->kind != PickleValue::Kind::kInt || item->integer < 0) {
      return CorruptionError("a tensor's dimension is no size");
    }
    dims.push_back(static_cast<std::uint64_t>(item->integer));
  }
  return dims;
}

Status GatherStrided(std::span<const std::byte> data, std::uint64_t offset,
                     const std::vector<std::uint64_t>& strides, ForeignTensor* tensor) {
  const std::vector<std::uint64_t>& shape = tensor->shape;
  if (strides.size() != shape.size()) return CorruptionError("strides and shape do not fit");
  const auto bytes = TensorBytes(tensor->dtype, shape);
  if (!bytes.ok()) return CorruptionError(std::string(bytes.status().message()));
  if (*bytes == 0) return Status::Ok();
  const std::uint64_t element = static_cast<std::uint64_t>(DTypeBits(tensor->dtype)) / 8;
  const std::uint64_t held = data.size() / element;
  // The last element's place; every product is checked against what is held before the next.
  std::uint64_t last = offset;
  bool row_major = true;
  std::uint64_t expected = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1) {
      if (strides[d] == 0 && *bytes / element > held) return Repeats();
      if (strides[d] != expected) row_major = false;
      if (strides[d] > held || shape[d] - 1 > held ||
          (strides[d] > 0 && shape[d] - 1 > held / strides[d])) {
        return CorruptionError("a tensor reaches beyond its storage");
      }
      last += (shape[d] - 1) * strides[d];
    }
    expected *= shape[d];
    if (last >= held) return CorruptionError("a tensor reaches beyond its storage");
  }
  if (offset >= held || last >= held) return CorruptionError("a tensor reaches beyond its storage");
  if (row_major) {
    tensor->borrowed = data.subspan(offset * element, *bytes);
    return Status::Ok();
  }
  if (*bytes / element > held) return Repeats();
  tensor->own.resize(*bytes);
  std::vector<std::uint64_t> index(shape.size(), 0);
  std::uint64_t at = offset;
  for (std::uint64_t i = 0; i < *bytes / element; ++i) {
    std::memcpy(tensor->own.data() + i * element, data.data() + at * element, element);
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < shape[d]) break;
      at -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
  return Status::Ok();
}

}  // namespace cairn

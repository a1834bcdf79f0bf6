#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cairn/checkpoint_manager.h>

namespace cairn::python {

/// What state.json says of a plain array of NumPy or tensor of torch (docs/format/state.md).
struct TensorLeaf {
  std::string_view name;
  DType dtype;
  TensorGroup group = TensorGroup::kModel;
  bool torch = false;  // else NumPy
  bool requires_grad = false;
  bool parameter = false;
};

/// Appends the node: the same text for the same array each time.
void AppendTensorLeaf(const TensorLeaf& leaf, std::span<const std::uint64_t> shape,
                      std::string* json);

}  // namespace cairn::python

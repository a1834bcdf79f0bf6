#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include <cairn/dtype.h>

namespace cairn::python {

/// A tensor of torch whose memory is what a file holds.
struct PlainTensor {
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  bool requires_grad = false;
  bool parameter = false;
  nanobind::object keep;  // owns the memory
};

/// Looks at tensors of torch, which has no interface in C that stays: one call into Python for each
/// of them. Borrows what it is given. Needs the GIL.
class TorchTensors {
 public:
  /// torch.Tensor, or None where torch is not used; cairn._arrays.plain_torch.
  TorchTensors(nanobind::handle tensor_type, nanobind::handle describe)
      : tensor_type_(tensor_type), describe_(describe) {}

  bool IsTensor(nanobind::handle value) const;
  /// False when the tensor (IsTensor) is not plain.
  bool Describe(nanobind::handle tensor, PlainTensor* out) const;

 private:
  nanobind::handle tensor_type_;
  nanobind::handle describe_;
};

}  // namespace cairn::python

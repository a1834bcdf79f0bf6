#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include <cairn/dtype.h>

#include "src/dlpack_exchange.h"

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

/// Looks at tensors of torch. Where it hands out DLPack's functions for C (since 2.10) the memory
/// of a tensor is asked for with them; of other versions, and of tensors that are special in any
/// way, Python is asked. Borrows what it is given. Needs the GIL.
class TorchTensors {
 public:
  /// torch.Tensor, or None where torch is not used; cairn._arrays.plain_torch; torch.nn.Parameter,
  /// or None: Python is asked for all tensors.
  TorchTensors(nanobind::handle tensor_type, nanobind::handle describe,
               nanobind::handle parameter_type);

  bool IsTensor(nanobind::handle value) const;
  /// False when the tensor (IsTensor) is not plain.
  bool Describe(nanobind::handle tensor, PlainTensor* out) const;

 private:
  /// False where Python is to be asked.
  bool DescribeNatively(nanobind::handle tensor, PlainTensor* out) const;
  bool AskPython(nanobind::handle tensor, PlainTensor* out) const;

  nanobind::handle tensor_type_;
  nanobind::handle describe_;
  nanobind::handle parameter_type_;
  const dlpack::ExchangeApi* api_ = nullptr;
  nanobind::object storage_;        // names of members
  nanobind::object is_neg_;         // likewise
  nanobind::object requires_grad_;  // likewise
};

}  // namespace cairn::python

#include "src/torch_tensors.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "src/convert.h"

namespace nb = nanobind;

namespace cairn::python {

bool TorchTensors::IsTensor(nb::handle value) const {
  if (tensor_type_.is_none()) return false;
  auto* const type = reinterpret_cast<PyTypeObject*>(tensor_type_.ptr());
  return PyType_IsSubtype(Py_TYPE(value.ptr()), type) != 0;
}

bool TorchTensors::Describe(nb::handle tensor, PlainTensor* out) const {
  const nb::object said = describe_(tensor);
  if (said.is_none()) return false;
  const auto [dtype, shape, address, requires_grad, parameter, keep] =
      nb::cast<std::tuple<nb::handle, nb::handle, std::uintptr_t, bool, bool, nb::object>>(said);
  out->dtype = ToDType(dtype);
  out->shape = ToDims(shape);
  out->data = reinterpret_cast<void*>(address);  // NOLINT
  out->bytes = static_cast<std::uint64_t>(DTypeBits(out->dtype)) / 8;
  for (const std::uint64_t dim : out->shape) out->bytes *= dim;
  out->requires_grad = requires_grad;
  out->parameter = parameter;
  out->keep = keep;
  return true;
}

}  // namespace cairn::python

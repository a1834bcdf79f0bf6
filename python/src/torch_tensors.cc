#include "src/torch_tensors.h"

#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "src/convert.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

const dlpack::ExchangeApi* ApiOf(nb::handle tensor_type) {
  const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsuleName)) return nullptr;
  void* const found = PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName);
  const auto* api = static_cast<const dlpack::ExchangeApi*>(found);
  while (api != nullptr && api->version.major != dlpack::kMajor) api = api->previous;
  return api == nullptr || api->tensor_from_object == nullptr ? nullptr : api;
}

/// The dtype in the file, where the elements say all.
std::optional<DType> ToDType(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code << 8 | type.bits) {
    case 0x0010:
      return DType::kI16;
    case 0x0020:
      return DType::kI32;
    case 0x0040:
      return DType::kI64;
    case 0x0110:
      return DType::kU16;
    case 0x0120:
      return DType::kU32;
    case 0x0140:
      return DType::kU64;
    case 0x0210:
      return DType::kF16;
    case 0x0220:
      return DType::kF32;
    case 0x0240:
      return DType::kF64;
    case 0x0410:
      return DType::kBF16;
    case 0x0608:
      return DType::kBool;
    default:  // float8, complex numbers, and bytes, which may be of fewer bits (torch.uint4)
      return std::nullopt;
  }
}

bool IsContiguous(const dlpack::Tensor& tensor) {
  std::int64_t expected = 1;
  bool contiguous = true;
  for (std::int32_t d = tensor.ndim; d-- > 0;) {
    if (tensor.shape[d] == 0) return true;
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) contiguous = false;
    expected *= tensor.shape[d];
  }
  return contiguous;
}

}  // namespace

TorchTensors::TorchTensors(nb::handle tensor_type, nb::handle describe, nb::handle parameter_type)
    : tensor_type_(tensor_type),
      describe_(describe),
      parameter_type_(parameter_type),
      storage_(nb::str("untyped_storage")),
      is_neg_(nb::str("is_neg")),
      requires_grad_(nb::str("requires_grad")) {
  if (!parameter_type.is_none()) api_ = ApiOf(tensor_type);
}

bool TorchTensors::IsTensor(nb::handle value) const {
  if (tensor_type_.is_none()) return false;
  auto* const type = reinterpret_cast<PyTypeObject*>(tensor_type_.ptr());
  return PyType_IsSubtype(Py_TYPE(value.ptr()), type) != 0;
}

bool TorchTensors::Describe(nb::handle tensor, PlainTensor* out) const {
  if (!DescribeNatively(tensor, out) && !AskPython(tensor, out)) return false;
  return out->data != nullptr || out->bytes == 0;  // else it was freed
}

bool TorchTensors::AskPython(nb::handle tensor, PlainTensor* out) const {
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

bool TorchTensors::DescribeNatively(nb::handle tensor, PlainTensor* out) const {
  // Subclasses may have no memory, or more than one, or not made it yet.
  const bool parameter = tensor.type().is(parameter_type_);
  if (api_ == nullptr || (!parameter && !tensor.type().is(tensor_type_))) return false;
  dlpack::Tensor memory;
  if (api_->tensor_from_object(tensor.ptr(), &memory) != 0) {
    PyErr_Clear();  // it has no memory of that kind: Python knows what it is
    return false;
  }
  const std::optional<DType> dtype = ToDType(memory.dtype);
  if (!dtype || memory.device.type != dlpack::kCpu || !IsContiguous(memory)) return false;
  // Read before torch is asked for more: then other threads may run.
  out->dtype = *dtype;
  out->shape.assign(memory.shape, memory.shape + memory.ndim);
  out->data = static_cast<std::byte*>(memory.data) + memory.byte_offset;
  out->bytes = static_cast<std::uint64_t>(DTypeBits(*dtype)) / 8;
  for (const std::uint64_t dim : out->shape) out->bytes *= dim;
  // Owns the memory also when the tensor gets another one (.data = …).
  out->keep = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), storage_.ptr()));
  if (!out->keep.is_valid()) throw nb::python_error();
  const nb::object negated = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), is_neg_.ptr()));
  const nb::object gradients = nb::steal(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
  if (!negated.is_valid() || !gradients.is_valid()) throw nb::python_error();
  if (!negated.is(nb::handle(Py_False))) return false;
  out->requires_grad = gradients.is(nb::handle(Py_True));
  out->parameter = parameter;
  return true;
}

}  // namespace cairn::python

#include "src/numpy_arrays.h"

// Only the layout of an array object is used, which NumPy keeps as it is; no function is called, so
// nothing has to be imported and any NumPy since 1.7 will do.
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NO_IMPORT_ARRAY
#include <numpy/ndarraytypes.h>

#include <string>
#include <utility>

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::size_t kMaxKinds = 256;  // a program that makes ever new dtypes does not grow us

}  // namespace

NumpyArrays::NumpyArrays()
    : ndarray_(nb::module_::import_("numpy").attr("ndarray")),
      look_up_(nb::module_::import_("cairn._arrays").attr("_numpy_kind")) {}

NumpyArrays& NumpyArrays::OfThisProcess() {
  static auto* const arrays = new NumpyArrays;
  return *arrays;
}

const NumpyArrays::Kind& NumpyArrays::KindOf(PyObject* dtype) {
  // Mostly that of the array before.
  if (last_ != nullptr && last_->keep.ptr() == dtype) return *last_;
  last_ = &LookUp(dtype);
  return *last_;
}

const NumpyArrays::Kind& NumpyArrays::LookUp(PyObject* dtype) {
  if (const auto found = kinds_.find(dtype); found != kinds_.end()) return found->second;
  if (kinds_.size() >= kMaxKinds) {
    last_ = nullptr;
    kinds_.clear();
  }
  const nb::object seen = look_up_(nb::handle(dtype));
  Kind kind;
  kind.keep = nb::borrow(dtype);
  const nb::object stored = seen.attr("stored");
  const nb::object tail = seen.attr("tail");  // complex numbers: one dimension more
  const nb::object note = seen.attr("note");
  const bool native = nb::cast<bool>(seen.attr("native"));
  if (!stored.is_none() && nb::len(tail) == 0 && nb::len(note) == 0 && native) {
    const auto known = DTypeFromName(nb::str(stored).c_str());
    kind.plain = known.has_value();
    if (known) kind.dtype = *known;
  }
  return kinds_.emplace(dtype, std::move(kind)).first->second;
}

bool NumpyArrays::Describe(nb::handle array, PlainArray* out) {
  auto* const a = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (!PyArray_CHKFLAGS(a, NPY_ARRAY_C_CONTIGUOUS)) return false;
  const Kind& kind = KindOf(reinterpret_cast<PyObject*>(PyArray_DESCR(a)));
  if (!kind.plain) return false;
  out->dtype = kind.dtype;
  out->shape = {PyArray_DIMS(a), static_cast<std::size_t>(PyArray_NDIM(a))};
  out->data = PyArray_DATA(a);
  out->bytes = static_cast<std::uint64_t>(DTypeBits(kind.dtype)) / 8;
  for (const std::intptr_t dim : out->shape) out->bytes *= static_cast<std::uint64_t>(dim);
  out->writeable = PyArray_CHKFLAGS(a, NPY_ARRAY_WRITEABLE);
  return true;
}

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include <cairn/dtype.h>

namespace cairn::python {

/// A NumPy array whose memory is what a file holds: contiguous, in this machine's byte order, of a
/// dtype that needs no note. Borrowed from the array.
struct PlainArray {
  DType dtype = DType::kF32;
  std::span<const std::intptr_t> shape;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  bool writeable = false;
};

/// Looks at NumPy arrays without a call into Python for each of them, which is most of the time
/// that a state of many small arrays takes. What is not plain is for cairn/_arrays.py. Needs the
/// GIL.
class NumpyArrays {
 public:
  /// Never destroyed: it owns Python objects, and the interpreter may be gone at exit.
  static NumpyArrays& OfThisProcess();
  /// numpy.ndarray itself, not a subclass.
  bool IsArray(nanobind::handle value) const { return value.type().is(ndarray_); }
  /// False when the array (IsArray) is not plain.
  bool Describe(nanobind::handle array, PlainArray* out);

 private:
  NumpyArrays();

  struct Kind {
    bool plain = false;
    DType dtype = DType::kF32;
    nanobind::object keep;  // the dtype object, whose address is the key
  };
  const Kind& KindOf(PyObject* dtype);
  const Kind& LookUp(PyObject* dtype);

  nanobind::object ndarray_;
  nanobind::object look_up_;                   // cairn._arrays._numpy_kind
  std::unordered_map<PyObject*, Kind> kinds_;  // a handful; bounded by forgetting all
  const Kind* last_ = nullptr;                 // of them
};

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include <cairn/inference.h>

namespace cairn::python {

namespace nb = nanobind;

/// What a model takes or gives: (name, dtype, shape) of each.
inline nb::object FromSignature(const std::vector<TensorSignature>& tensors) {
  nb::list out;
  for (const TensorSignature& tensor : tensors) {
    out.append(nb::make_tuple(tensor.name, std::string(DTypeName(tensor.dtype)),
                              nb::tuple(nb::cast(tensor.shape))));
  }
  return out;
}

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// cairn.serving and exports, in the module _predict.
void BindServing(nanobind::module_& module);

}  // namespace cairn::python

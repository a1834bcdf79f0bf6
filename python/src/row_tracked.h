#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// Adds RowTracked: the native half of cairn.RowTracked.
void DefineRowTracked(nanobind::module_& module);

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// The classes and functions behind cairn.Scope and cairn.io.
void DefineScope(nanobind::module_& module);

}  // namespace cairn::python

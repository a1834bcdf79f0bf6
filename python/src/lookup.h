#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// Adds LookupClient to the module _ps.
void DefineLookup(nanobind::module_& module);

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// Adds Manager and Handle, the thin native halves of cairn.CheckpointManager and cairn.SaveHandle.
void DefineManager(nanobind::module_& module);

}  // namespace cairn::python

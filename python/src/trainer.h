#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// StopAgreement and refuse_unmerged_parts(directory): what cairn.Trainer has in common with the
/// C++ one.
void DefineTrainer(nanobind::module_& module);

}  // namespace cairn::python

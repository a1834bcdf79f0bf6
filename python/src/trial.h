#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// TrialClient: a run's side of the trial protocol.
void DefineTrial(nanobind::module_& module);

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// Tuner: an experiment, its loop driven by Python; end_with: ties a worker to its tuner.
void DefineTune(nanobind::module_& module);

}  // namespace cairn::python

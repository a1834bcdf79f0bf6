#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// TuneSpace, TuneSearcher, TuneScheduler, TuneStopper: what decides about trials.
void DefineTuneSearch(nanobind::module_& module);

}  // namespace cairn::python

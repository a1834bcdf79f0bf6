#pragma once

#include <nanobind/nanobind.h>

#include <cairn/value.h>

namespace cairn::python {

/// TuneReport, TuneReportLines; TensorBoard's records.
void DefineTuneReports(nanobind::module_& module);

/// News of a report: {"what", "trial", "result"}, where the result is a TuneReport: it is made a
/// dict of Python's when somebody looks at it. Other news are dicts.
nanobind::object FromNews(Value news);

}  // namespace cairn::python

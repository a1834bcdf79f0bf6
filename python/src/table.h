#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// Adds Table, TableCut, Batch and what makes them: the native halves of cairn.EmbeddingTable.
void DefineTable(nanobind::module_& module);

}  // namespace cairn::python

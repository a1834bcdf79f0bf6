#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include <cairn/table.h>

namespace cairn::python {

/// "full", "cumulative" or "consecutive"; raises Invalid for others.
CutKind ToCutKind(const std::string& kind);

/// Adds Table, TableCut, Batch and what makes them: the native halves of cairn.EmbeddingTable.
void DefineTable(nanobind::module_& module);

}  // namespace cairn::python

#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// StoreFiles: small files beside checkpoints, wherever these are.
void DefineStoreFiles(nanobind::module_& module);

}  // namespace cairn::python

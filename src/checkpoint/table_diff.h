#pragma once

#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/restore_point.h"
#include "storage/store.h"

namespace cairn {

/// The tables whose rows differ between two restore points: b against a. Rows are matched by key,
/// wherever they stand; frequencies, versions and slots count as well. FailedPrecondition where
/// rows can only be put together by the table itself.
Result<std::vector<TensorDifference>> DiffTables(Store* store_a, const OpenRestorePoint& a,
                                                 Store* store_b, const OpenRestorePoint& b);

}  // namespace cairn

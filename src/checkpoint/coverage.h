#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/catalog.h"

namespace cairn {

/// OK when the pieces cut the array into parts: none overlaps another and together they fill it.
/// Corruption otherwise. Meant for thousands of pieces.
Status CheckCoverage(std::string_view name, const StoredTensor& tensor);

/// InvalidArgument when shards leave a part of their array to nobody: of a process that saves alone
/// a piece that is missing would be missing for ever.
Status CheckShardsFillArrays(std::span<const Tensor> tensors);

}  // namespace cairn

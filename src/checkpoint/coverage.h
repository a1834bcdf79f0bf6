#pragma once

#include <cstdint>
#include <string_view>

#include <cairn/status.h>

#include "checkpoint/catalog.h"

namespace cairn {

/// OK when the pieces cut the array into parts: none overlaps another and together they fill it.
/// Corruption otherwise. Meant for thousands of pieces.
Status CheckCoverage(std::string_view name, const StoredTensor& tensor);

}  // namespace cairn

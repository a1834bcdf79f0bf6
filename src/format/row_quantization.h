#pragma once

#include <cstdint>
#include <span>

namespace cairn {

/// Rows as 8-bit integers: element = integer × scale, where the scale is the row's largest
/// magnitude over 127 (docs/format/tables.md). Not finite elements: the scale is NaN or infinite,
/// and so is what comes back.
float RowScale(std::span<const float> row);
/// `keep_small`: an element below the smallest number there is becomes that one, not 0.
void QuantizeRow(std::span<const float> row, float scale, std::int8_t* out,
                 bool keep_small = false);
void DequantizeRow(const std::int8_t* stored, float scale, std::span<float> row);

}  // namespace cairn

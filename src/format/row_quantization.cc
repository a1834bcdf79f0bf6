#include "format/row_quantization.h"

#include <algorithm>
#include <cmath>

namespace cairn {

float RowScale(std::span<const float> row) {
  float largest = 0;
  for (const float x : row) {
    const float magnitude = std::fabs(x);
    // Written so that NaN wins.
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest / 127.0F;
}

void QuantizeRow(std::span<const float> row, float scale, std::int8_t* out, bool keep_small) {
  // A scale that is not finite makes every element of the row so: 1 keeps it from becoming 0.
  if (!std::isfinite(scale)) {
    std::fill_n(out, row.size(), std::int8_t{1});
    return;
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    // A row of zeros, or of numbers too small for a scale.
    float steps = scale == 0 ? 0 : std::nearbyint(row[i] / scale);
    if (keep_small && steps == 0 && scale != 0 && row[i] != 0) steps = std::copysign(1.0F, row[i]);
    out[i] = static_cast<std::int8_t>(std::clamp(steps, -127.0F, 127.0F));
  }
}

void DequantizeRow(const std::int8_t* stored, float scale, std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(stored[i]) * scale;
}

}  // namespace cairn

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cairn/dtype.h>

namespace cairn {

/// Conversions between float32 and the 16-bit types, rounding to nearest, ties to even.

inline float FromBFloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FromFloat16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1F;
  const std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline std::uint16_t ToFloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;   // NaN
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // rounds beyond 65,504, or infinite
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000);
  }
  const std::uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000) >> 13);
}

/// `n` numbers from and to bytes of kF32, kF16 or kBF16.
inline void ReadFloats(DType dtype, const std::byte* stored, std::size_t n, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, stored, n * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, stored + i * sizeof bits, sizeof bits);
    out[i] = dtype == DType::kF16 ? FromFloat16(bits) : FromBFloat16(bits);
  }
}

inline void WriteFloats(DType dtype, const float* values, std::size_t n, std::byte* stored) {
  if (dtype == DType::kF32) {
    std::memcpy(stored, values, n * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t bits = dtype == DType::kF16 ? ToFloat16(values[i]) : ToBFloat16(values[i]);
    std::memcpy(stored + i * sizeof bits, &bits, sizeof bits);
  }
}

}  // namespace cairn

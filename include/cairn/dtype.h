#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

/// Element types of the safetensors format. Complex numbers are stored as pairs of floats.
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF6E2M3,  // the sub-byte types: the bits of a tensor must fill whole bytes
  kF6E3M2,
  kF4,
  kC64,  // a pair of F32
};

/// Bits of one element.
int DTypeBits(DType dtype);
/// The name used in safetensors headers: "F32", "BF16", "F8_E4M3", …
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace cairn

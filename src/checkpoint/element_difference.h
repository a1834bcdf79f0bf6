#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cairn/dtype.h>

namespace cairn {

/// How far two stretches of elements are apart. Equal bits are equal, also those of a NaN; other
/// bits count as different, also those of 0 and -0.
struct ElementDifference {
  double max_abs = 0;          // NaN when a NaN stands against a number
  std::uint64_t elements = 0;  // that differ

  void Merge(const ElementDifference& other);
};

/// Both hold the same whole number of elements; sub-byte elements are packed from the low bits up.
ElementDifference CompareElements(DType dtype, std::span<const std::byte> a,
                                  std::span<const std::byte> b);

}  // namespace cairn

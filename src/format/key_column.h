#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// A column of 64-bit keys in few bytes: differences of neighbours, split into planes of bytes,
/// compressed by zstd; with length and checksum (docs/format/tables.md). Pure functions.
Result<std::vector<std::byte>> EncodeKeyColumn(std::span<const std::int64_t> keys);
/// Corruption unless it holds exactly `count` keys. Allocates no more than they need.
Result<std::vector<std::int64_t>> DecodeKeyColumn(std::span<const std::byte> bytes,
                                                  std::uint64_t count);

}  // namespace cairn

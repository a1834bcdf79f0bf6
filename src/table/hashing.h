#pragma once

#include <cstdint>

#include <cairn/table.h>

namespace cairn::table {

/// The logical shard of a key: the top ten bits of the finalizer of SplitMix64. Part of the format
/// (docs/format/tables.md): it never changes.
inline std::uint32_t ShardOf(std::int64_t key) {
  auto x = static_cast<std::uint64_t>(key) + 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  return static_cast<std::uint32_t>(x >> 54);
}
static_assert(kTableShards == 1u << 10);

/// Where a key stands in its shard's index. Shares no step with ShardOf: the keys of one shard
/// agree in ten bits of that hash, and an index over it would leave most of its places empty.
inline std::uint64_t IndexHash(std::int64_t key) {
  auto x = static_cast<std::uint64_t>(key);
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ULL;
  x = (x ^ (x >> 29)) * 0xFF51AFD7ED558CCDULL;
  return x ^ (x >> 32);
}

}  // namespace cairn::table

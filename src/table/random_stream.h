#pragma once

#include <cstdint>

namespace cairn::table {

/// SplitMix64: random numbers by position, so that element i of a row needs no others.
inline std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

inline std::uint64_t TableStream(std::uint64_t seed, std::uint64_t name_hash) {
  return Mix(Mix(seed + 0x9E3779B97F4A7C15ULL) ^ name_hash);
}

inline std::uint64_t RowStream(std::uint64_t table_stream, std::int64_t key) {
  return Mix(table_stream + static_cast<std::uint64_t>(key) * 0xD1342543DE82EF95ULL);
}

/// Number `i` of a stream.
inline std::uint64_t DrawBits(std::uint64_t stream, std::uint64_t i) {
  return Mix(stream + (i + 1) * 0x9E3779B97F4A7C15ULL);
}

/// In [0, 1), with 53 bits.
inline double DrawUnit(std::uint64_t stream, std::uint64_t i) {
  return static_cast<double>(DrawBits(stream, i) >> 11) * 0x1p-53;
}

/// Standard normal number `i` of a stream (Box-Muller; each takes two uniform ones).
double DrawNormal(std::uint64_t stream, std::uint64_t i);

}  // namespace cairn::table

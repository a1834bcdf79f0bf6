#pragma once

#include <cstdint>

#include <cairn/status.h>

namespace cairn {

/// How much may be copied out of a file of that size. A file can name the same bytes any number of
/// times (tied weights do, a few times): a small one must not ask for much memory.
constexpr std::uint64_t MostCopiedBytes(std::uint64_t file_bytes) {
  constexpr std::uint64_t kTimes = 16;
  constexpr std::uint64_t kAlways = 16 << 20;
  return file_bytes * kTimes + kAlways;
}

inline Status RepeatedOverAndOver() {
  return CorruptionError(
      "it names the same bytes over and over: copied they would be many times as large as the "
      "file");
}

}  // namespace cairn

#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/test_table.h"

namespace cairn::kill {

/// The sparse table of a pretended training job: a pure function of (seed, step). Of its keys a
/// tenth changes at every step, a tenth comes and goes, some are pending.
inline TestTable TableAt(std::uint64_t seed, std::int64_t step) {
  constexpr std::uint64_t kKeys = 4000;
  TestTable table;
  const auto s = static_cast<std::uint64_t>(step);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::uint64_t random = TestTable::Mix(seed ^ (i + 1));
    const auto key = static_cast<std::int64_t>(random);
    if (i % 10 == 3 && (s + i) % 3 == 0) {
      if (i % 20 == 3) table.pending[key] = s;
      continue;
    }
    table.rows[key] = 1 + ((s + i) % 10 == 0 ? s : s - (s + i) % 10);
  }
  return table;
}

/// What a step saves: a full one now and then, cumulative increments, then consecutive ones.
inline SaveKind KindAt(std::int64_t step) {
  switch (step % 7) {
    case 0:
      return SaveKind::kFull;
    case 1:
    case 2:
      return SaveKind::kCumulative;
    default:
      return SaveKind::kConsecutive;
  }
}

}  // namespace cairn::kill

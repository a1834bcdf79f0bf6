#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace cairn {

/// Ends the fuzz target, as a finding, when `holds` is false.
inline void Require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace cairn

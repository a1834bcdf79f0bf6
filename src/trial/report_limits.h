#pragma once

#include <cstddef>

namespace cairn {

// What is asked of reports, by the engine and, so that the same is refused without one, by the
// process that reports (python/cairn/core/_train.py has the same numbers).
inline constexpr std::size_t kMaxGroupBytes = 256;    // of a group's name
inline constexpr std::size_t kMaxStatusBytes = 4096;  // of the line that set_status gives

}  // namespace cairn

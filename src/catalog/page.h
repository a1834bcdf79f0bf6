#pragma once

#include <cstdint>
#include <vector>

namespace cairn {

/// Part of a list that can be long.
template <typename T>
struct Page {
  std::vector<T> items;
  std::uint64_t total = 0;  // of the whole list, by the same filter
};

/// Pages hold at most so many items, whatever was asked for.
inline constexpr std::uint64_t kMaxPage = 1000;

}  // namespace cairn

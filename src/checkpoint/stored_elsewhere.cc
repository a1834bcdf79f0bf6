#include "checkpoint/stored_elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace cairn {

std::string StoredElsewhere(const std::vector<std::string>& missing,
                            const std::vector<std::string>& unexpected) {
  constexpr std::size_t kTried = 10;  // names: a program that misses one behind a prefix misses all
  for (std::size_t i = 0; i < std::min(kTried, missing.size()); ++i) {
    const std::string_view name = missing[i];
    for (const std::string& stored : unexpected) {
      if (stored.size() <= name.size() || !stored.ends_with(name)) continue;
      const char before = stored[stored.size() - name.size() - 1];
      if (before != '/' && before != '.') continue;
      return fmt::format(" ({} is stored: that may be {})", stored, name);
    }
  }
  return "";
}

}  // namespace cairn

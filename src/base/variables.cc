#include "base/variables.h"

#include <charconv>
#include <cstdlib>
#include <limits>

namespace cairn {

Variables ProcessVariables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Result<std::uint64_t> ParseByteCount(const std::string& text) {
  std::uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  int shift = 0;
  if (end - rest == 1) {
    shift = *rest == 'K' ? 10 : *rest == 'M' ? 20 : *rest == 'G' ? 30 : -1;
  }
  if (error != std::errc() || end - rest > 1 || shift < 0 ||
      count > std::numeric_limits<std::uint64_t>::max() >> shift) {
    return InvalidArgumentError("\"" + text.substr(0, 40) +
                                "\" is not a number of bytes such as 500000, 64K, 100M or 2G");
  }
  return count << shift;
}

}  // namespace cairn

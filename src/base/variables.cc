#include "base/variables.h"

#include <cctype>
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
    const char unit = static_cast<char>(std::toupper(static_cast<unsigned char>(*rest)));
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : -1;
  }
  if (error != std::errc() || end - rest > 1 || shift < 0 ||
      count > std::numeric_limits<std::uint64_t>::max() >> shift) {
    return InvalidArgumentError("\"" + text.substr(0, 40) +
                                "\" is not a number of bytes such as 50000000 or 64M");
  }
  return count << shift;
}

}  // namespace cairn

#include "format/yaml_scalar.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace cairn {
namespace {

template <typename T>
bool ParseWhole(std::string_view text, T* out, int base = 10) {
  if (text.starts_with('+')) text.remove_prefix(1);
  std::from_chars_result result{};
  if constexpr (std::is_floating_point_v<T>) {
    result = std::from_chars(text.data(), text.data() + text.size(), *out);
  } else {
    result = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  }
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

Value YamlScalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  std::int64_t number = 0;
  std::uint64_t large = 0;
  const bool hex = text.starts_with("0x");
  if (hex && ParseWhole(std::string_view(text).substr(2), &large, 16)) return large;
  if (ParseWhole(text, &number)) return number;
  if (ParseWhole(text, &large)) return large;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == ".inf" || text == "+.inf" || text == ".Inf") return kInfinity;
  if (text == "-.inf" || text == "-.Inf") return -kInfinity;
  if (text == ".nan" || text == ".NaN") return std::numeric_limits<double>::quiet_NaN();
  double real = 0;
  // from_chars takes "inf" and "nan", which are texts here.
  const bool digits = text.find_first_of("0123456789") != std::string::npos &&
                      text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  if (digits && ParseWhole(text, &real) && std::isfinite(real)) return real;
  return text;
}

}  // namespace cairn

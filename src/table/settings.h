#pragma once

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::table {

/// A setting of an optimizer or initializer and where it must lie.
struct Setting {
  std::string_view name;
  float value;
  float low;   // at least
  float high;  // at most
};

/// InvalidArgument, naming the first setting that is not a number or lies outside.
inline Status CheckSettings(std::string_view of, std::initializer_list<Setting> settings) {
  for (const Setting& setting : settings) {
    if (std::isfinite(setting.value) && setting.value >= setting.low &&
        setting.value <= setting.high) {
      continue;
    }
    return InvalidArgumentError(fmt::format("{}: {} = {:g} is not between {:g} and {:g}", of,
                                            setting.name, setting.value, setting.low,
                                            setting.high));
  }
  return Status::Ok();
}

inline constexpr float kLargest = 1e30F;

}  // namespace cairn::table

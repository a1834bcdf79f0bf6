#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cairn::tune {

// Records of TensorBoard's event files: length, its masked CRC-32C, a protocol buffer `Event`, its
// masked CRC-32C. Written without TensorFlow or TensorBoard, which need not be installed.

/// The record that a file begins with. `wall_time` in seconds since 1970.
std::string TensorboardHeader(double wall_time);

/// One record with a number for each tag. NaN and infinities are numbers.
std::string TensorboardScalars(double wall_time, std::int64_t step,
                               std::span<const std::pair<std::string, double>> scalars);

}  // namespace cairn::tune

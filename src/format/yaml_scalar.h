#pragma once

#include <string>

#include <cairn/value.h>

namespace cairn {

/// What YAML's core schema makes of a plain scalar: null, a bool, an integer, a double, or the text
/// itself.
Value YamlScalar(const std::string& text);

}  // namespace cairn

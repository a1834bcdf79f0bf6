#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <cairn/status.h>

namespace cairn {

/// Looks up an environment variable; an empty one counts as not set. Tests give their own.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

Variables ProcessVariables();

/// "64M" → 67108864. A number with an optional K, M or G, in either case.
Result<std::uint64_t> ParseByteCount(const std::string& text);

}  // namespace cairn

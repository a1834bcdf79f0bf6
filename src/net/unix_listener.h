#pragma once

#include <string>

#include <cairn/status.h>

namespace cairn {

/// A socket that is bound to `path` for its owner only (mode 0600) and does not listen yet. A file
/// that nobody listens on any more is replaced; Unavailable when somebody does.
Result<int> BindUnixSocket(const std::string& path);

}  // namespace cairn

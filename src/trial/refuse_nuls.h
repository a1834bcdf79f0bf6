#pragma once

#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// InvalidArgument, with its place below `where`, for a text or a key with a NUL: databases hold
/// none.
Status RefuseNuls(const Value& value, const std::string& where);

}  // namespace cairn

#pragma once

#include <string_view>

#include <cairn/status.h>

namespace cairn {

/// OK for a path that stays inside the directory it is relative to: no empty, "." or ".."
/// component, no control characters, UTF-8, components of at most 255 bytes, at most 1,024 bytes in
/// all. InvalidArgument otherwise. Stores refuse the same names, and those of their temporary
/// files.
Status ValidateRelativePath(std::string_view path);

/// OK for a participant's name, which becomes a file's name: one component, not ".", "..".
Status ValidateParticipant(std::string_view name);

}  // namespace cairn

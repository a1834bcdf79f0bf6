#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::master {

/// The file with these bytes, durable: whole or as it was before. `mode` is given before a byte is
/// in it.
Status WriteWhole(const std::string& path, std::string_view bytes, mode_t mode);
/// NotFound.
Result<std::string> ReadWhole(const std::string& path);

}  // namespace cairn::master

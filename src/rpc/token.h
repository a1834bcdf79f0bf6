#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::rpc {

/// Equal, in a time that tells nothing about where they differ.
bool SameToken(std::string_view a, std::string_view b);

/// A token file's content without the line end. InvalidArgument when it is empty.
Result<std::string> ReadTokenFile(const std::string& path);

/// A PEM file's content.
Result<std::string> ReadPemFile(const std::string& path);

}  // namespace cairn::rpc

#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn {

/// A new secret: 64 hex digits from the kernel's random numbers.
Result<std::string> NewToken();
/// SHA-256 in hex digits: what is kept of a token.
std::string HashToken(std::string_view token);
/// Whether the token has that hash. Takes the same time wherever they differ.
bool TokenMatches(std::string_view token, std::string_view hash);

}  // namespace cairn

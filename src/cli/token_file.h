#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::cli {

/// Where tokens lie on this machine (docs/decisions/0121): what `cairn login` stored for a master,
/// and what a master on this machine left for its own user. Files are for their owner only.

/// The file that a master which listens on this port of a loopback address leaves its token in.
/// NotFound without a home directory.
Result<std::string> LocalTokenPath(std::uint16_t port);
/// The file that `cairn login` uses for the master at the URL. InvalidArgument for no URL.
Result<std::string> LoginTokenPath(std::string_view url);

/// Writes the file whole or not at all, with mode 0600, and makes its directory with mode 0700.
Status WriteToken(const std::string& path, std::string_view token);
/// The token, or "" when there is no such file. PermissionDenied for one that others may read or
/// that belongs to somebody else.
Result<std::string> ReadToken(const std::string& path);
/// No error when it is not there.
Status RemoveToken(const std::string& path);

/// CAIRN_TOKEN, else that of a login, else (for masters at a loopback address) the local one; ""
/// when there is none.
Result<std::string> FindToken(std::string_view url);

}  // namespace cairn::cli

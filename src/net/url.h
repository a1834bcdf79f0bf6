#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// The pieces of "scheme://authority/path", as they stand: nothing is decoded.
struct Url {
  std::string scheme;     // lower case
  std::string authority;  // host, or host:port
  std::string path;       // "" or starts with '/'
  std::string query;      // without '?'

  /// The authority without a port, and without the brackets of an IPv6 address.
  std::string Host() const;
};

/// InvalidArgument unless the text has a scheme and a host.
Result<Url> ParseUrl(std::string_view text);

/// A URL as messages may have it: without user, password and query.
std::string ShownUrl(std::string_view url);

/// "s3" of "s3://bucket"; "" when the text does not begin with a scheme and "://".
std::string_view UrlScheme(std::string_view text);

/// Everything but letters, digits and "-._~" as %XX; '/' stays with `keep_slash`. The encoding that
/// signed requests are built on (RFC 3986).
std::string PercentEncode(std::string_view text, bool keep_slash = false);

/// Undoes %XX. InvalidArgument for a '%' without two hex digits.
Result<std::string> PercentDecode(std::string_view text);

/// "a=1&b=2" with names and values encoded, in the order given.
std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters);

/// Where a server listens: "127.0.0.1:8080", "[::1]:0", "localhost:8080".
struct ListenAddress {
  std::string host;  // an address: without brackets, localhost as 127.0.0.1
  std::uint16_t port = 0;
  bool v6 = false;
};
/// InvalidArgument where the port is no number.
Result<ListenAddress> ParseListenAddress(std::string_view listen);

}  // namespace cairn

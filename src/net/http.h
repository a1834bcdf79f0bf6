#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {

struct HttpHeader {
  std::string name;
  std::string value;
};

/// One request of an HttpClient. What is borrowed must live until the call is done.
struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http://, https:// or http+unix://<path of the socket>/…, percent-encoded
  std::vector<HttpHeader> headers;
  std::span<const std::byte> body;  // borrowed
  /// Where the body of a 2xx answer goes, if not empty; borrowed. A longer one is an error.
  std::span<std::byte> into;
  /// Takes the body of a 2xx answer piece by piece as it comes, if set, instead of `into`; called
  /// on the client's thread. False: it wants no more, and the call ends with Cancelled. A second
  /// attempt would begin with the first piece again: for calls with one.
  std::function<bool(std::string_view piece)> sink;
  /// The longest body taken into HttpResponse::body; a longer one is ResourceExhausted.
  std::uint64_t max_body_bytes = 64u << 20;
  /// Instead of the client's stall_timeout, where it is longer: for what a server does in silence.
  std::chrono::nanoseconds patience{0};
};

struct HttpResponse {
  int status = 0;
  std::vector<HttpHeader> headers;  // names in lower case
  std::string body;                 // what did not go into HttpRequest::into
  std::size_t into_bytes = 0;       // what did

  /// The first header of that (lower-case) name, or "".
  std::string_view Header(std::string_view name) const;
  bool Succeeded() const { return status >= 200 && status < 300; }
};

}  // namespace cairn

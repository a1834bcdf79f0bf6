#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/http_routes.h"
#include "net/http_server.h"

namespace cairn {

/// Decides on a request when its headers are there and nothing of its body. Immutable; may be asked
/// from several threads.
class HttpIntake {
 public:
  /// `routes` are borrowed.
  HttpIntake(const HttpRoutes* routes, std::uint64_t max_body_bytes, HttpErrorShape error)
      : routes_(routes), max_body_bytes_(max_body_bytes), error_(std::move(error)) {}

  struct Verdict {
    std::optional<ServerResponse> refusal;
    std::uint64_t max_body_bytes = 0;  // of the route and of the server
  };
  /// `path` and `query` as sent; `length` is what Content-Length says, nothing for chunked bodies.
  Verdict Judge(ServerRequest head, std::string_view path,
                std::optional<std::uint64_t> length) const;

  ServerResponse TooLarge(std::uint64_t limit) const;

  /// A refusal as text, to be kept with a request whose body is still being skipped.
  static std::string Encode(const ServerResponse& refusal, bool hang_up);
  static ServerResponse Decode(std::string_view text, bool* hang_up);

 private:
  const HttpRoutes* const routes_;
  const std::uint64_t max_body_bytes_;
  const HttpErrorShape error_;
};

}  // namespace cairn

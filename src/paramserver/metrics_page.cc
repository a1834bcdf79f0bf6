#include "paramserver/metrics_page.h"

#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "net/http_server.h"
#include "net/token.h"

namespace cairn::ps {

Result<std::string> MetricsAddress(const std::string& given) {
  const std::size_t colon = given.rfind(':');
  const std::string host = colon == given.npos || colon == 0 ? "127.0.0.1" : given.substr(0, colon);
  const std::string number = given.substr(colon == given.npos ? 0 : colon + 1);
  int port = -1;
  const char* const end = number.data() + number.size();
  const auto [read, error] = std::from_chars(number.data(), end, port);
  if (error != std::errc() || read != end || port < 0 || port > 65'535) {
    return InvalidArgumentError("metrics: \"" + given +
                                "\" is not port or host:port with a port of 0 to 65535");
  }
  return host + ":" + number;
}

Result<std::unique_ptr<HttpServer>> StartMetricsPage(const std::string& listen,
                                                     const std::string& token,
                                                     const Server* server) {
  std::vector<HttpRoute> routes(2);
  routes[0].method = "GET";
  routes[0].pattern = "/metrics";
  routes[0].handler = [server](const ServerRequest&, const HttpReply& reply) {
    reply.Send({.body = server->MetricsText(),
                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                .headers = {}});
  };
  if (!token.empty()) {
    routes[0].authorize =
        [hash = HashToken(token)](const ServerRequest& request) -> std::optional<ServerResponse> {
      if (TokenMatches(request.BearerToken(), hash)) return std::nullopt;
      return ErrorResponse(401, "permission_denied", "a token is needed: Authorization: Bearer …");
    };
  }
  routes[1].method = "GET";
  routes[1].pattern = "/healthz";
  routes[1].handler = [server](const ServerRequest&, const HttpReply& reply) {
    const bool serving = server->serving();
    reply.Send({.status = serving ? 200 : 503,
                .body = serving ? "{\"serving\":true}" : "{\"serving\":false}",
                .headers = {}});
  };
  return HttpServer::Start({.listen = listen}, std::move(routes));
}

}  // namespace cairn::ps

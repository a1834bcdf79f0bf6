#pragma once

#include <memory>
#include <string>

#include <cairn/ps.h>
#include <cairn/status.h>

namespace cairn {
class HttpServer;
}

namespace cairn::ps {

/// "9100", ":9100" or "host:9100" as host:port: without a host this machine alone. InvalidArgument
/// for anything else.
Result<std::string> MetricsAddress(const std::string& given);

/// A server's metrics and health for those who ask by HTTP: GET /metrics (with a token where the
/// server has one) and GET /healthz (200 while it serves, 503 on the way there and after its end).
/// `server` is asked until the page is destroyed.
Result<std::unique_ptr<HttpServer>> StartMetricsPage(const std::string& listen,
                                                     const std::string& token,
                                                     const Server* server);

}  // namespace cairn::ps

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "net/http_server.h"
#include "trial/refuse_nuls.h"
#include "trial/trial_engine.h"

namespace cairn {

/// The routes of the trial protocol (docs/format/trial_protocol.md) for an HttpServer; the engine
/// is borrowed and must outlive the server. A master adds them to its own.
std::vector<HttpRoute> TrialRoutes(TrialEngine* engine);

/// What a route below a run does: called when the run's token was found to be right.
using RunCall =
    std::function<void(const TrialEngine::RunKey& key, Value body, TrialEngine::Done<Value> done)>;
/// A route "POST <base><path>" for those who add their own to the protocol's.
HttpRoute RunRoute(TrialEngine* engine, std::string_view path, RunCall call,
                   std::uint64_t max_body_bytes = 1u << 20);

/// What a status is on the wire: HTTP status and the code in the body.
ServerResponse ResponseOf(const Status& status);

struct TrialServiceOptions {
  TrialEngine* engine = nullptr;  // borrowed
  HttpServerOptions http;
};

/// The trial protocol on a socket of its own: what the tuner needs, and tests.
class TrialService {
 public:
  /// Listens when it returns.
  static Result<std::unique_ptr<TrialService>> Start(TrialServiceOptions options);

  const std::string& url() const { return server_->url(); }
  /// Hangs up on all; the engine may be destroyed afterwards.
  void Stop() { server_->Stop(); }

 private:
  explicit TrialService(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace cairn

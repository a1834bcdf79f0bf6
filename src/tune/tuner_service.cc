// Where workers reach the tuner.
#include <fmt/format.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "trial/trial_service.h"
#include "tune/tuner.h"

namespace cairn::tune {
namespace {

/// The port of a tuner whose workers are on other machines, in its experiment's directory: those
/// that outlived it look for its next life there.
constexpr char kPortName[] = "port";
constexpr std::uint64_t kMaxPortBytes = 16;
constexpr int kMaxConnections = 4096;

}  // namespace

Status Tuner::StartService() {
  std::vector<HttpRoute> routes = Routes();
  if (options_.host.empty()) {
    RETURN_IF_ERROR(socket_directory_.Make());
    const std::string listen = "unix:" + socket_directory_.path() + "/tuner";
    ASSIGN_OR_RETURN(server_,
                     HttpServer::Start({.listen = listen,
                                        // It passes on what workers say, and does nothing itself:
                                        // a second thread would wake for half of it.
                                        .threads = 1,
                                        .max_connections = kMaxConnections},
                                       std::move(routes)));
    engine_->SetUrl(server_->url());
    return Status::Ok();
  }
  routes.push_back(
      RunRoute(engine_.get(), "/tune/payload", [this](const RunKey&, const Value&, Done done) {
        done(Value(Value::Object{{"payload", options_.payload}}));
      }));
  const auto kept = store_->Get(kPortName, kMaxPortBytes);
  const std::string before = kept.ok() ? *kept : "0";
  auto started = HttpServer::Start(
      {.listen = "0.0.0.0:" + before, .max_connections = kMaxConnections}, routes);
  if (!started.ok() && kept.ok()) {
    LogWarning(fmt::format("tuner: port {} is another's by now: workers that live do not find it",
                           before));
    started = HttpServer::Start({.listen = "0.0.0.0:0", .max_connections = kMaxConnections},
                                std::move(routes));
  }
  RETURN_IF_ERROR(started.status());
  server_ = *std::move(started);
  const std::string port = std::to_string(server_->port());
  if (port != before) RETURN_IF_ERROR(store_->Put(kPortName, port));
  engine_->SetUrl(fmt::format("http://{}:{}", options_.host, port));
  return Status::Ok();
}

}  // namespace cairn::tune

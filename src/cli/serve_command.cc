#include "cli/serve_command.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/open_files.h"
#include "base/status_macros.h"
#include "cli/service_reporter.h"
#include "format/json.h"
#include "net/url.h"

#ifdef CAIRN_SERVE
#include <cairn/serving.h>

#include "serving/server/probe_file.h"
#include "serving/server/request_metrics.h"
#include "serving/server/serving_server.h"
#endif
#ifdef CAIRN_WITH_PS
#include "serving/lookup/lookup_server.h"
#endif

namespace cairn::cli {

#ifdef CAIRN_SERVE
namespace {

namespace fs = std::filesystem;

/// Clients keep their connections, and when there are as many as there may be, nobody else is heard
/// until one of them was silent for long. Some descriptors are left for files.
int MostConnections() {
  constexpr rlim_t kMost = 10'000;
  constexpr rlim_t kFiles = 256;
  AllowOpenFiles(kMost + kFiles);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return HttpServerOptions{}.max_connections;
  return static_cast<int>(std::clamp(limit.rlim_cur, 2 * kFiles, kMost + kFiles) - kFiles);
}

Result<std::string> ReadToken(const ServeOptions& options) {
  if (options.token_file.empty()) {
    const char* token = std::getenv("CAIRN_TOKEN");
    return std::string(token == nullptr ? "" : token);
  }
  std::ifstream in(options.token_file);
  std::string token;
  std::getline(in, token);
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.pop_back();
  if (token.empty()) {
    return InvalidArgumentError("--token-file: \"" + options.token_file + "\" has no token");
  }
  return token;
}

/// What a page shows of a serving process.
Value::Object FactsOf(const std::string& name, const serving::Model& model,
                      const Console& console) {
  const serving::ModelStats stats = model.stats();
  Value::Object facts{{"model", name},
                      {"updates", stats.updates},
                      {"refused", stats.refused},
                      {"newest_step", stats.newest_step},
                      {"repository_reachable", stats.reachable}};
  if (const auto version = model.Version(); version.ok()) {
    facts["version"] = version->id;
    facts["step"] = version->step;
    facts["rows"] = version->rows;
    facts["lag_seconds"] = serving::LagSeconds(stats, *version, console.clock()->WallNanos());
  }
  return facts;
}

/// "export/3" → "export"; what a number says is not a name, and neither is ".".
std::string NameOf(const ServeOptions& options) {
  if (!options.name.empty()) return options.name;
  const bool url = !UrlScheme(options.model).empty();
  std::error_code unknown;  // the directory that we are in is gone: the name as it was given
  fs::path path = url ? fs::path(options.model) : fs::absolute(options.model, unknown);
  if (unknown) path = options.model;
  path = path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string last = path.filename().string();
  const bool number = last.find_first_not_of("0123456789") == last.npos;
  const std::string above = path.parent_path().filename().string();
  return number && !above.empty() ? above : last;
}

/// `said`: why one was passed over last; the same reason is not told for each checkpoint.
void TellUpdate(const Console& console, const serving::UpdateEvent& event, std::string* said) {
  if (event.kind == serving::UpdateEvent::Kind::kPassedOver && event.message != *said) {
    *said = event.message;
    console.Note(fmt::format("step {} is passed over: {}", event.step, event.message));
  }
  if (event.kind != serving::UpdateEvent::Kind::kApplied) return;  // the log warns of the others
  console.Note(fmt::format("step {}: {} rows, {} changed, {:.0f} ms{}", event.step, event.rows,
                           event.changed, event.seconds * 1e3, event.full ? " (full)" : ""));
}

/// Serves as long as `server` lives.
struct Lookups {
  std::shared_ptr<void> server;  // shared, because that forgets the type: not every build has it
  int port = 0;
};

#ifdef CAIRN_WITH_PS
/// Beside the HTTP server, with the same token, certificate and bounds; counted in its metrics.
Result<Lookups> ServeLookups(const ServeOptions& options, const std::string& token,
                             const serving::Model* model, serving::ServingServer* counts) {
  serving::LookupServerOptions lookups;
  lookups.listen = options.grpc;
  lookups.security.token = token;
  lookups.security.certificate = options.tls_certificate;
  lookups.security.key = options.tls_key;
  lookups.max_request_bytes = options.max_request_bytes;
  lookups.on_request = [counts](double seconds, bool ok) { counts->CountLookup(seconds, ok); };
  ASSIGN_OR_RETURN(auto server, serving::LookupServer::Start(std::move(lookups), model));
  const int port = server->port();
  return Lookups{.server = std::move(server), .port = port};
}
#else
Result<Lookups> ServeLookups(const ServeOptions&, const std::string&, const serving::Model*,
                             serving::ServingServer*) {
  return UnimplementedError(
      "--grpc: this build of Cairn has no gRPC: install libgrpc++-dev and build it again");
}
#endif

}  // namespace

Result<Output> Serve(const ServeOptions& options, Console* console) {
  serving::ServingServerOptions server;
  ASSIGN_OR_RETURN(server.token, ReadToken(options));
  server.name = NameOf(options);
  server.max_request_bytes = options.max_request_bytes;
  server.http.listen = options.listen;
  server.http.tls = {.certificate = options.tls_certificate, .key = options.tls_key};
  server.http.max_body_bytes = options.max_request_bytes;
  server.http.max_connections = MostConnections();
  server.http.threads =
      options.threads > 0
          ? options.threads
          : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxHttpThreads);
  serving::ModelOptions model;
  model.max_row_bytes = server.max_answer_bytes;
  model.export_dir = options.model;
  model.repository = options.repository;
  model.inference.threads = options.run_threads;
  model.keep_versions = options.keep_versions;
  model.poll = std::chrono::nanoseconds(static_cast<std::int64_t>(options.poll_seconds * 1e9));
  model.check_finite = !options.allow_not_finite;
  model.cpu_share = options.cpu_share;
  if (!options.probes.empty()) {
    auto probes = serving::ReadProbes(options.probes);
    if (!probes.ok()) return probes.status().WithContext("--probes");
    model.probes = *std::move(probes);
  }
  model.require_version = false;  // it may be started before the training
  model.look_behind = true;       // and is live, and ends when it is told to, while it loads
  model.on_update = [console, said = std::string()](const serving::UpdateEvent& event) mutable {
    TellUpdate(*console, event, &said);
  };
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto served, serving::Model::Open(std::move(model)));
  const std::string token = server.token;
  const bool open = token.empty();
  const std::string name = server.name;
  ASSIGN_OR_RETURN(const auto listening,
                   serving::ServingServer::Start(std::move(server), served.get()));
  console->Note(fmt::format("serving {} at {}/v2/models/{}{}", QuoteForMessage(name),
                            listening->url(), PercentEncode(name),
                            open ? " (no token: anybody who reaches it may ask)" : ""));
  Lookups lookups;
  if (!options.grpc.empty()) {
    ASSIGN_OR_RETURN(lookups, ServeLookups(options, token, served.get(), listening.get()));
    console->Note(fmt::format("lookups by gRPC at {}:{}",
                              options.grpc.substr(0, options.grpc.rfind(':')), lookups.port));
  }
  ASSIGN_OR_RETURN(
      const auto reporter,
      ServiceReporter::Start({.master = options.master,
                              .kind = "serving",
                              .name = "",
                              .repository = options.repository,
                              .facts = [&] { return FactsOf(name, *served, *console); }},
                             console));
  while (!Console::interrupted()) console->clock()->Sleep(std::chrono::milliseconds(100));
  const serving::ModelStats stats = served->stats();
  Output output;
  output.text = fmt::format("{} updates, {} refused\n", stats.updates, stats.refused);
  output.json = Value::Object{{"updates", stats.updates}, {"refused", stats.refused}};
  return output;
}

#else

Result<Output> Serve(const ServeOptions&, Console*) {
  return UnimplementedError(
      "this build of Cairn has no inference models: install libonnx-dev and libprotobuf-dev and "
      "build it again");
}

#endif

}  // namespace cairn::cli

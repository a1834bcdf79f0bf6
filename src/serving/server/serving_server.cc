#include "serving/server/serving_server.h"

#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"
#include "net/token.h"
#include "serving/server/infer_json.h"
#include "serving/server/request_metrics.h"

namespace cairn::serving {
namespace {

ServerResponse Json(int status, const Value::Object& body) {
  ServerResponse response;
  response.status = status;
  response.body = EncodeJson(body) + "\n";
  return response;
}

/// KServe's shape of an error, with what all servers of ours say besides.
ServerResponse ErrorAnswer(int status, std::string_view code, std::string_view message) {
  return Json(status, {{"error", std::string(message)},
                       {"code", std::string(code)},
                       {"message", std::string(message)},
                       {"details", Value::Object{}}});
}

ServerResponse Failed(const Status& status) {
  const auto error = [&](int http, std::string_view code) {
    return ErrorAnswer(http, code, status.message());
  };
  switch (status.code()) {
    case Code::kInvalidArgument:
      return error(400, "invalid_argument");
    case Code::kPermissionDenied:
      return error(401, "unauthenticated");
    case Code::kNotFound:
      return error(404, "not_found");
    case Code::kFailedPrecondition:
      return error(409, "failed_precondition");
    case Code::kResourceExhausted:
      return error(413, "too_large");
    case Code::kUnavailable:
      return error(503, "unavailable");
    default:
      return error(500, "internal");
  }
}

std::string VersionText(const VersionInfo& info) { return std::to_string(info.step); }

}  // namespace

class ServingServer::Impl {
 public:
  Impl(ServingServerOptions options, Model* model)
      : options_(std::move(options)),
        token_hash_(options_.token.empty() ? "" : HashToken(options_.token)),
        model_(model) {}

  Status Start() {
    const std::string base = "/v2/models/{model}";
    std::vector<HttpRoute> routes;
    const auto add = [&](const char* method, const std::string& path, bool open,
                         std::function<ServerResponse(const ServerRequest&)> handle,
                         std::uint64_t limit) {
      HttpRoute route;
      route.method = method;
      route.pattern = path;
      route.max_body_bytes = limit;
      route.handler = [handle = std::move(handle)](const ServerRequest& request,
                                                   const HttpReply& reply) {
        reply.Send(handle(request));
      };
      if (!open && !token_hash_.empty()) {
        route.authorize = [this](const ServerRequest& request) -> std::optional<ServerResponse> {
          if (TokenMatches(request.BearerToken(), token_hash_)) return std::nullopt;
          return Failed(PermissionDeniedError("a token is needed: Authorization: Bearer …"));
        };
      }
      routes.push_back(std::move(route));
    };
    const auto get = [&](const std::string& path, bool open,
                         ServerResponse (Impl::*handle)(const ServerRequest&)) {
      add(
          "GET", path, open, [this, handle](const ServerRequest& r) { return (this->*handle)(r); },
          kSmall);
    };
    const auto post = [&](const std::string& path, std::uint64_t limit,
                          ServerResponse (Impl::*handle)(const ServerRequest&)) {
      add(
          "POST", path, false,
          [this, handle](const ServerRequest& r) {
            Status known = CheckModel(r);
            return known.ok() ? (this->*handle)(r) : Failed(known);
          },
          limit);
    };
    get("/v2", true, &Impl::Server);
    get("/v2/health/live", true, &Impl::Live);
    get("/v2/health/ready", true, &Impl::Ready);
    get("/metrics", false, &Impl::Metrics);
    // A version is a step that Describe names; without one it is the version that is served.
    for (const std::string& one : {base, base + "/versions/{version}"}) {
      get(one, false, &Impl::Describe);
      get(one + "/ready", true, &Impl::Ready);
      post(one + "/infer", options_.max_request_bytes, &Impl::Infer);
    }
    post(base + "/tables/{table}/lookup", options_.max_request_bytes, &Impl::Lookup);
    post(base + "/rollback", kSmall, &Impl::Rollback);
    post(base + "/pin", kSmall, &Impl::Pin);
    post(base + "/resume", kSmall, &Impl::Resume);
    post(base + "/notify", kSmall, &Impl::Notify);
    HttpServerOptions http = options_.http;
    http.error = ErrorAnswer;
    ASSIGN_OR_RETURN(server_, HttpServer::Start(std::move(http), std::move(routes)));
    return Status::Ok();
  }

  const std::string& url() const { return server_->url(); }
  void CountLookup(double seconds, bool ok) {
    lookup_.Observe(seconds);
    if (!ok) lookup_.CountError();
  }

 private:
  static constexpr std::uint64_t kSmall = 64u << 10;

  Status CheckModel(const ServerRequest& request) const {
    const auto it = request.params.find("model");
    if (it == request.params.end() || it->second == options_.name) return Status::Ok();
    return NotFoundError("there is no model " + QuoteForMessage(it->second) + "; there is " +
                         QuoteForMessage(options_.name));
  }

  ServerResponse Server(const ServerRequest&) {
    return Json(200, {{"name", "cairn"}, {"version", "2"}, {"extensions", Value::List{}}});
  }

  ServerResponse Live(const ServerRequest&) { return Json(200, {{"live", true}}); }

  /// The version that the path names, or the one that is served.
  Result<std::unique_ptr<Model::View>> Take(const ServerRequest& request) const {
    const auto it = request.params.find("version");
    if (it == request.params.end()) return model_->Take();
    std::int64_t step = -1;
    const char* const last = it->second.data() + it->second.size();
    const auto [read, error] = std::from_chars(it->second.data(), last, step);
    if (error == std::errc() && read == last) return model_->TakeStep(step);
    return NotFoundError("there is no version " + QuoteForMessage(it->second) +
                         ": versions are steps");
  }

  ServerResponse Ready(const ServerRequest& request) {
    if (Status known = CheckModel(request); !known.ok()) return Failed(known);
    const auto view = Take(request);
    // Anybody may ask this: which versions there are is told to others.
    if (view.status().Is(Code::kNotFound)) return Failed(NotFoundError("that version is not kept"));
    const bool ready = view.ok();
    return Json(ready ? 200 : 503, {{"name", options_.name}, {"ready", ready}});
  }

  ServerResponse Metrics(const ServerRequest&) {
    ServerResponse response;
    response.content_type = "text/plain; version=0.0.4";
    response.body = MetricsPage(*model_, options_.clock->WallNanos(), predict_, lookup_);
    return response;
  }

  ServerResponse Describe(const ServerRequest& request) {
    if (Status known = CheckModel(request); !known.ok()) return Failed(known);
    if (const Status found = Take(request).status(); found.Is(Code::kNotFound)) {
      return Failed(found);
    }
    Value::List versions;
    for (const VersionInfo& info : model_->Versions()) versions.emplace_back(VersionText(info));
    Value::Object tables;
    for (const Model::TableInfo& table : model_->tables()) {
      tables.emplace(table.name, Value::Object{{"dim", std::int64_t{table.dim}}});
    }
    return Json(200, {{"name", options_.name},
                      {"platform", "cairn_onnx"},
                      {"versions", std::move(versions)},
                      {"inputs", DescribeTensors(model_->signature().inputs)},
                      {"outputs", DescribeTensors(model_->signature().outputs)},
                      {"tables", std::move(tables)}});
  }

  template <typename Fn>
  ServerResponse Timed(LatencyHistogram* histogram, Fn fn) {
    const Clock::Duration began = options_.clock->Now();
    Result<ServerResponse> response = fn();
    histogram->Observe(std::chrono::duration<double>(options_.clock->Now() - began).count());
    if (response.ok()) return *std::move(response);
    histogram->CountError();
    return Failed(response.status());
  }

  ServerResponse Infer(const ServerRequest& request) {
    return Timed(&predict_, [&]() -> Result<ServerResponse> {
      ASSIGN_OR_RETURN(const InferRequest asked, DecodeInferRequest(request.body));
      RETURN_IF_ERROR(CheckInputs(asked, model_->signature().inputs));
      ASSIGN_OR_RETURN(const auto view, Take(request));
      ASSIGN_OR_RETURN(const std::vector<OwnedTensor> outputs, view->Predict(asked.Feeds()));
      ServerResponse response;
      ASSIGN_OR_RETURN(
          response.body,
          EncodeInferResponse(options_.name, VersionText(view->version()), asked, outputs));
      return response;
    });
  }

  /// int64 ids, little-endian → float32 rows, likewise. No JSON in between.
  ServerResponse Lookup(const ServerRequest& request) {
    return Timed(&lookup_, [&]() -> Result<ServerResponse> {
      if (request.body.size() % sizeof(std::int64_t) != 0) {
        return InvalidArgumentError("the body: " + std::to_string(request.body.size()) +
                                    " bytes are no list of 64-bit ids");
      }
      const std::string& name = request.params.find("table")->second;
      std::uint32_t dim = 0;
      for (const Model::TableInfo& table : model_->tables()) {
        if (table.name == name) dim = table.dim;
      }
      const std::uint64_t row_bytes = dim * sizeof(float);
      const std::uint64_t count = request.body.size() / sizeof(std::int64_t);
      if (row_bytes > 0 && count > options_.max_answer_bytes / row_bytes) {
        return ResourceExhaustedError("the body: " + std::to_string(count) + " ids; at most " +
                                      std::to_string(options_.max_answer_bytes / row_bytes) +
                                      " rows of table " + QuoteForMessage(name) +
                                      " are given at once");
      }
      std::vector<std::int64_t> ids(count);
      if (!ids.empty()) std::memcpy(ids.data(), request.body.data(), request.body.size());
      ServerResponse response;
      response.content_type = "application/octet-stream";
      response.body.resize(ids.size() * dim * sizeof(float));
      ASSIGN_OR_RETURN(const auto view, model_->Take());
      std::vector<float> rows(ids.size() * dim);
      RETURN_IF_ERROR(view->Lookup(name, ids, rows));
      if (!rows.empty()) std::memcpy(response.body.data(), rows.data(), response.body.size());
      const VersionInfo version = view->version();
      response.headers = {{"X-Cairn-Version", VersionText(version)}, {"X-Cairn-Id", version.id}};
      return response;
    });
  }

  ServerResponse Shown() {
    const auto version = model_->Version();
    if (!version.ok()) return Failed(version.status());
    return Json(200, {{"step", version->step}, {"id", version->id}, {"held", model_->held()}});
  }

  Result<Value> Body(const ServerRequest& request) {
    if (request.body.empty()) return Value(Value::Object{});
    auto body = DecodeJson(request.body);
    if (!body.ok() || !body->is_object()) return InvalidArgumentError("the body is no JSON object");
    return body;
  }

  ServerResponse Rollback(const ServerRequest& request) {
    const auto body = Body(request);
    if (!body.ok()) return Failed(body.status());
    const Value* n = body->Find("n");
    const std::int64_t count = n == nullptr ? 1 : n->AsInt(-1);
    if (count < 1) return Failed(InvalidArgumentError("n: is no positive number"));
    const Status done = model_->Rollback(static_cast<std::size_t>(count));
    return done.ok() ? Shown() : Failed(done);
  }

  ServerResponse Pin(const ServerRequest& request) {
    const auto body = Body(request);
    if (!body.ok()) return Failed(body.status());
    const Value* id = body->Find("id");
    const Value* step = body->Find("step");
    Status done = InvalidArgumentError("id or step: one of them says which version");
    if (id != nullptr && id->is_string() && step == nullptr) done = model_->Pin(*id->if_string());
    if (step != nullptr && step->is_int() && id == nullptr) done = model_->PinStep(step->AsInt());
    return done.ok() ? Shown() : Failed(done);
  }

  ServerResponse Resume(const ServerRequest&) {
    model_->Resume();
    return Shown();
  }

  /// A trainer has committed something: the follower looks now, not when its period is over.
  ServerResponse Notify(const ServerRequest&) {
    model_->Notify();
    return Json(202, {{"notified", true}});
  }

  const ServingServerOptions options_;
  const std::string token_hash_;  // "": nobody is asked for one
  Model* const model_;
  LatencyHistogram predict_;
  LatencyHistogram lookup_;
  std::unique_ptr<HttpServer> server_;  // the last: its threads use all of the above
};

Result<std::unique_ptr<ServingServer>> ServingServer::Start(ServingServerOptions options,
                                                            Model* model) {
  if (options.name.empty() || options.name.find('/') != options.name.npos) {
    return InvalidArgumentError("the model's name: not empty, and without '/'");
  }
  auto impl = std::make_unique<Impl>(std::move(options), model);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ServingServer>(new ServingServer(std::move(impl)));
}

ServingServer::ServingServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServingServer::~ServingServer() = default;
const std::string& ServingServer::url() const { return impl_->url(); }
void ServingServer::CountLookup(double seconds, bool ok) { impl_->CountLookup(seconds, ok); }

}  // namespace cairn::serving

#include "trial/trial_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

using RunKey = TrialEngine::RunKey;
using Call = std::function<void(const RunKey& key, const ServerRequest& request, Value body,
                                TrialEngine::Done<Value> done)>;

constexpr std::string_view kBase = "/trial/v1/trials/{trial}/runs/{run}";
constexpr std::uint64_t kMaxLogBytes = 4u << 20;
constexpr double kLongestPoll = 300;
constexpr double kUsualPoll = 60;

/// Answers with the value, or with what the status is on the wire.
TrialEngine::Done<Value> Into(HttpReply reply, int status = 200) {
  return [reply = std::move(reply), status](const Result<Value>& answer) {
    reply.Send(answer.ok() ? ServerResponse{.status = status, .body = EncodeJson(*answer)}
                           : ResponseOf(answer.status()));
  };
}

Result<Value> BodyOf(const ServerRequest& request) {
  if (request.body.empty()) return Value(Value::Object{});
  auto body = DecodeJson(request.body);
  if (!body.ok() || !body->is_object()) {
    return InvalidArgumentError(body.ok() ? "the body is not a JSON object"
                                          : fmt::format("the body: {}", body.status().message()));
  }
  return body;
}

/// What becomes of NULs in texts. Databases hold none, and an event that cannot be written would
/// hold up all that come after it, those of other trials too.
enum class Nuls : std::uint8_t {
  kKeep,
  kRefuse,
  kReplace,  // in words for people: what a process said last must not get lost by it
};

Nuls NulsIn(std::string_view path) {
  const bool words = path == "/status" || path == "/exit" || path == "/logs";
  return words ? Nuls::kReplace : Nuls::kRefuse;
}

Value ReplaceNuls(const Value& value) {
  if (const std::string* text = value.if_string()) {
    std::string without;
    for (const char letter : *text) {
      if (letter == '\0') {
        without += "\uFFFD";
      } else {
        without += letter;
      }
    }
    return Value(std::move(without));
  }
  if (const Value::Object* object = value.if_object()) {
    Value::Object replaced;
    for (const auto& [key, item] : *object) replaced[key] = ReplaceNuls(item);
    return Value(std::move(replaced));
  }
  if (const Value::List* list = value.if_list()) {
    Value::List replaced;
    for (const Value& item : *list) replaced.push_back(ReplaceNuls(item));
    return Value(std::move(replaced));
  }
  return value;
}

/// JSON has a NUL as an escape only: most bodies need no second look.
Result<Value> BodyWithout(const ServerRequest& request, Nuls nuls) {
  ASSIGN_OR_RETURN(Value body, BodyOf(request));
  if (nuls == Nuls::kKeep || request.body.find("\\u0000") == std::string::npos) return body;
  if (nuls == Nuls::kReplace) return ReplaceNuls(body);
  RETURN_IF_ERROR(RefuseNuls(body, ""));
  return body;
}

/// A number of the query that is not negative; `fallback` when it is not there.
template <typename Number>
Result<Number> NumberIn(const ServerRequest& request, std::string_view name, Number fallback) {
  const std::string_view text = request.Query(name);
  if (text.empty()) return fallback;
  Number number = fallback;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // Also what is no number at all.
  if (error == std::errc() && end == text.data() + text.size() && number >= Number{0}) {
    return number;
  }
  return InvalidArgumentError(
      fmt::format("{}: \"{}\" is not a number from 0 up", name, text.substr(0, 64)));
}

/// Who the path speaks of. NotFound for a run that is no number.
Result<RunKey> KeyOf(const ServerRequest& request) {
  const std::string& digits = request.params.find("run")->second;
  RunKey key{.trial = request.params.find("trial")->second};
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, key.run);
  if (parsed.ec != std::errc() || parsed.ptr != end) return NotFoundError("a run is a number");
  return key;
}

/// A check on the headers that refuses with what the status is on the wire.
HttpCheck Check(std::function<Status(const ServerRequest&)> check) {
  return [check = std::move(check)](const ServerRequest& request) {
    const Status known = check(request);
    return known.ok() ? std::nullopt : std::optional(ResponseOf(known));
  };
}

HttpRoute RunRoute(TrialEngine* engine, std::string_view method, std::string_view path, Call call,
                   int status = 200, std::uint64_t max_body_bytes = 1u << 20,
                   Nuls nuls = Nuls::kRefuse) {
  return {
      .method = std::string(method),
      .pattern = fmt::format("{}{}", kBase, path),
      .handler =
          [call = std::move(call), status, nuls](const ServerRequest& request, HttpReply reply) {
            const Result<RunKey> key = KeyOf(request);
            if (!key.ok()) return reply.Send(ResponseOf(key.status()));
            Result<Value> body = BodyWithout(request, nuls);
            if (!body.ok()) return reply.Send(ResponseOf(body.status()));
            call(*key, request, *std::move(body), Into(std::move(reply), status));
          },
      .max_body_bytes = max_body_bytes,
      .authorize = Check([engine](const ServerRequest& request) -> Status {
        ASSIGN_OR_RETURN(const RunKey key, KeyOf(request));
        return engine->Authenticate(key, request.BearerToken());
      })};
}

std::string Param(const ServerRequest& request, std::string_view name) {
  return request.params.find(name)->second;
}

}  // namespace

HttpRoute RunRoute(TrialEngine* engine, std::string_view path, RunCall call,
                   std::uint64_t max_body_bytes) {
  return RunRoute(
      engine, "POST", path,
      [call = std::move(call)](const RunKey& key, const ServerRequest&, Value body,
                               TrialEngine::Done<Value> done) {
        call(key, std::move(body), std::move(done));
      },
      200, max_body_bytes, Nuls::kKeep);
}

ServerResponse ResponseOf(const Status& status) {
  const auto error = [&](int http, std::string_view code) {
    return ErrorResponse(http, code, status.message());
  };
  switch (status.code()) {
    case Code::kInvalidArgument:
      return error(400, "invalid_argument");
    case Code::kPermissionDenied:
      return error(401, "unauthenticated");
    case Code::kNotFound:
      return error(404, "not_found");
    case Code::kAborted:
      return error(409, "run_replaced");
    case Code::kAlreadyExists:
      return error(409, "conflict");
    case Code::kFailedPrecondition:
      return status.message().starts_with("out_of_order") ? error(409, "out_of_order")
                                                          : error(412, "failed_precondition");
    case Code::kResourceExhausted:
      return error(507, "no_space");
    case Code::kUnavailable:
    case Code::kCancelled:
    case Code::kDeadlineExceeded: {
      ServerResponse response = error(503, "unavailable");
      response.headers.push_back({"Retry-After", "1"});
      return response;
    }
    default:
      return error(500, "internal");
  }
}

std::vector<HttpRoute> TrialRoutes(TrialEngine* engine) {
  std::vector<HttpRoute> routes;
  const auto add = [&](std::string_view method, std::string_view path, Call call, int status = 200,
                       std::uint64_t max_body_bytes = 1u << 20) {
    routes.push_back(
        RunRoute(engine, method, path, std::move(call), status, max_body_bytes, NulsIn(path)));
  };
  // A route that passes its body on to a function of the engine.
  const auto pass = [&](std::string_view path, auto function) {
    add("POST", path,
        [engine, function](const RunKey& key, const ServerRequest&, Value body,
                           TrialEngine::Done<Value> done) {
          (engine->*function)(key, std::move(body), std::move(done));
        });
  };
  using Done = TrialEngine::Done<Value>;
  add("GET", "", [engine](const RunKey& key, const ServerRequest&, const Value&, Done done) {
    engine->Describe(key, std::move(done));
  });
  pass("/ready", &TrialEngine::Ready);
  pass("/reports", &TrialEngine::Report);
  pass("/progress", &TrialEngine::Progress);
  pass("/status", &TrialEngine::SetStatus);
  pass("/exit", &TrialEngine::Exit);
  add(
      "POST", "/checkpoints",
      [engine](const RunKey& key, const ServerRequest&, const Value& body, Done done) {
        engine->StartCheckpoint(key, body, std::move(done));
      },
      201);
  add("POST", "/checkpoints/{checkpoint}/complete",
      [engine](const RunKey& key, const ServerRequest& request, const Value& body, Done done) {
        engine->CompleteCheckpoint(key, Param(request, "checkpoint"), body, std::move(done));
      });
  add("POST", "/checkpoints/{checkpoint}/abandon",
      [engine](const RunKey& key, const ServerRequest& request, const Value& body, Done done) {
        engine->AbandonCheckpoint(key, Param(request, "checkpoint"), body, std::move(done));
      });
  add("POST", "/checkpoints/{checkpoint}/deleted",
      [engine](const RunKey& key, const ServerRequest& request, const Value&, Done done) {
        engine->CheckpointDeleted(key, Param(request, "checkpoint"), std::move(done));
      });
  add("GET", "/checkpoints",
      [engine](const RunKey& key, const ServerRequest&, const Value&, Done done) {
        engine->ListCheckpoints(key, std::move(done));
      });
  add("GET", "/checkpoints/{checkpoint}",
      [engine](const RunKey& key, const ServerRequest& request, const Value&, Done done) {
        engine->GetCheckpoint(key, Param(request, "checkpoint"), std::move(done));
      });
  add("GET", "/preemption",
      [engine](const RunKey& key, const ServerRequest& request, const Value&, Done done) {
        const Result<double> timeout = NumberIn(request, "timeout", kUsualPoll);
        if (!timeout.ok()) return done(timeout.status());
        // Left out: 0, which no version is.
        const Result<std::uint64_t> seen = NumberIn(request, "seen", std::uint64_t{0});
        if (!seen.ok()) return done(seen.status());
        const double seconds = std::min(*timeout, kLongestPoll);
        engine->WaitPreemption(key, *seen,
                               std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)),
                               std::move(done));
      });
  add("POST", "/preemption/ack",
      [engine](const RunKey& key, const ServerRequest&, const Value&, Done done) {
        engine->AcknowledgePreemption(key, std::move(done));
      });
  add("POST", "/heartbeat",
      [engine](const RunKey& key, const ServerRequest&, const Value&, Done done) {
        engine->Heartbeat(key, std::move(done));
      });
  add(
      "POST", "/logs",
      [engine](const RunKey& key, const ServerRequest&, const Value& body, Done done) {
        engine->Logs(key, body, std::move(done));
      },
      200, kMaxLogBytes);
  routes.push_back({.method = "POST",
                    .pattern = "/trial/v1/join",
                    .handler =
                        [engine](const ServerRequest& request, HttpReply reply) {
                          const Result<Value> body = BodyWithout(request, Nuls::kRefuse);
                          if (!body.ok()) return reply.Send(ResponseOf(body.status()));
                          engine->Join(request.BearerToken(), *body, Into(std::move(reply)));
                        },
                    .authorize = Check([engine](const ServerRequest& request) {
                      return engine->AuthenticateJoin(request.BearerToken());
                    })});
  routes.push_back(
      {.method = "GET",
       .pattern = "/trial/v1/healthz",
       .handler = [](const ServerRequest&, HttpReply reply) { reply.Send({.body = "{}"}); }});
  return routes;
}

Result<std::unique_ptr<TrialService>> TrialService::Start(TrialServiceOptions options) {
  if (options.engine == nullptr) return InvalidArgumentError("trial service: no engine");
  ASSIGN_OR_RETURN(auto server,
                   HttpServer::Start(std::move(options.http), TrialRoutes(options.engine)));
  options.engine->SetUrl(server->url());
  return std::unique_ptr<TrialService>(new TrialService(std::move(server)));
}

}  // namespace cairn

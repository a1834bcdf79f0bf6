// How a request becomes an answer: who it comes from, whether it may, on which thread.
#include "master/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "master/web_files.h"
#include "net/http_routes.h"
#include "trial/trial_service.h"
#include "trial/trial_state.h"

namespace cairn::master {
namespace {

constexpr std::string_view kCookie = "cairn_session";

std::string_view CookieOf(const ServerRequest& request) {
  std::string_view cookies = request.Header("cookie");
  while (!cookies.empty()) {
    const std::size_t end = cookies.find(';');
    std::string_view pair = cookies.substr(0, end);
    cookies = end == std::string_view::npos ? std::string_view() : cookies.substr(end + 1);
    while (pair.starts_with(' ')) pair.remove_prefix(1);
    if (pair.starts_with(kCookie) && pair.substr(kCookie.size()).starts_with('=')) {
      return pair.substr(kCookie.size() + 1);
    }
  }
  return "";
}

ServerResponse Forbidden(std::string_view message) {
  return ErrorResponse(403, "forbidden", message);
}

ServerResponse TooMany(std::string_view message) {
  ServerResponse response = ErrorResponse(429, "too_many_requests", message);
  response.headers.push_back({"Retry-After", "1"});
  return response;
}

/// Whoever asks without saying who it is, for the limits: by address, so that nobody can use up
/// what others may ask. No user's name has a space.
std::string Stranger(std::string_view peer) { return fmt::format("stranger {}", NetworkOf(peer)); }

/// The answer to a request that may not, or nothing and who it is.
std::optional<ServerResponse> Judge(const ApiParts& parts, const ApiRoute& route, RateLimit* limit,
                                    const ServerRequest& request, Principal* who) {
  if (route.access == Access::kRun) {
    // Only the newest run of a trial can say anything; the handler looks at its number.
    const std::string& trial = request.params.find("trial")->second;
    const auto view = parts.engine->Summary(trial);
    if (!view.ok()) return ApiError(view.status());
    const Status known = parts.engine->Authenticate({.trial = trial, .run = view->record.core.run},
                                                    request.BearerToken());
    return known.ok() ? std::nullopt : std::optional(ApiError(known));
  }
  if (route.access == Access::kNone) {
    if (!limit->Admit(Stranger(request.peer))) return TooMany("too many requests");
    return std::nullopt;
  }
  std::string_view token = request.BearerToken();
  const bool cookie = token.empty();
  if (cookie) token = CookieOf(request);
  auto found = parts.accounts->Authenticate(token);
  if (!found.ok()) return ApiError(found.status());
  // Other sites can make a browser send our cookie, but not this header.
  if (cookie && request.method != "GET" && request.Header("x-cairn-request").empty()) {
    return Forbidden("a request with the cookie of a login needs the header X-Cairn-Request");
  }
  const auto least = static_cast<int>(route.access) - static_cast<int>(Access::kViewer);
  if (static_cast<int>(found->role) < least) {
    return Forbidden(fmt::format("{} is {}: this needs {}", found->name, RoleName(found->role),
                                 RoleName(static_cast<Role>(least))));
  }
  if (!limit->Admit(found->name)) return TooMany("too many requests of this user");
  *who = *std::move(found);
  return std::nullopt;
}

Status ReadBody(const ServerRequest& request, const ApiRoute& route, ApiCall* call) {
  if (route.raw) {
    call->raw = request.body;
    return Status::Ok();
  }
  if (request.body.empty()) return Status::Ok();
  auto body = DecodeJson(request.body);
  if (!body.ok()) return InvalidArgumentError(fmt::format("the body: {}", body.status().message()));
  if (!body->is_object()) return InvalidArgumentError("the body is not a JSON object");
  RETURN_IF_ERROR(RefuseNuls(*body, ""));
  call->body = *std::move(body);
  return Status::Ok();
}

void Carry(const ApiRoute& route, const ApiCall& call, const HttpReply& reply) {
  try {
    if (route.serve) {
      const Status status = route.serve(call, reply);
      if (!status.ok()) reply.Send(ApiError(status));
      return;
    }
    const Result<ApiAnswer> answer = route.answer(call);
    reply.Send(answer.ok() ? ServerResponse{.status = answer->status,
                                            .body = EncodeJson(answer->body),
                                            .headers = {{"Cache-Control", "no-store"}}}
                           : ApiError(answer.status()));
  } catch (const std::exception& error) {
    LogError(fmt::format("{} {}: {}", call.method, call.path, error.what()));
    reply.Send(ErrorResponse(500, "internal", "an internal error; the master's log has it"));
  }
}

HttpRoute Served(const ApiParts& parts, ApiRoute route, RateLimit* limit) {
  const auto shared = std::make_shared<const ApiRoute>(std::move(route));  // shared: two functions
  HttpRoute out{.method = shared->method,
                .pattern = shared->pattern,
                .handler = nullptr,
                .max_body_bytes = shared->max_body_bytes,
                .authorize = nullptr};
  out.authorize = [parts, shared, limit](const ServerRequest& request) {
    Principal who;
    return Judge(parts, *shared, limit, request, &who);
  };
  out.handler = [parts, shared](const ServerRequest& request, const HttpReply& reply) {
    ApiCall call{.method = request.method,
                 .path = request.path,
                 .params = request.params,
                 .query = request.query,
                 .bearer = std::string(request.BearerToken()),
                 .last_event_id = std::string(request.Header("last-event-id"))};
    if (shared->access != Access::kNone && shared->access != Access::kRun) {
      const std::string_view token =
          call.bearer.empty() ? CookieOf(request) : std::string_view(call.bearer);
      auto who = parts.accounts->Authenticate(token);
      if (!who.ok()) return reply.Send(ApiError(who.status()));
      call.who = *std::move(who);
    }
    const Status read = ReadBody(request, *shared, &call);
    if (!read.ok()) return reply.Send(ApiError(read));
    const bool taken = parts.threads->Post(
        [shared, call = std::move(call), reply] { Carry(*shared, call, reply); });
    if (!taken) reply.Send(ApiError(UnavailableError("too much to do: try again")));
  };
  return out;
}

}  // namespace

bool HasSlotsHere(const LaunchInfo& launch) {
  return launch.state == LaunchState::kRunning && launch.launcher != kSlurmLauncher &&
         launch.launcher != kRayLauncher;
}

ServerResponse ApiError(const Status& status) { return ResponseOf(status); }

ApiRoute& RoutesUnder::operator()(std::string method, std::string_view path, Access access,
                                  ApiRoute::Answer answer) const {
  return out_->emplace_back(ApiRoute{.method = std::move(method),
                                     .pattern = base_ + std::string(path),
                                     .access = access,
                                     .answer = std::move(answer)});
}

ApiRoute& RoutesUnder::operator()(std::string method, std::string_view path, Access access,
                                  ApiRoute::Serve serve) const {
  return out_->emplace_back(ApiRoute{.method = std::move(method),
                                     .pattern = base_ + std::string(path),
                                     .access = access,
                                     .serve = std::move(serve)});
}

std::string_view ApiCall::Query(std::string_view name) const {
  const auto found = query.find(name);
  return found == query.end() ? std::string_view() : std::string_view(found->second);
}

void QueryReader::Fail(std::string_view name, std::string_view why) {
  if (status_.ok()) status_ = InvalidArgumentError(fmt::format("{} {}", name, why));
}

std::optional<std::int64_t> QueryReader::Int(std::string_view name, std::int64_t least,
                                             std::int64_t most) {
  if (!call_.query.contains(name)) return std::nullopt;
  const std::string_view text = call_.Query(name);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    Fail(name, fmt::format("must be a number from {} to {}", least, most));
    return std::nullopt;
  }
  return number;
}

std::optional<double> QueryReader::Double(std::string_view name) {
  if (!call_.query.contains(name)) return std::nullopt;
  const std::string_view text = call_.Query(name);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(std::abs(number) < 9e9)) {
    Fail(name, "must be a number of seconds");
    return std::nullopt;
  }
  return number;
}

bool QueryReader::Bool(std::string_view name, bool fallback) {
  if (!call_.query.contains(name)) return fallback;
  const std::string_view text = call_.Query(name);
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  Fail(name, "must be true or false");
  return fallback;
}

std::string QueryReader::Word(std::string_view name, std::vector<std::string_view> words,
                              std::string_view fallback) {
  if (!call_.query.contains(name)) return std::string(fallback);
  const std::string_view text = call_.Query(name);
  if (std::ranges::find(words, text) == words.end()) {
    Fail(name, fmt::format("must be one of {}", fmt::join(words, ", ")));
  }
  return std::string(text);
}

std::string QueryReader::Text(std::string_view name, std::size_t most) {
  const std::string_view text = call_.Query(name);
  if (text.size() > most || !IsValidUtf8(text) || text.find('\0') != std::string_view::npos) {
    Fail(name, fmt::format("must be a text of at most {} bytes", most));
    return "";
  }
  return std::string(text);
}

std::vector<std::string> QueryReader::List(std::string_view name) {
  std::vector<std::string> out;
  std::string_view text = call_.Query(name);
  if (text.size() > 4096 || !IsValidUtf8(text)) {
    Fail(name, "must be words separated by commas");
    return out;
  }
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    if (comma != 0) out.emplace_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return out;
}

std::vector<std::string> QueryReader::Words(std::string_view name,
                                            std::span<const std::string_view> words) {
  std::vector<std::string> out = List(name);
  for (std::string& word : out) {
    for (char& c : word) {
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    }
    if (std::ranges::find(words, word) != words.end()) continue;
    const std::string_view near = Suggest(word, words);
    Fail(name,
         fmt::format("has {}, which is none of {}{}", QuoteForMessage(word), fmt::join(words, ", "),
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
    return {};
  }
  return out;
}

std::vector<std::string> QueryReader::TrialStates() {
  std::vector<std::string_view> names;
  for (int i = 0; i < kTrialStates; ++i) {
    names.push_back(TrialStateName(static_cast<TrialState>(i)));
  }
  return Words("state", names);
}

void QueryReader::Page(std::uint64_t* offset, std::uint64_t* limit) {
  *limit = static_cast<std::uint64_t>(Int("limit", 1, kMaxPage).value_or(50));
  *offset = static_cast<std::uint64_t>(Int("offset", 0, std::int64_t{1} << 53).value_or(0));
}

Status CheckTrial(const ApiParts& parts, const std::string& trial) {
  const std::string experiment = parts.experiments->ExperimentOfTrial(trial);
  if (experiment.empty()) return NotFoundError(fmt::format("no trial {}", QuoteForMessage(trial)));
  const auto id = ExperimentId(experiment);
  if (!id.ok()) return Status::Ok();  // of processes that were started by hand
  const auto record = parts.catalog->experiments().Get(*id);
  if (record.status().Is(Code::kNotFound)) {
    return NotFoundError(fmt::format("no trial {}: its experiment was deleted", trial));
  }
  return record.status();
}

std::vector<ApiRoute> ApiRoutes(const ApiParts& parts) {
  std::vector<ApiRoute> routes;
  AddAccountRoutes(parts, &routes);
  AddExperimentRoutes(parts, &routes);
  AddTrialRoutes(parts, &routes);
  AddCheckpointRoutes(parts, &routes);
  AddClusterRoutes(parts, &routes);
  return routes;
}

std::vector<HttpRoute> ServedRoutes(const ApiParts& parts, std::vector<ApiRoute> routes,
                                    RateLimit* limit) {
  std::vector<HttpRoute> out;
  for (ApiRoute& route : routes) out.push_back(Served(parts, std::move(route), limit));
  return out;
}

}  // namespace cairn::master

#include "cli/master_client.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <span>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "cli/token_file.h"
#include "format/json.h"
#include "net/http_client.h"
#include "net/url.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kUsualMaster = "http://127.0.0.1:8080";
constexpr milliseconds kLook{50};
constexpr int kAttempts = 4;
constexpr std::uint64_t kLongestAnswer = 256u << 20;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// What both sides of a call under way share: it may end after the one who waits for it left.
struct Waiting {
  Mutex mu;
  CondVar done;
  std::optional<Result<HttpResponse>> outcome GUARDED_BY(mu);
  HttpRequest request;
};

std::string Path(std::string_view kind, std::string_view id, std::string_view rest) {
  return fmt::format("/api/v1/{}/{}{}", kind, PercentEncode(id), rest);
}

}  // namespace

Result<std::unique_ptr<MasterClient>> MasterClient::Open(const MasterOptions& options,
                                                         Console* console) {
  std::string url = options.url.empty() ? Variable("CAIRN_MASTER") : options.url;
  if (url.empty()) url = kUsualMaster;
  if (UrlScheme(url).empty()) url = "http://" + url;
  while (url.ends_with('/')) url.pop_back();
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return InvalidArgumentError(
        fmt::format("--master: a master is at http://HOST:PORT or https://HOST:PORT, not at \"{}\"",
                    ShownUrl(url)));
  }
  // It would be in every message, and in the address of the page that is told.
  if (ShownUrl(url) != url) {
    return InvalidArgumentError(fmt::format(
        "--master: name the master by its address alone, {}; `cairn login USER` logs in",
        ShownUrl(url)));
  }
  ASSIGN_OR_RETURN(std::string token, FindToken(url));
  HttpClientOptions http;
  http.connections = 2;
  http.ca_bundle = options.ca_file.empty() ? Variable("CAIRN_MASTER_CA") : options.ca_file;
  http.retry = {.max_attempts = kAttempts,
                .first_wait = milliseconds(200),
                .longest_wait = milliseconds(2000)};
  ASSIGN_OR_RETURN(auto client, HttpClient::Open(std::move(http)));
  return std::unique_ptr<MasterClient>(
      new MasterClient(std::move(url), std::move(token), console, std::move(client)));
}

MasterClient::MasterClient(std::string url, std::string token, Console* console,
                           std::unique_ptr<HttpClient> http)
    : url_(std::move(url)), token_(std::move(token)), console_(console), http_(std::move(http)) {}

MasterClient::~MasterClient() = default;

HttpRequest MasterClient::Request(const std::string& method, const std::string& path,
                                  const Query& query) const {
  HttpRequest request;
  request.method = method;
  request.url = url_ + path;
  if (!query.empty()) request.url += "?" + EncodeQuery(query);
  if (!token_.empty()) request.headers.push_back({"Authorization", "Bearer " + token_});
  request.max_body_bytes = kLongestAnswer;
  return request;
}

Result<HttpResponse> MasterClient::Ask(HttpRequest request, int attempts) {
  const auto waiting = std::make_shared<Waiting>();
  waiting->request = std::move(request);
  HttpCall call;
  call.prepare = [waiting](int) -> Result<HttpRequest> { return waiting->request; };
  call.done = [waiting](Result<HttpResponse> outcome) {
    MutexLock lock(&waiting->mu);
    waiting->outcome.emplace(std::move(outcome));
    waiting->done.NotifyAll();
  };
  call.max_attempts = attempts;
  const HttpClient::CallId id = http_->Start(std::move(call));
  bool cancelled = false;
  for (;;) {
    {
      MutexLock lock(&waiting->mu);
      if (!waiting->outcome.has_value()) waiting->done.WaitFor(&waiting->mu, kLook);
      if (waiting->outcome.has_value()) return *std::move(waiting->outcome);
    }
    if (Console::interrupted() && !cancelled) {
      cancelled = true;
      http_->Cancel(id);
    }
  }
}

Status MasterClient::NotReached(const Status& status) const {
  if (!status.Is(Code::kUnavailable) && !status.Is(Code::kDeadlineExceeded)) return status;
  return UnavailableError(
      fmt::format("no master answers at {} ({}): start one with `cairn master --data-dir DIR`, or "
                  "name another with --master URL or CAIRN_MASTER",
                  url_, status.message()));
}

Status MasterClient::ErrorOf(const HttpResponse& response) {
  const auto body = DecodeJson(response.body);
  std::string message = body.ok() ? TextIn(*body, "message") : "";
  if (message.empty()) {
    message = fmt::format("{} answered {} and does not seem to be a master", url_, response.status);
  }
  if (body.ok()) {
    // Mistakes in a config that the message does not name, one a line.
    if (const Value* details = body->Find("details"); details != nullptr) {
      for (const Value& problem : ListIn(*details, "problems")) {
        const std::string* text = problem.if_string();
        const std::string line = text != nullptr ? *text : TextIn(problem, "message");
        if (message.find(line) == std::string::npos) console_->Note(line);
      }
    }
  }
  switch (response.status) {
    case 400:
    case 405:
    case 422:
      return InvalidArgumentError(message);
    case 401:
      return PermissionDeniedError(
          fmt::format("{}: log in with `cairn login --master {}`, or put a token into CAIRN_TOKEN",
                      message, url_));
    case 403:
      return PermissionDeniedError(message);
    case 404:
      if (message.starts_with("no experiment ")) message += "; `cairn e ls` lists them";
      if (message.starts_with("no trial ")) message += "; `cairn t ls` lists them";
      return NotFoundError(message);
    case 409:
      return AlreadyExistsError(message);
    case 412:
      return FailedPreconditionError(message);
    case 413:
    case 507:
      return ResourceExhaustedError(message);
    case 429:
    case 502:
    case 503:
    case 504:
      return UnavailableError(message);
    default:
      return InternalError(message);
  }
}

Result<Value> MasterClient::Get(const std::string& path, const Query& query) {
  return Send("GET", path, {}, query);
}

Result<Value> MasterClient::Send(const std::string& method, const std::string& path,
                                 const Value& body, const Query& query) {
  HttpRequest request = Request(method, path, query);
  const std::string text = body.is_null() ? "" : EncodeJson(body);
  if (!body.is_null()) request.headers.push_back({"Content-Type", "application/json"});
  request.body = std::as_bytes(std::span(text));
  const auto answer = Ask(std::move(request), kAttempts);
  if (!answer.ok()) return NotReached(answer.status());
  if (!answer->Succeeded()) return ErrorOf(*answer);
  auto value = DecodeJson(answer->body);
  if (!value.ok()) {
    return UnavailableError(
        fmt::format("{} does not answer as a master does: {}", url_, value.status().message()));
  }
  return value;
}

Result<Value> MasterClient::Upload(const std::string& path, std::string_view bytes,
                                   std::string_view type) {
  HttpRequest request = Request("POST", path, {});
  request.headers.push_back({"Content-Type", std::string(type)});
  request.body = std::as_bytes(std::span(bytes));
  const auto answer = Ask(std::move(request), kAttempts);
  if (!answer.ok()) return NotReached(answer.status());
  if (!answer->Succeeded()) return ErrorOf(*answer);
  return DecodeJson(answer->body);
}

Result<std::string> MasterClient::GetText(const std::string& path, const Query& query) {
  auto answer = Ask(Request("GET", path, query), kAttempts);
  if (!answer.ok()) return NotReached(answer.status());
  if (!answer->Succeeded()) return ErrorOf(*answer);
  return std::move(answer->body);
}

Status MasterClient::GetPieces(const std::string& path, const Query& query,
                               std::function<bool(std::string_view)> piece) {
  HttpRequest request = Request("GET", path, query);
  request.sink = std::move(piece);
  const auto answer = Ask(std::move(request), 1);
  if (!answer.ok()) return NotReached(answer.status());
  if (!answer->Succeeded()) return ErrorOf(*answer);
  return Status::Ok();
}

Status MasterClient::Follow(const std::string& path, const Query& query,
                            const std::function<bool(const StreamEvent&)>& each) {
  bool enough = false;
  EventStreamParser parser([&](const StreamEvent& event) {
    enough = !each(event);
    return !enough;
  });
  const Status status =
      GetPieces(path, query, [&](std::string_view piece) { return parser.Feed(piece); });
  return enough ? Status::Ok() : status;
}

std::string ExperimentPath(std::string_view id, std::string_view rest) {
  return Path("experiments", id, rest);
}
std::string TrialPath(std::string_view id, std::string_view rest) {
  return Path("trials", id, rest);
}
std::string CheckpointPath(std::string_view id, std::string_view rest) {
  return Path("checkpoints", id, rest);
}

std::string TextIn(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

std::int64_t IntIn(const Value& object, std::string_view key, std::int64_t fallback) {
  const Value* value = object.Find(key);
  return value == nullptr ? fallback : value->AsInt(fallback);
}

double NumberIn(const Value& object, std::string_view key, double fallback) {
  const Value* value = object.Find(key);
  return value == nullptr ? fallback : value->AsDouble(fallback);
}

bool BoolIn(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const bool* truth = value == nullptr ? nullptr : value->if_bool();
  return truth != nullptr && *truth;
}

const Value::List& ListIn(const Value& object, std::string_view key) {
  static const Value::List kNone;
  const Value* value = object.Find(key);
  const Value::List* list = value == nullptr ? nullptr : value->if_list();
  return list == nullptr ? kNone : *list;
}

}  // namespace cairn::cli

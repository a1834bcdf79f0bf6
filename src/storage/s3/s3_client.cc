#include "storage/s3/s3_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "net/url.h"
#include "storage/s3/s3_errors.h"
#include "storage/s3/sigv4.h"

namespace cairn {
namespace {

// AWS refuses from 15 minutes on; a server that is stricter says so by name.
constexpr std::int64_t kTolerableSkewNanos = 600ll * 1'000'000'000;

// Servers over a file system join the parts of an upload by copying them, and some say nothing
// meanwhile. A peer that is gone is found by TCP long before.
constexpr std::uint64_t kSlowestWork = 32u << 20;  // bytes per second
constexpr std::chrono::seconds kLongestWork = std::chrono::hours(1);

}  // namespace

std::optional<std::int64_t> ParseHttpDate(std::string_view text) {
  std::tm utc{};
  const std::string copy(text.substr(0, 64));
  const char* rest = strptime(copy.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  if (rest == nullptr || *rest != '\0') return std::nullopt;
  const std::int64_t seconds = timegm(&utc);
  constexpr std::int64_t kLatest = 9'000'000'000;  // in nanoseconds it fits 64 bits
  if (seconds < 0 || seconds > kLatest) return std::nullopt;
  return seconds * 1'000'000'000;
}

Result<std::shared_ptr<S3Client>> S3Client::Open(S3Config config, S3Environment environment) {
  std::shared_ptr<S3Client> client(new S3Client(std::move(config), std::move(environment)));
  const S3Environment& env = client->environment_;
  ASSIGN_OR_RETURN(client->credentials_, S3CredentialSource::Open(env.variables, env.clock));
  HttpClientOptions options;
  options.connections = client->config_.connections;
  options.connect_timeout = env.connect_timeout;
  options.stall_timeout = env.stall_timeout;
  options.ca_bundle = client->config_.ca_bundle;
  options.send_bytes_per_second = client->config_.upload_bytes_per_second;
  options.retry = env.retry;
  options.clock = env.clock;
  options.random = env.random;
  ASSIGN_OR_RETURN(client->http_, HttpClient::Open(std::move(options)));
  return client;
}

Result<HttpRequest> S3Client::Prepare(Attempts* attempts) {
  const S3Request& request = attempts->request;
  ASSIGN_OR_RETURN(const S3Credentials credentials, credentials_->Get());
  attempts->access_key = credentials.access_key;
  const std::string date = SigningDate(SigningTime());
  SigningRequest signing;
  signing.method = request.method;
  signing.path = config_.base_path;
  if (!request.key.empty()) signing.path += "/" + PercentEncode(request.key, /*keep_slash=*/true);
  if (signing.path.empty()) signing.path = "/";
  signing.query = request.query;
  signing.headers = request.headers;
  signing.headers.push_back({"Host", config_.host});
  signing.headers.push_back({"x-amz-date", date});
  signing.headers.push_back({"x-amz-content-sha256", attempts->body_hash});
  if (!credentials.session_token.empty()) {
    signing.headers.push_back({"x-amz-security-token", credentials.session_token});
  }
  signing.payload_hash = attempts->body_hash;
  HttpRequest http;
  http.method = request.method;
  http.url = config_.scheme + "://" + config_.host + signing.path;
  if (!request.query.empty()) http.url += "?" + EncodeQuery(request.query);
  http.headers = signing.headers;
  http.headers.push_back(
      {"Authorization", SignV4(signing, credentials, date, config_.region, "s3")});
  http.body = request.body;
  http.into = request.into;
  http.max_body_bytes = request.max_body_bytes;
  http.patience = std::min(kLongestWork, std::chrono::seconds(request.work_bytes / kSlowestWork));
  return http;
}

bool S3Client::FollowServerClock(const HttpResponse& response) {
  const auto server = ParseHttpDate(response.Header("date"));
  if (!server) return false;
  const std::int64_t signed_with = SigningTime();
  const bool named = ErrorOfAnswer(response).code == "RequestTimeTooSkewed";
  if (!named && std::llabs(*server - signed_with) < kTolerableSkewNanos) return false;
  const std::int64_t before = skew_nanos_.exchange(*server - environment_.clock->WallNanos());
  if (before == 0) {
    LogWarning(fmt::format(
        "{}: this machine's clock is {} s {} the server's; the server's time is used for "
        "signatures. Set the clock.",
        config_.endpoint, std::llabs(*server - signed_with) / 1'000'000'000,
        *server > signed_with ? "behind" : "ahead of"));
  }
  return true;
}

bool S3Client::IsLate(const Attempts& attempts, const Result<HttpResponse>& outcome) {
  return attempts.request.late_errors && outcome.ok() && outcome->Succeeded() &&
         DecodeS3Error(outcome->body).ok();
}

bool S3Client::IsShort(const Attempts& attempts, const Result<HttpResponse>& outcome) {
  return outcome.ok() && outcome->Succeeded() &&
         outcome->into_bytes != attempts.request.into.size();
}

bool S3Client::Retry(Attempts* attempts, const Result<HttpResponse>& outcome) {
  if (IsTransient(outcome)) {
    attempts->uncertain = true;
    return true;
  }
  if (IsShort(*attempts, outcome)) return true;
  if (!outcome.ok() || (outcome->Succeeded() && !IsLate(*attempts, outcome))) return false;
  const S3Error error = ErrorOfAnswer(*outcome);
  if (outcome->status == 403 && !attempts->reset && FollowServerClock(*outcome)) {
    attempts->reset = true;
    return true;
  }
  const bool expired = error.code == "ExpiredToken" || error.code == "TokenRefreshRequired" ||
                       error.code == "InvalidToken";
  if (expired && !attempts->renewed) {
    attempts->renewed = true;
    credentials_->Invalidate(attempts->access_key);
    return true;
  }
  // Conflicts (409) are with another request at the same time, for all that is asked for here.
  if (outcome->status != 409 && !IsTransientS3Error(error)) return false;
  attempts->uncertain = true;
  return true;
}

HttpClient::CallId S3Client::Start(S3Request request, std::function<void(S3Outcome)> done) {
  auto attempts = std::make_shared<Attempts>();
  attempts->body_hash = request.sign_body ? Sha256Hex(request.body) : std::string(kUnsignedPayload);
  attempts->request = std::move(request);
  HttpCall call;
  call.max_attempts = attempts->request.max_attempts;
  call.prepare = [this, attempts](int) { return Prepare(attempts.get()); };
  call.retry = [this, attempts](int, const Result<HttpResponse>& outcome) {
    return Retry(attempts.get(), outcome);
  };
  call.done = [attempts, done = std::move(done)](Result<HttpResponse> response) {
    if (IsLate(*attempts, response)) response->status = 500;
    done({.response = std::move(response), .uncertain = attempts->uncertain});
  };
  return http_->Start(std::move(call));
}

S3Outcome S3Client::Fetch(S3Request request) {
  Mutex mu;
  CondVar ready;
  std::optional<S3Outcome> outcome;
  Start(std::move(request), [&](S3Outcome result) {
    MutexLock lock(&mu);
    outcome.emplace(std::move(result));
    ready.NotifyOne();
  });
  MutexLock lock(&mu);
  while (!outcome) ready.Wait(&mu);
  return *std::move(outcome);
}

Status S3Client::StatusOf(std::string_view what, const std::string& key,
                          const Result<HttpResponse>& response) const {
  if (!response.ok()) {
    return response.status().WithContext(
        fmt::format("{} \"s3://{}/{}\" at {}", what, config_.bucket, key, config_.endpoint));
  }
  if (response->Succeeded()) return Status::Ok();
  return StatusOfS3Error(config_, what, key, response->status, ErrorOfAnswer(*response));
}

Status S3Client::StatusOf(const S3Request& request, const Result<HttpResponse>& response) const {
  return StatusOf(request.what, request.key, response);
}

Result<HttpResponse> S3Client::Expect(S3Request request) {
  const std::string what = request.what;
  const std::string key = request.key;
  S3Outcome outcome = Fetch(std::move(request));
  RETURN_IF_ERROR(StatusOf(what, key, outcome.response));
  return std::move(outcome.response);
}

}  // namespace cairn

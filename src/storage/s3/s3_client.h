#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "net/http_client.h"
#include "storage/s3/s3_config.h"
#include "storage/s3/s3_credentials.h"

namespace cairn {

/// What a store on S3 stands on; tests replace each piece.
struct S3Environment {
  Variables variables = ProcessVariables();
  Clock* clock = Clock::System();
  std::function<double()> random;  // for the jitter of retries; empty: the system's
  RetryPolicy retry;
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::nanoseconds stall_timeout = std::chrono::seconds(60);
};

/// One request about a bucket's object, or about the bucket itself (key ""). What is borrowed must
/// live until the request is done.
struct S3Request {
  std::string what;  // for messages: "put", "read"
  std::string method = "GET";
  std::string key;
  std::vector<std::pair<std::string, std::string>> query;
  std::vector<HttpHeader> headers;
  std::span<const std::byte> body;  // borrowed
  /// Bulk data is not hashed for the signature: its checksum, which is in the headers, is signed.
  bool sign_body = true;
  std::span<std::byte> into;  // borrowed; the answer has exactly so many bytes
  std::uint64_t max_body_bytes = 64u << 20;
  int max_attempts = 0;  // instead of the policy's, when positive
  /// What the server has to read and write before it answers: it is given more time in silence.
  std::uint64_t work_bytes = 0;
  /// The server says 200 before it knows, to keep the connection: an <Error> in the body of a
  /// success is its answer (ends of uploads, and copies). The outcome then has status 500.
  bool late_errors = false;
};

struct S3Outcome {
  Result<HttpResponse> response = InternalError("no answer");
  /// An earlier attempt may have been carried out although its answer was lost: what this one found
  /// (a taken name, an upload that is gone) may be its doing.
  bool uncertain = false;
};

/// Signed requests to one bucket, tried again where that helps. Knows keys, not names; nothing of
/// what objects are for.
///
/// A server that finds our clock wrong is believed: its time is taken for signatures from then on,
/// and said so once. May be called from several threads.
class S3Client {
 public:
  static Result<std::shared_ptr<S3Client>> Open(S3Config config, S3Environment environment);

  const S3Config& config() const { return config_; }
  Clock* clock() const { return environment_.clock; }

  /// `done` is called once, on the client's thread: it must be quick and must not wait.
  HttpClient::CallId Start(S3Request request, std::function<void(S3Outcome)> done);
  void Cancel(HttpClient::CallId id) { http_->Cancel(id); }
  void CancelAll() { http_->CancelAll(); }
  S3Outcome Fetch(S3Request request);

  /// Fetches, and makes an answer that is no success a status.
  Result<HttpResponse> Expect(S3Request request);
  /// The status of an outcome that is no success; OK of one that is.
  Status StatusOf(const S3Request& request, const Result<HttpResponse>& response) const;
  Status StatusOf(std::string_view what, const std::string& key,
                  const Result<HttpResponse>& response) const;

 private:
  S3Client(S3Config config, S3Environment environment)
      : config_(std::move(config)), environment_(std::move(environment)) {}

  /// What the attempts of one call share. Shared: between the functions of the call.
  struct Attempts {
    S3Request request;
    std::string body_hash;
    std::string access_key;  // of the last attempt
    bool uncertain = false;
    bool renewed = false;  // the keys
    bool reset = false;    // the clock
  };

  Result<HttpRequest> Prepare(Attempts* attempts);
  bool Retry(Attempts* attempts, const Result<HttpResponse>& outcome);
  /// A success with fewer bytes than there is room for.
  static bool IsShort(const Attempts& attempts, const Result<HttpResponse>& outcome);
  /// A success whose body is an error.
  static bool IsLate(const Attempts& attempts, const Result<HttpResponse>& outcome);
  /// True when the server's clock is far from the one that was signed with, and is now followed.
  bool FollowServerClock(const HttpResponse& response);
  std::int64_t SigningTime() const { return environment_.clock->WallNanos() + skew_nanos_.load(); }

  const S3Config config_;
  const S3Environment environment_;
  std::unique_ptr<S3CredentialSource> credentials_;
  std::atomic<std::int64_t> skew_nanos_{0};  // what the server's clock is ahead of ours
  std::unique_ptr<HttpClient> http_;         // last: its thread uses the rest
};

/// Nanoseconds since 1970 of "Sun, 06 Nov 1994 08:49:37 GMT"; nullopt for other forms.
std::optional<std::int64_t> ParseHttpDate(std::string_view text);

}  // namespace cairn

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "base/clock.h"
#include "net/http.h"
#include "net/retry_policy.h"

namespace cairn {

struct HttpClientOptions {
  /// Requests under way at once, each on a connection of its own; further ones wait in order. More
  /// help against distant servers and cost a socket each.
  int connections = 16;
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(10);
  /// A request on which no byte moved for so long is given up (and tried again). Raise it for
  /// servers that think long before they answer.
  std::chrono::nanoseconds stall_timeout = std::chrono::seconds(60);
  /// One attempt is given up after so long, whatever moves: for servers that may keep one busy on
  /// purpose. 0: none.
  std::chrono::nanoseconds attempt_timeout{0};
  /// PEM file of the authorities that server certificates are checked against; "": the system's.
  std::string ca_bundle;
  /// Go through the proxies that the environment names (http_proxy, https_proxy, no_proxy), as
  /// libcurl does. False: never, for servers beside this process.
  bool proxies = true;
  /// Bound of all request bodies together, in bytes per second; 0: none. Kept on average over a few
  /// bodies.
  std::uint64_t send_bytes_per_second = 0;
  RetryPolicy retry;
  /// Waits between attempts, stalls and the rate are measured by it. Borrowed.
  Clock* clock = Clock::System();
  /// Draws from [0, 1); called on the client's thread. Empty: the system's randomness.
  std::function<double()> random;

  Status Validate() const;
};

/// A request with what happens around it. The functions are called on the client's own thread: they
/// must be quick, must not wait for the client, and must not throw.
struct HttpCall {
  /// Makes the request of the `attempt`-th try (from 1), for example with a fresh signature. An
  /// error ends the call.
  std::function<Result<HttpRequest>(int attempt)> prepare;
  /// Whether it is worth another attempt after this outcome; empty: IsTransient(outcome).
  std::function<bool(int attempt, const Result<HttpResponse>& outcome)> retry;
  /// Called once, with the last outcome. The borrowed memory is free then.
  std::function<void(Result<HttpResponse>)> done;
  /// Instead of the policy's, when positive. 1 for what must not be sent twice: a POST then has a
  /// connection of its own, because one that was kept and turns out to be closed is sent again.
  int max_attempts = 0;
};

/// Worth another attempt: the server was not reached, went silent, hung up, or said that it cannot
/// now (408, 429, 500, 502, 503, 504).
bool IsTransient(const Result<HttpResponse>& outcome);

/// HTTP/1.1 requests over a bounded set of kept connections, with retries. One thread of its own
/// moves all bytes.
///
/// Any HTTP answer is a response, whatever its status; errors are: Unavailable (not reached, or the
/// connection broke), DeadlineExceeded (stalled: the server may or may not have done it),
/// FailedPrecondition (its certificate was not accepted), ResourceExhausted (the body is longer
/// than allowed), InvalidArgument (no such URL), Cancelled. Redirections are not followed.
///
/// May be called from several threads, but not from the functions of an HttpCall, except Start and
/// Cancel. The destructor cancels what is under way; a copy of the object in a forked process has
/// no thread: there all calls fail and the destructor does nothing.
class HttpClient {
 public:
  using Options = HttpClientOptions;
  using CallId = std::uint64_t;

  static Result<std::unique_ptr<HttpClient>> Open(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  CallId Start(HttpCall call);
  /// Ends the call with Cancelled, soon, unless it is done. Unknown ids are ignored.
  void Cancel(CallId id);
  /// The same for all calls, and for those to come: for whoever ends and must not wait for a server
  /// that is silent.
  void CancelAll();

  /// Waits for the outcome of one call (whose `done` is not used).
  Result<HttpResponse> Fetch(HttpCall call);
  /// The same for a request that may be repeated as it stands.
  Result<HttpResponse> Fetch(HttpRequest request);

 private:
  class Loop;
  explicit HttpClient(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn

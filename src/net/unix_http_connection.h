#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "net/http.h"

namespace cairn {

/// A kept connection to an HTTP server on a Unix socket of this machine, for a caller that waits
/// for each answer: the calling thread itself sends and receives. An HttpClient has a thread of its
/// own and moves many requests at once; for one at a time the hand-overs cost more than the
/// request.
///
/// Bodies of answers must have a Content-Length, as HttpServer gives them. May be called from
/// several threads, one after the other. A copy in a forked process refuses all calls: the
/// connection is the parent's.
class UnixHttpConnection {
 public:
  struct Options {
    std::string path;
    /// No byte moved for so long: DeadlineExceeded; the server may or may not have done it.
    std::chrono::nanoseconds stall_timeout = std::chrono::seconds(90);
    /// Asked every 50 ms while it waits; true ends the call with Cancelled. May be empty.
    std::function<bool()> cancelled;
    std::size_t max_body_bytes = 64u << 20;
    Clock* clock = Clock::System();  // looked at as often; borrowed
  };
  explicit UnixHttpConnection(Options options);
  ~UnixHttpConnection();
  UnixHttpConnection(const UnixHttpConnection&) = delete;
  UnixHttpConnection& operator=(const UnixHttpConnection&) = delete;

  /// One request, whose url is the target below the server ("/a?b"). Connects first where there is
  /// no connection; nothing is tried twice. Errors as of HttpClient; whatever the error, the next
  /// call begins with a new connection.
  Result<HttpResponse> Fetch(const HttpRequest& request) EXCLUDES(mu_);

 private:
  Status Connect() REQUIRES(mu_);
  void Disconnect() REQUIRES(mu_);
  Status Send(std::string_view bytes) REQUIRES(mu_);
  /// At least one byte more in `input_`.
  Status Receive() REQUIRES(mu_);
  Status WaitFor(short events) REQUIRES(mu_);
  Result<HttpResponse> Exchange(const HttpRequest& request) REQUIRES(mu_);

  const Options options_;
  Mutex mu_;
  int fd_ GUARDED_BY(mu_) = -1;
  int owner_ GUARDED_BY(mu_) = 0;  // the process that connected
  std::string input_ GUARDED_BY(mu_);
};

}  // namespace cairn

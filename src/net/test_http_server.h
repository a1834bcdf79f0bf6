#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "net/http.h"

namespace cairn {

/// What a client sent.
struct TestHttpRequest {
  std::string method;
  std::string target;  // path and query, as sent
  std::vector<HttpHeader> headers;
  std::string head;  // all of it, as sent, with the empty line
  std::string body;

  std::string_view Header(std::string_view lower_case_name) const;
};

/// Bytes to answer with. `bytes` is the whole answer, head and body; Answer() makes a usual one.
struct TestHttpReply {
  std::string bytes;
  bool close = false;  // hang up after the bytes (none: without any answer)
};

TestHttpReply Answer(int status, std::string_view body = "", std::vector<HttpHeader> headers = {});

/// An HTTP server on a free port of the loopback interface, for tests of clients: the handler sees
/// each request and says what goes back over the wire, also nonsense or nothing. It may block to
/// imitate a slow server. One thread per connection calls the handler. The destructor hangs up on
/// all clients and waits for the threads, so a blocked handler must be let go first.
class TestHttpServer {
 public:
  using Handler = std::function<TestHttpReply(const TestHttpRequest&)>;

  explicit TestHttpServer(Handler handler);
  ~TestHttpServer();
  TestHttpServer(const TestHttpServer&) = delete;
  TestHttpServer& operator=(const TestHttpServer&) = delete;

  std::uint16_t port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// Connections accepted so far, and the most that were open at one time.
  int connections() const { return connections_.load(); }
  int most_open() const { return most_open_.load(); }

 private:
  void Accept();
  void Serve(int socket);

  const Handler handler_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  std::atomic<int> open_{0};
  std::atomic<int> most_open_{0};
  Mutex mu_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<int> sockets_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_ GUARDED_BY(mu_);
  std::jthread acceptor_;
};

/// Sends the request on to a server on the loopback interface and gives its answer as it came; an
/// answer that closes when the server cannot be reached.
TestHttpReply ForwardTo(std::uint16_t port, const TestHttpRequest& request);

}  // namespace cairn

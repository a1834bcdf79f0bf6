#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "net/http.h"
#include "net/tls_files.h"

namespace cairn {

/// A request as a handler sees it. Lives until the handler returned; copy what is needed longer.
struct ServerRequest {
  std::string method;
  std::string path;                                        // decoded, without the query
  std::map<std::string, std::string, std::less<>> params;  // the {names} of the route's pattern
  std::map<std::string, std::string, std::less<>> query;   // decoded; the last of equal names
  std::vector<HttpHeader> headers;                         // names in lower case
  /// The client's address without its port; "" when it came through a socket of this machine. Known
  /// to authorize, where it counts; handlers may find it empty.
  std::string peer;
  std::string_view body;

  /// The first header of that (lower-case) name, or "".
  std::string_view Header(std::string_view name) const;
  /// What follows "Bearer " (in any case) in the Authorization header, or "". The one place where
  /// servers read a token from a request.
  std::string_view BearerToken() const;
  std::string_view Query(std::string_view name) const;
};

struct ServerResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
};

/// A body that goes out piece by piece (server-sent events). Copies share it; may be used from any
/// thread.
class HttpStream {
 public:
  class State;
  explicit HttpStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// False when the client or the server is gone: nothing was sent, and nothing will be. Also when
  /// the client takes too little: more than 4 MiB wait for it. Then it is hung up on.
  bool Write(std::string bytes);
  void End();
  /// Hangs up without an end, so that the client sees that something is missing.
  void Abort();
  bool open() const;
  /// Bytes that the client has not taken yet: whoever sends much waits for it to shrink.
  std::uint64_t backlog() const;

 private:
  std::shared_ptr<State> state_;  // shared: whoever writes and the server outlive each other
};

/// The answer to one request, to be given once: at once, or later from any thread (long poll).
/// Copies share it. When the last of them goes without an answer the client gets a 500.
class HttpReply {
 public:
  class State;
  explicit HttpReply(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Only the first counts. Nothing happens when client or server are gone.
  void Send(ServerResponse response) const;
  /// Starts a body of unknown length (chunked).
  HttpStream Stream(int status, std::string content_type,
                    std::vector<HttpHeader> headers = {}) const;

 private:
  std::shared_ptr<State> state_;  // shared: handed on to whoever will know the answer
};

/// Called on a thread of the server: must be quick, must not wait for other requests. A throw is
/// answered with 500.
using HttpHandler = std::function<void(const ServerRequest& request, HttpReply reply)>;

/// Nothing, or the answer to a request that goes no further.
using HttpCheck = std::function<std::optional<ServerResponse>(const ServerRequest& request)>;

struct HttpRoute {
  std::string method;
  /// "/trials/{trial}/runs/{run}": segments, or {names} that match one segment. A last segment
  /// "{name...}" matches all the rest.
  std::string pattern;
  HttpHandler handler;
  std::uint64_t max_body_bytes = 1u << 20;  // a longer body is answered with 413
  /// Asked when the headers are there and before the body is taken, so that strangers cannot fill
  /// the memory: what it returns is the answer, and the body is not kept. As quick as a handler;
  /// the request has no body yet. Null: everybody may.
  HttpCheck authorize;
};

/// How an error looks that the server itself answers with.
using HttpErrorShape =
    std::function<ServerResponse(int status, std::string_view code, std::string_view message)>;

/// Errors as every server of ours gives them: {"code", "message", "details"}.
ServerResponse ErrorResponse(int status, std::string_view code, std::string_view message);

/// Of one server.
constexpr int kMaxHttpThreads = 64;

struct HttpServerOptions {
  /// "host:port" (port 0: a free one) or "unix:/path/of/socket". A socket file that nobody listens
  /// on any more is replaced; a new one is for its owner only (mode 0600).
  std::string listen = "127.0.0.1:0";
  /// Threads that handlers run on.
  int threads = 2;
  /// Connections at once; further ones wait in the kernel's queue.
  int max_connections = 1024;
  /// No route takes more than this. Refused bodies are not kept. After a long one the connection is
  /// closed; what the client is still sending is read and thrown away first, or it would be reset
  /// before it has read the answer (net/lingering_socket.h has the bounds).
  std::uint64_t max_body_bytes = 64u << 20;
  /// A client that has sent no whole request for so long, or takes none of its answer, is hung up
  /// on.
  std::chrono::nanoseconds client_timeout = std::chrono::seconds(60);
  /// How long an answer may be deferred.
  std::chrono::nanoseconds answer_timeout = std::chrono::seconds(600);
  /// Then it speaks TLS and nothing else: whoever speaks plain HTTP is hung up on. A handshake may
  /// take as long as `client_timeout`.
  TlsFiles tls;
  /// Of errors that no handler gives: unknown paths and methods, bodies over a limit, requests that
  /// nobody answered. For protocols whose errors look otherwise. Asked from several threads.
  HttpErrorShape error = ErrorResponse;

  Status Validate() const;
};

/// "Not Found" for 404; "Status" where nobody is waiting for a word.
std::string_view ReasonPhrase(int status);

/// An HTTP/1.1 server with kept connections. Unknown paths are answered with 404, known paths with
/// another method with 405, malformed requests are hung up on. No exceptions come out of it.
class HttpServer {
 public:
  using Options = HttpServerOptions;

  /// Listens when it returns. Unavailable: the address is taken. Errors of the files of TLS as
  /// LoadTlsFiles has them.
  static Result<std::unique_ptr<HttpServer>> Start(Options options, std::vector<HttpRoute> routes);
  /// Stops.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// "http://127.0.0.1:8080", "https://…" or "unix:/path".
  const std::string& url() const;
  std::uint16_t port() const;  // 0 for a Unix socket

  /// Takes no more connections, waits until the answers that were given are on their way (at most a
  /// second), hangs up. Replies that are given later go nowhere. Not to be called by a handler.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn

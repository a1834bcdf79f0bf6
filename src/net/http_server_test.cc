#include "net/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "net/http_routes.h"
#include "net/token.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A client that sends what it is told, byte by byte if need be.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    Limit();
  }
  explicit RawClient(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    Limit();
  }
  ~RawClient() { close(fd_); }

  bool connected() const { return connected_; }
  /// False: the server hung up before all was taken.
  bool Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Reads until `end` stands in what came, or the server hung up.
  std::string ReadUntil(std::string_view end) const {
    std::string out;
    char buffer[4096];
    while (out.find(end) == std::string::npos) {
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      out.append(buffer, static_cast<std::size_t>(got));
    }
    return out;
  }
  /// Everything until the server hangs up; "<timeout>" at the end when it did not.
  std::string ReadAll() const {
    std::string out;
    char buffer[65536];
    for (;;) {
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got < 0) return out + "<timeout>";
      if (got == 0) return out;
      out.append(buffer, static_cast<std::size_t>(got));
    }
  }

 private:
  void Limit() const {
    timeval limit{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  int fd_ = -1;
  bool connected_ = false;
};

std::string Get(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(more) + "\r\n";
}

std::vector<HttpRoute> Routes() {
  std::vector<HttpRoute> routes;
  routes.push_back({.method = "GET",
                    .pattern = "/echo/{name}/runs/{run}",
                    .handler = [](const ServerRequest& request, HttpReply reply) {
                      reply.Send({.body = request.params.at("name") + "|" +
                                          request.params.at("run") + "|" +
                                          std::string(request.Query("q")) + "|" +
                                          std::string(request.BearerToken())});
                    }});
  routes.push_back({.method = "POST",
                    .pattern = "/size",
                    .handler =
                        [](const ServerRequest& request, HttpReply reply) {
                          reply.Send({.body = std::to_string(request.body.size())});
                        },
                    .max_body_bytes = 1000});
  routes.push_back({.method = "GET",
                    .pattern = "/throws",
                    .handler = [](const ServerRequest&, HttpReply) -> void {
                      throw std::runtime_error("a bug");
                    }});
  routes.push_back(
      {.method = "GET", .pattern = "/forgets", .handler = [](const ServerRequest&, HttpReply) {}});
  return routes;
}

TEST(HttpRoutes, FixedSegmentsWinAndNamesAreDecoded) {
  const auto handler = [](const ServerRequest&, HttpReply) {};
  const HttpRoutes routes = HttpRoutes::Make({{"GET", "/a/{x}", handler},
                                              {"GET", "/a/fixed", handler},
                                              {"PUT", "/a/{x}", handler},
                                              {"GET", "/files/{path...}", handler}})
                                .value();
  EXPECT_EQ(routes.Find("GET", "/a/fixed").route->pattern, "/a/fixed");
  EXPECT_EQ(routes.Find("GET", "/a/b%20c%2Fd").params.at("x"), "b c/d");
  EXPECT_EQ(routes.Find("PUT", "/a/fixed").route->pattern, "/a/{x}");
  EXPECT_EQ(routes.Find("GET", "/files/a/b/c").params.at("path"), "a/b/c");
  EXPECT_EQ(routes.Find("POST", "/a/b").route, nullptr);
  EXPECT_TRUE(routes.Find("POST", "/a/b").known_path);
  for (const char* path : {"", "/", "/a", "/a/", "/a/b/c", "a/b", "/a/%zz", "/a/%00", "/a/%4"}) {
    EXPECT_FALSE(routes.Find("GET", path).known_path) << path;
  }
  EXPECT_FALSE(HttpRoutes::Make({{"GET", "/a/{x...}/b", handler}}).ok());
  EXPECT_FALSE(HttpRoutes::Make({{"GET", "/a/{x", handler}}).ok());
  EXPECT_FALSE(HttpRoutes::Make({{"GET", "/a/{}", handler}}).ok());
  EXPECT_TRUE(HttpRoutes::Make({{"GET", "/v1/{x}", handler}}).ok());
}

TEST(HttpRoutes, QueriesAreDecoded) {
  const auto query = DecodeQuery("a=1&b=%20x+y&c&=no&d=%zz&a=2");
  EXPECT_EQ(query.at("a"), "2");
  EXPECT_EQ(query.at("b"), " x y");
  EXPECT_EQ(query.at("c"), "");
  EXPECT_EQ(query.size(), 3u);
}

TEST(Token, MatchesItsOwnHashOnly) {
  const std::string token = NewToken().value();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_NE(token, NewToken().value());
  EXPECT_TRUE(TokenMatches(token, HashToken(token)));
  EXPECT_FALSE(TokenMatches(token + "x", HashToken(token)));
  EXPECT_FALSE(TokenMatches("", HashToken(token)));
  EXPECT_FALSE(TokenMatches(token, ""));
}

TEST(ServerRequest, TheSchemeOfATokenIsReadInAnyCase) {
  const auto token = [](const std::string& value) {
    ServerRequest request;
    request.headers = {{"authorization", value}};
    return std::string(request.BearerToken());
  };
  for (const char* scheme : {"Bearer ", "bearer ", "BEARER ", "bEARer   "}) {
    EXPECT_EQ(token(scheme + std::string("aB Z")), "aB Z") << scheme;
  }
  for (const char* none : {"", "Bearer", "Bearer ", "Bearer   ", "Bearers x", "Basic x",
                           " Bearer x", "bearer\tx", "\"earer x", "[earer x"}) {
    EXPECT_EQ(token(none), "") << none;
  }
}

TEST(HttpServer, AnswersOnAKeptConnection) {
  auto server = HttpServer::Start({}, Routes()).value();
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.Send(Get("/echo/a%20b/runs/7?q=1%262", "Authorization: Bearer secret\r\n"));
    const std::string answer = client.ReadUntil("secret");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK")) << answer;
    EXPECT_TRUE(answer.ends_with("a b|7|1&2|secret")) << answer;
  }
}

TEST(HttpServer, UnknownPathsMethodsAndFaultyHandlersAreAnswered) {
  auto server = HttpServer::Start({}, Routes()).value();
  auto client = HttpClient::Open({}).value();
  const auto status = [&](const std::string& method, const std::string& path) {
    const auto answer =
        client->Fetch(HttpCall{.prepare = [&](int) -> Result<HttpRequest> {
                                 return HttpRequest{.method = method, .url = server->url() + path};
                               },
                               .max_attempts = 1});
    return answer.ok() ? answer->status : -1;
  };
  EXPECT_EQ(status("GET", "/nothing"), 404);
  EXPECT_EQ(status("DELETE", "/size"), 405);
  EXPECT_EQ(status("GET", "/throws"), 500);
  EXPECT_EQ(status("GET", "/forgets"), 500);
  EXPECT_EQ(status("GET", "/echo/a/runs/b"), 200);
}

TEST(HttpServer, ItsOwnErrorsHaveTheShapeThatWasAskedFor) {
  HttpServerOptions options;
  options.error = [](int status, std::string_view code, std::string_view message) {
    return ServerResponse{.status = status,
                          .body = "<" + std::string(code) + ": " + std::string(message) + ">",
                          .content_type = "text/x-error",
                          .headers = {}};
  };
  auto server = HttpServer::Start(options, Routes()).value();
  const auto answer = [&](const std::string& request) {
    RawClient client(server->port());
    client.Send(request);
    return client.ReadUntil(">");
  };
  for (const auto& [request, body] :
       {std::pair(Get("/nothing"), "<not_found: there is no such path>"),
        std::pair(Get("/size"), "<method_not_allowed: GET is not possible here>"),
        std::pair(Get("/throws"), "<internal: the request was not answered>"),
        std::pair(Get("/forgets"), "<internal: the request was not answered>"),
        std::pair(std::string("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n") +
                      std::string(1001, 'x'),
                  "<too_large: at most 1000 bytes are taken here>"),
        std::pair(std::string("POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                              "chunked\r\n\r\n3e9\r\n") +
                      std::string(1001, 'x') + "\r\n",
                  "<too_large: at most 1000 bytes are taken here>")}) {
    const std::string got = answer(request);
    EXPECT_TRUE(got.ends_with(body)) << got;
    EXPECT_NE(got.find("text/x-error"), std::string::npos) << got;
  }
}

/// A client that sends everything before it reads, as many do, and what it reads then.
TEST(HttpServer, WhoSendsFarTooMuchReadsItsAnswerAllTheSame) {
  auto server = HttpServer::Start({}, Routes()).value();
  const std::string body(40u << 20, 'x');
  for (int i = 0; i < 5; ++i) {
    RawClient client(server->port());
    client.Send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n");
    EXPECT_TRUE(client.Send(body)) << "the whole of it was taken";
    const std::string answer = client.ReadAll();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 413")) << answer;
    EXPECT_TRUE(answer.ends_with("}")) << "hung up on, not reset: " << answer;
  }
  // Without a length, and to a path that is not there.
  RawClient client(server->port());
  client.Send("POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  bool taken = true;
  for (int i = 0; i < 40; ++i) {
    taken = taken && client.Send("100000\r\n" + body.substr(0, 1u << 20) + "\r\n");
  }
  EXPECT_TRUE(taken && client.Send("0\r\n\r\n"));
  EXPECT_TRUE(client.ReadAll().starts_with("HTTP/1.1 404"));
}

/// Reading on is bounded: a client that never ends is left after a while, and many of them at once.
TEST(HttpServer, WhoNeverEndsSendingIsLeft) {
  auto server =
      HttpServer::Start({.threads = 1, .client_timeout = milliseconds(300)}, Routes()).value();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 80; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->Send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n");
  }
  for (const auto& client : clients) {
    while (client->Send(std::string(1u << 20, 'x'))) {
    }
  }
  RawClient other(server->port());
  other.Send(Get("/echo/a/runs/b"));
  EXPECT_NE(other.ReadUntil("a|b").find("200 OK"), std::string::npos);
}

TEST(HttpServer, BodiesOverTheRoutesLimitGet413AndOverTheServersLimitAreNotRead) {
  auto server = HttpServer::Start({.max_body_bytes = 100000}, Routes()).value();
  const auto post = [&](std::size_t bytes) {
    RawClient client(server->port());
    client.Send("POST /size HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                std::to_string(bytes) + "\r\n\r\n");
    client.Send(std::string(bytes, 'x'));
    return client.ReadAll();
  };
  EXPECT_TRUE(post(1000).ends_with("1000"));
  EXPECT_TRUE(post(1001).starts_with("HTTP/1.1 413"));
  EXPECT_EQ(post(200000).find("HTTP/1.1 200"), std::string::npos);
}

/// The largest amount of memory the process had so far, in bytes.
std::uint64_t PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(HttpServer, ChecksOnHeadersSeeWhoAsks) {
  const std::vector<HttpRoute> routes = {
      {.method = "GET",
       .pattern = "/",
       .handler = [](const ServerRequest&, const HttpReply&) {},
       .authorize = [](const ServerRequest& request) -> std::optional<ServerResponse> {
         return ErrorResponse(403, "peer", "<" + request.peer + ">");
       }}};
  const auto twice = [](const RawClient& client) {  // on one connection
    client.Send(Get("/"));
    client.ReadUntil("}");
    client.Send(Get("/"));
    return client.ReadUntil("}");
  };
  auto server = HttpServer::Start({}, routes).value();
  EXPECT_NE(twice(RawClient(server->port())).find("<127.0.0.1>"), std::string::npos);
  const std::string path = "/tmp/cairn_peer_" + std::to_string(getpid());
  auto local = HttpServer::Start({.listen = "unix:" + path}, routes).value();
  EXPECT_NE(twice(RawClient(path)).find("<>"), std::string::npos);
}

TEST(HttpServer, ChecksOnHeadersComeBeforeTheBodyIsTaken) {
  std::atomic<int> handled = 0;
  std::vector<HttpRoute> routes;
  routes.push_back({.method = "POST",
                    .pattern = "/upload/{name}",
                    .handler =
                        [&](const ServerRequest& request, HttpReply reply) {
                          ++handled;
                          reply.Send({.body = std::to_string(request.body.size())});
                        },
                    .max_body_bytes = 64u << 20,
                    .authorize = [](const ServerRequest& request) -> std::optional<ServerResponse> {
                      if (request.BearerToken() == "secret" && request.params.at("name") == "a" &&
                          request.Query("q") == "1") {
                        return std::nullopt;
                      }
                      auto refusal = ErrorResponse(401, "unauthenticated", "who are you?");
                      refusal.headers.push_back({"WWW-Authenticate", "Bearer"});
                      return refusal;
                    }});
  auto server = HttpServer::Start({}, routes).value();
  const auto head = [](std::string_view token, std::string_view more) {
    return "POST /upload/a?q=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + std::string(token) +
           "\r\n" + std::string(more) + "\r\n";
  };
  // Of 60 MiB not a byte was sent, and the answer is there.
  {
    RawClient client(server->port());
    client.Send(head("wrong", "Content-Length: 62914560\r\n"));
    const std::string answer = client.ReadAll();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401 Unauthorized")) << answer;
    EXPECT_NE(answer.find("WWW-Authenticate: Bearer"), std::string::npos) << answer;
    EXPECT_NE(answer.find("who are you?"), std::string::npos) << answer;
  }
  // The same in chunks.
  {
    RawClient client(server->port());
    client.Send(head("wrong", "Transfer-Encoding: chunked\r\n") + "4\r\nabcd\r\n");
    EXPECT_TRUE(client.ReadUntil("}").starts_with("HTTP/1.1 401"));
  }
  // A short one is skipped and the connection kept.
  RawClient client(server->port());
  client.Send(head("wrong", "Content-Length: 4\r\n") + "abcd");
  EXPECT_TRUE(client.ReadUntil("you?\"}").starts_with("HTTP/1.1 401"));
  client.Send(head("secret", "Content-Length: 3\r\n") + "abc");
  EXPECT_TRUE(client.ReadUntil("\r\n\r\n3").starts_with("HTTP/1.1 200"));
  client.Send(head("secret", "Transfer-Encoding: chunked\r\n") + "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("\r\n\r\n4").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(handled, 2);
}

TEST(HttpServer, RefusedBodiesTakeNoMemory) {
  std::vector<HttpRoute> routes = Routes();
  auto server = HttpServer::Start({}, routes).value();
  const std::uint64_t before = PeakMemory();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->Send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n");
    clients.back()->Send(std::string(1u << 20, 'x'));
  }
  for (const auto& client : clients) {
    EXPECT_TRUE(client->ReadUntil("}").starts_with("HTTP/1.1 413"));
  }
  // Chunks of a byte have no more memory than their bytes.
  RawClient client(server->port());
  std::string chunks = "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 1001; ++i) chunks += "1\r\nx\r\n";
  client.Send(chunks);
  EXPECT_TRUE(client.ReadAll().starts_with("HTTP/1.1 413"));
  EXPECT_LT(PeakMemory() - before, 32u << 20);
}

TEST(HttpServer, NonsenseIsHungUpOnAndOthersAreServed) {
  auto server = HttpServer::Start({}, Routes()).value();
  for (const std::string& nonsense :
       {std::string("\x16\x03\x01\x02\x00 not http\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("POST /size HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        Get("/" + std::string(70000, 'a')),
        Get("/echo/a/runs/b", "X: " + std::string(40000, 'b') + "\r\n")}) {
    RawClient client(server->port());
    client.Send(nonsense);
    const std::string answer = client.ReadAll();
    EXPECT_EQ(answer.find("200 OK"), std::string::npos) << nonsense.substr(0, 40);
    EXPECT_EQ(answer.find("<timeout>"), std::string::npos) << nonsense.substr(0, 40);
  }
  RawClient client(server->port());
  client.Send(Get("/echo/a/runs/b"));
  EXPECT_NE(client.ReadUntil("a|b").find("200 OK"), std::string::npos);
}

TEST(HttpServer, SlowClientsAreHungUpOnWhileOthersAreServed) {
  auto server =
      HttpServer::Start({.threads = 1, .client_timeout = milliseconds(2000)}, Routes()).value();
  RawClient slow(server->port());
  slow.Send("GET /echo/a/ru");
  RawClient client(server->port());
  client.Send(Get("/echo/a/runs/b"));
  EXPECT_NE(client.ReadUntil("a|b").find("200 OK"), std::string::npos);
  EXPECT_EQ(slow.ReadAll().find("<timeout>"), std::string::npos);
}

TEST(HttpServer, AnswersMayComeLaterFromAnotherThreadWhileOthersAreServed) {
  std::mutex mu;
  std::condition_variable arrived;
  std::vector<HttpReply> held;
  auto routes = Routes();
  routes.push_back(
      {.method = "GET", .pattern = "/wait", .handler = [&](const ServerRequest&, HttpReply reply) {
         std::lock_guard hold(mu);
         held.push_back(std::move(reply));
         arrived.notify_all();
       }});
  auto server = HttpServer::Start({.threads = 1}, routes).value();
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server->port()));
    waiting.back()->Send(Get("/wait"));
  }
  RawClient client(server->port());
  client.Send(Get("/echo/a/runs/b"));
  EXPECT_NE(client.ReadUntil("a|b").find("200 OK"), std::string::npos);
  {
    std::unique_lock hold(mu);
    arrived.wait(hold, [&] { return held.size() == 20; });
    for (const HttpReply& reply : held) {
      reply.Send({.body = "at last"});
      reply.Send({.body = "ignored"});
    }
  }
  for (const auto& one : waiting) {
    EXPECT_TRUE(one->ReadUntil("at last").ends_with("at last"));
  }
  held.clear();
}

TEST(HttpServer, StreamsGoOutPieceByPieceAndTheWriterLearnsThatNobodyListens) {
  std::mutex mu;
  std::condition_variable arrived;
  std::optional<HttpStream> stream;
  std::vector<HttpRoute> routes;
  routes.push_back({.method = "GET",
                    .pattern = "/events",
                    .handler = [&](const ServerRequest&, HttpReply reply) {
                      std::lock_guard hold(mu);
                      stream.emplace(reply.Stream(200, "text/event-stream"));
                      arrived.notify_all();
                    }});
  auto server = HttpServer::Start({}, routes).value();
  auto client = std::make_unique<RawClient>(server->port());
  client->Send(Get("/events"));
  std::unique_lock hold(mu);
  arrived.wait(hold, [&] { return stream.has_value(); });
  EXPECT_TRUE(stream->Write("data: 1\n\n"));
  EXPECT_NE(client->ReadUntil("data: 1\n\n").find("chunked"), std::string::npos);
  EXPECT_TRUE(stream->Write("data: 2\n\n"));
  EXPECT_NE(client->ReadUntil("data: 2\n\n").find("data: 2"), std::string::npos);
  client.reset();
  bool open = true;
  for (int i = 0; i < 1000 && open; ++i) {
    open = stream->Write(std::string(10000, 'x'));
    std::this_thread::yield();
  }
  EXPECT_FALSE(open);
  EXPECT_FALSE(stream->open());
}

TEST(HttpServer, AListenerThatTakesNothingIsCutOff) {
  std::mutex mu;
  std::condition_variable arrived;
  std::optional<HttpStream> stream;
  std::vector<HttpRoute> routes;
  routes.push_back({.method = "GET",
                    .pattern = "/events",
                    .handler = [&](const ServerRequest&, HttpReply reply) {
                      std::lock_guard hold(mu);
                      stream.emplace(reply.Stream(200, "text/event-stream"));
                      arrived.notify_all();
                    }});
  auto server = HttpServer::Start({}, routes).value();
  RawClient client(server->port());
  client.Send(Get("/events"));
  std::unique_lock hold(mu);
  arrived.wait(hold, [&] { return stream.has_value(); });
  int written = 0;
  while (written < 10000 && stream->Write(std::string(100000, 'x'))) ++written;
  EXPECT_LT(written, 1000);
}

TEST(HttpServer, ListensOnAUnixSocketForItsOwnerOnly) {
  const std::string path = ::testing::TempDir() + "/cairn-http-" + std::to_string(getpid());
  for (int life = 0; life < 2; ++life) {
    auto server = HttpServer::Start({.listen = "unix:" + path}, Routes()).value();
    EXPECT_EQ(server->url(), "unix:" + path);
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_TRUE(
        HttpServer::Start({.listen = "unix:" + path}, Routes()).status().Is(Code::kUnavailable));
    RawClient client(path);
    ASSERT_TRUE(client.connected());
    for (int i = 0; i < 2; ++i) {
      client.Send(Get("/echo/a/runs/b"));
      EXPECT_TRUE(client.ReadUntil("a|b||").ends_with("a|b||"));
    }
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(HttpServer, ASocketThatAKilledServerLeftIsReplaced) {
  const std::string path = ::testing::TempDir() + "/cairn-http-left-" + std::to_string(getpid());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  EXPECT_TRUE(HttpServer::Start({.listen = "unix:" + path}, Routes()).ok());
}

TEST(HttpServer, RefusesAddressesThatMakeNoSenseOrAreTaken) {
  EXPECT_TRUE(HttpServer::Start({.listen = "nowhere"}, {}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(HttpServer::Start({.listen = "127.0.0.1:x"}, {}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(HttpServer::Start({.listen = "unix:" + std::string(200, 'a')}, {})
                  .status()
                  .Is(Code::kInvalidArgument));
  auto server = HttpServer::Start({}, Routes()).value();
  EXPECT_TRUE(HttpServer::Start({.listen = "127.0.0.1:" + std::to_string(server->port())}, {})
                  .status()
                  .Is(Code::kUnavailable));
}

TEST(HttpServer, StopsWithRequestsWaitingAndLateRepliesGoNowhere) {
  std::mutex mu;
  std::condition_variable arrived;
  std::optional<HttpReply> held;
  std::vector<HttpRoute> routes;
  routes.push_back(
      {.method = "GET", .pattern = "/wait", .handler = [&](const ServerRequest&, HttpReply reply) {
         std::lock_guard hold(mu);
         held.emplace(std::move(reply));
         arrived.notify_all();
       }});
  auto server = HttpServer::Start({}, routes).value();
  RawClient client(server->port());
  client.Send(Get("/wait"));
  {
    std::unique_lock hold(mu);
    arrived.wait(hold, [&] { return held.has_value(); });
  }
  server->Stop();
  server.reset();
  held->Send({.body = "too late"});
  held.reset();
  EXPECT_EQ(client.ReadAll(), "");
}

}  // namespace
}  // namespace cairn

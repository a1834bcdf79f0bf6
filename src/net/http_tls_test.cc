// A server with TLS: real handshakes, and all that must not become one.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "net/http_server.h"
#include "net/test_certificates.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr std::size_t kLong = 3u << 20;

class HttpTls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string base = testing::TempDir() + "cairn_http_tls";
    ours_ = std::make_unique<TestCertificates>(base + "/ours");
    theirs_ = std::make_unique<TestCertificates>(base + "/theirs");
    ASSERT_TRUE(ours_->ok());
    ASSERT_TRUE(theirs_->ok());
  }
  static void TearDownTestSuite() {
    ours_.reset();
    theirs_.reset();
  }

  static HttpServerOptions Options() {
    HttpServerOptions options;
    options.tls = {.certificate = ours_->certificate(), .key = ours_->key()};
    return options;
  }

  void Start(HttpServerOptions options) {
    std::vector<HttpRoute> routes;
    routes.push_back(
        {.method = "POST",
         .pattern = "/echo",
         .handler = [](const ServerRequest& request,
                       const HttpReply& reply) { reply.Send({.body = std::string(request.body)}); },
         .max_body_bytes = 16u << 20});
    routes.push_back({.method = "GET",
                      .pattern = "/stream",
                      .handler = [](const ServerRequest&, const HttpReply& reply) {
                        HttpStream stream = reply.Stream(200, "text/plain");
                        for (int i = 0; i < 64; ++i) stream.Write(std::string(1000, 'x'));
                        stream.End();
                      }});
    auto server = HttpServer::Start(std::move(options), std::move(routes));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }

  static std::unique_ptr<HttpClient> Client(const std::string& ca) {
    HttpClientOptions options;
    options.ca_bundle = ca;
    options.retry.max_attempts = 1;
    return HttpClient::Open(std::move(options)).value();
  }

  Result<HttpResponse> Echo(HttpClient* client, const std::string& url, std::string_view body) {
    return client->Fetch({.method = "POST",
                          .url = url + "/echo",
                          .body = std::as_bytes(std::span(body.data(), body.size()))});
  }

  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }

  /// Waits for it, and for no byte before.
  static bool HungUp(int fd) {
    char byte = 0;
    const ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  inline static std::unique_ptr<TestCertificates> ours_;
  inline static std::unique_ptr<TestCertificates> theirs_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTls, AnswersWhoKnowsTheAuthority) {
  Start(Options());
  EXPECT_THAT(server_->url(), testing::StartsWith("https://127.0.0.1:"));
  const auto client = Client(ours_->ca());
  for (int i = 0; i < 3; ++i) {
    const auto answer = Echo(client.get(), server_->url(), "hidden");
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(answer->body, "hidden");
  }
  const std::string body(kLong, 'y');
  const auto answer = Echo(client.get(), server_->url(), body);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_TRUE(answer->body == body);
  const auto stream = client->Fetch({.url = server_->url() + "/stream"});
  ASSERT_TRUE(stream.ok()) << stream.status().ToString();
  EXPECT_EQ(stream->body.size(), 64'000u);
}

TEST_F(HttpTls, WhoSendsFarTooMuchReadsItsAnswerAllTheSame) {
  Start(Options());
  const auto client = Client(ours_->ca());
  const std::string body(40u << 20, 'y');
  for (int i = 0; i < 3; ++i) {
    const auto answer = Echo(client.get(), server_->url(), body);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(answer->status, 413);
    EXPECT_THAT(answer->body, HasSubstr("at most 16777216 bytes"));
  }
}

TEST_F(HttpTls, ManyClientsAtOnce) {
  Start(Options());
  std::vector<std::jthread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto client = Client(ours_->ca());  // a handshake each
        const std::string body(static_cast<std::size_t>(1 + i * 977), static_cast<char>('a' + t));
        const auto answer = Echo(client.get(), server_->url(), body);
        if (answer.ok() && answer->body == body) ++right;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 160);
}

TEST_F(HttpTls, ClientsOfAnotherAuthorityRefuseTheServer) {
  Start(Options());
  const auto answer = Echo(Client(theirs_->ca()).get(), server_->url(), "x");
  EXPECT_TRUE(answer.status().Is(Code::kFailedPrecondition)) << answer.status().ToString();
  EXPECT_THAT(answer.status().ToString(), HasSubstr("CA bundle"));
  const auto of_the_system = Echo(Client("").get(), server_->url(), "x");
  EXPECT_TRUE(of_the_system.status().Is(Code::kFailedPrecondition));
  EXPECT_TRUE(Echo(Client(ours_->ca()).get(), server_->url(), "x").ok());  // it goes on
}

TEST_F(HttpTls, PlainRequestsAreHungUpOn) {
  Start(Options());
  const int fd = Connect();
  const std::string request = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
  ASSERT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string got;
  char buffer[512];
  ssize_t n = 0;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
    got.append(buffer, static_cast<std::size_t>(n));
  EXPECT_TRUE(n == 0 || errno == ECONNRESET);
  EXPECT_THAT(got, testing::Not(HasSubstr("HTTP/")));
  close(fd);
  const auto plain = Echo(Client("").get(), "http" + server_->url().substr(5), "x");
  EXPECT_TRUE(plain.status().Is(Code::kUnavailable)) << plain.status().ToString();
  EXPECT_TRUE(Echo(Client(ours_->ca()).get(), server_->url(), "x").ok());
}

TEST_F(HttpTls, ClientsThatNeverShakeHandsAreHungUpOn) {
  HttpServerOptions options = Options();
  options.client_timeout = milliseconds(2000);
  options.max_connections = 2;
  Start(options);
  const int first = Connect();
  const int second = Connect();
  ASSERT_EQ(send(second, "\x16\x03\x01", 3, MSG_NOSIGNAL), 3);  // the beginning of one, no more
  EXPECT_TRUE(HungUp(first));
  EXPECT_TRUE(HungUp(second));
  close(first);
  close(second);
  // Their places are free again.
  EXPECT_TRUE(Echo(Client(ours_->ca()).get(), server_->url(), "x").ok());
}

TEST_F(HttpTls, OldVersionsAreRefused) {
  Start(Options());
  for (const auto& [version, welcome] :
       {std::pair(TLS1_1_VERSION, false), {TLS1_2_VERSION, true}}) {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(
        SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_set_security_level(context.get(), 0);  // the client would not even try
    SSL_CTX_set_min_proto_version(context.get(), version);
    SSL_CTX_set_max_proto_version(context.get(), version);
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    const int fd = Connect();
    SSL_set_fd(ssl.get(), fd);
    EXPECT_EQ(SSL_connect(ssl.get()) == 1, welcome) << version;
    close(fd);
  }
}

TEST_F(HttpTls, StopsWhileHandshakesAreUnderWay) {
  Start(Options());
  const int silent = Connect();
  ASSERT_EQ(send(silent, "\x16\x03\x01", 3, MSG_NOSIGNAL), 3);
  ASSERT_TRUE(Echo(Client(ours_->ca()).get(), server_->url(), "x").ok());
  server_.reset();
  EXPECT_TRUE(HungUp(silent));
  close(silent);
}

TEST_F(HttpTls, FilesThatCannotServeAreNamed) {
  const std::string nonsense = testing::TempDir() + "cairn_http_tls/nonsense.pem";
  std::ofstream(nonsense) << "no certificate\n";
  const auto refusal = [](std::string certificate, std::string key) {
    HttpServerOptions options;
    options.tls = {.certificate = std::move(certificate), .key = std::move(key)};
    return HttpServer::Start(options, {}).status();
  };
  const std::string cert = ours_->certificate();
  const std::string key = ours_->key();
  struct Case {
    Status status;
    Code code;
    std::string says;
  };
  const Case cases[] = {
      {refusal(cert, ""), Code::kInvalidArgument, "needs its key"},
      {refusal("", key), Code::kInvalidArgument, "needs its certificate"},
      {refusal("/nonexistent/a.crt", key), Code::kNotFound, "/nonexistent/a.crt"},
      {refusal(cert, "/nonexistent/a.key"), Code::kNotFound, "/nonexistent/a.key"},
      {refusal(testing::TempDir(), key), Code::kInvalidArgument, "is a directory"},
      {refusal(nonsense, key), Code::kInvalidArgument, "is no certificate"},
      {refusal(cert, nonsense), Code::kInvalidArgument, "is no key"},
      {refusal(cert, cert), Code::kInvalidArgument, "is no key"},
      {refusal(cert, ours_->locked_key()), Code::kInvalidArgument, "passphrase"},
      {refusal(cert, theirs_->key()), Code::kInvalidArgument, "is not that of the certificate"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.status.code(), c.code) << c.status.ToString();
    EXPECT_THAT(c.status.ToString(), HasSubstr(c.says));
  }
  HttpServerOptions on_a_socket = Options();
  on_a_socket.listen = "unix:" + testing::TempDir() + "cairn_http_tls/socket";
  EXPECT_TRUE(HttpServer::Start(on_a_socket, {}).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn

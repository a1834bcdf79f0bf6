#include "net/unix_http_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "base/manual_clock.h"
#include "net/http_server.h"

namespace cairn {
namespace {

class UnixHttpConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string directory = (std::filesystem::temp_directory_path() / "uhc-XXXXXX").string();
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<HttpServer> Serve() {
    return HttpServer::Start(
               {.listen = "unix:" + path()},
               {{.method = "POST",
                 .pattern = "/echo/{name}",
                 .handler =
                     [](const ServerRequest& request, HttpReply reply) {
                       reply.Send({.status = 200,
                                   .body = request.params.at("name") + ":" +
                                           std::string(request.BearerToken()) + ":" +
                                           std::string(request.body)});
                     },
                 .max_body_bytes = 8u << 20},
                {.method = "GET",
                 .pattern = "/never",
                 .handler = [this](const ServerRequest&,
                                   HttpReply reply) { kept_.push_back(std::move(reply)); }}})
        .value();
  }

  HttpRequest Post(std::string_view body) {
    return {.method = "POST",
            .url = "/echo/a",
            .headers = {{"Authorization", "Bearer t"}},
            .body = std::as_bytes(std::span(body.data(), body.size()))};
  }

  std::string path() const { return directory_ + "/s"; }
  std::string directory_;
  std::vector<HttpReply> kept_;
};

TEST_F(UnixHttpConnectionTest, AsksAgainAndAgainOnOneConnection) {
  const auto server = Serve();
  UnixHttpConnection connection({.path = path()});
  for (int i = 0; i < 100; ++i) {
    const std::string body = std::to_string(i);
    const auto answer = connection.Fetch(Post(body));
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "a:t:" + body);
  }
  EXPECT_EQ(connection.Fetch({.url = "/nowhere"})->status, 404);
  const std::string large(3u << 20, 'x');
  EXPECT_EQ(connection.Fetch(Post(large))->body.size(), large.size() + 4);
}

TEST_F(UnixHttpConnectionTest, FindsTheServerThatComesBack) {
  UnixHttpConnection connection({.path = path()});
  EXPECT_TRUE(connection.Fetch(Post("x")).status().Is(Code::kUnavailable));
  auto server = Serve();
  EXPECT_TRUE(connection.Fetch(Post("x")).ok());
  server->Stop();
  server.reset();
  EXPECT_TRUE(connection.Fetch(Post("x")).status().Is(Code::kUnavailable));
  server = Serve();
  EXPECT_TRUE(connection.Fetch(Post("x")).ok());
}

TEST_F(UnixHttpConnectionTest, EndsWhenItIsToldToOrNobodyAnswers) {
  const auto server = Serve();
  std::atomic<bool> end = false;
  UnixHttpConnection told({.path = path(), .cancelled = [&] { return end.exchange(true); }});
  EXPECT_TRUE(told.Fetch({.url = "/never"}).status().Is(Code::kCancelled));
  ManualClock clock;
  UnixHttpConnection patient({.path = path(), .clock = &clock});
  {
    // Again and again: nobody tells when it begins to wait.
    const std::jthread time([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::yield()) {
        clock.Advance(std::chrono::minutes(2));
      }
    });
    EXPECT_TRUE(patient.Fetch({.url = "/never"}).status().Is(Code::kDeadlineExceeded));
  }
  EXPECT_TRUE(patient.Fetch(Post("x")).ok()) << "the next call has a connection of its own";
  kept_.clear();
}

TEST_F(UnixHttpConnectionTest, AForkedCopyLeavesTheParentsConnectionAlone) {
  const auto server = Serve();
  UnixHttpConnection connection({.path = path()});
  ASSERT_TRUE(connection.Fetch(Post("x")).ok());
  const pid_t child = fork();
  if (child == 0) _exit(connection.Fetch(Post("y")).status().Is(Code::kUnavailable) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(connection.Fetch(Post("z"))->body, "a:t:z");
}

/// A server that says what it is told to, in pieces, and hangs up.
class Scripted {
 public:
  Scripted(const std::string& path, std::vector<std::string> pieces) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    listening_ = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listening_, 1), 0);
    thread_ = std::jthread([this, pieces] {
      const int fd = accept(listening_, nullptr, nullptr);
      char buffer[4096];
      EXPECT_GT(read(fd, buffer, sizeof buffer), 0);
      for (const std::string& piece : pieces) {
        EXPECT_EQ(write(fd, piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
      }
      close(fd);
      close(listening_);
    });
  }

 private:
  int listening_;
  std::jthread thread_;
};

TEST_F(UnixHttpConnectionTest, TakesAnswersInPiecesAndRefusesWhatIsNone) {
  struct Case {
    std::vector<std::string> pieces;
    bool good;
  };
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
  int number = 0;
  for (const Case& one : std::vector<Case>{
           {{"HTTP/1.1 20", "0 OK\r\nConten", "t-length:5\r\n\r", "\nhel", "lo"}, true},
           {{head + "hello"}, true},
           {{head + "hell"}, false},
           {{head}, false},
           {{"HTTP/1.1 200 OK\r\n\r\nhello"}, false},
           {{"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"}, false},
           {{"HTTP/1.1 200 OK\r\nno header\r\n\r\nhello"}, false},
           {{"SSH-2.0\r\n\r\n"}, false},
           {{""}, false}}) {
    const std::string at = path() + std::to_string(number++);
    Scripted server(at, one.pieces);
    UnixHttpConnection connection({.path = at});
    const auto answer = connection.Fetch(Post("x"));
    EXPECT_EQ(answer.ok(), one.good) << number << answer.status().ToString();
    if (answer.ok()) {
      EXPECT_EQ(answer->body, "hello");
    } else {
      EXPECT_TRUE(answer.status().Is(Code::kUnavailable)) << number;
    }
  }
}

}  // namespace
}  // namespace cairn

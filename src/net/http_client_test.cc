#include "net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/manual_clock.h"
#include "base/thread_annotations.h"
#include "net/http_server.h"
#include "net/test_http_server.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// No waits between attempts.
HttpClientOptions Quick() {
  HttpClientOptions options;
  options.retry = {
      .max_attempts = 3, .first_wait = milliseconds(1), .longest_wait = milliseconds(2)};
  options.random = [] { return 0.5; };
  return options;
}

std::unique_ptr<HttpClient> Open(HttpClientOptions options = Quick()) {
  auto client = HttpClient::Open(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return *std::move(client);
}

TEST(HttpClient, SendsMethodHeadersAndBodyAndGivesTheAnswerBack) {
  TestHttpServer server([](const TestHttpRequest& request) {
    return Answer(201, request.method + " " + request.target + " " + request.body,
                  {{"X-Back", std::string(request.Header("x-there"))}});
  });
  auto client = Open();
  const std::string body = "some bytes";
  const auto response = client->Fetch({.method = "PUT",
                                       .url = server.url() + "/a%2Fb/../c?x=%20",
                                       .headers = {{"X-There", "and back"}},
                                       .body = AsBytes(body)});
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->body, "PUT /a%2Fb/../c?x=%20 some bytes") << "the path goes out as it stands";
  EXPECT_EQ(response->Header("x-back"), "and back");
  EXPECT_TRUE(response->Succeeded());
}

TEST(HttpClient, AddsNoHeadersOfForms) {
  TestHttpServer server([](const TestHttpRequest& request) { return Answer(200, request.head); });
  auto client = Open();
  const std::string body(3'000'000, 'x');
  const auto response =
      client->Fetch({.method = "POST", .url = server.url() + "/", .body = AsBytes(body)});
  ASSERT_TRUE(response.ok());
  EXPECT_THAT(response->body, ::testing::Not(HasSubstr("Content-Type")));
  EXPECT_THAT(response->body, ::testing::Not(HasSubstr("Expect")));
  EXPECT_THAT(response->body, HasSubstr("Content-Length: 3000000"));
  const auto empty = client->Fetch({.method = "PUT", .url = server.url() + "/"});
  EXPECT_THAT(empty->body, HasSubstr("Content-Length: 0"));
}

TEST(HttpClient, HeadHasNoBody) {
  TestHttpServer server([](const TestHttpRequest&) {
    return TestHttpReply{.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n"};
  });
  auto client = Open();
  for (int i = 0; i < 2; ++i) {
    const auto response = client->Fetch({.method = "HEAD", .url = server.url() + "/"});
    ASSERT_TRUE(response.ok()) << response.status().ToString();
    EXPECT_EQ(response->Header("content-length"), "12345");
  }
  EXPECT_EQ(server.connections(), 1) << "the connection is kept";
}

TEST(HttpClient, BodyGoesStraightIntoTheCallersMemory) {
  TestHttpServer server([](const TestHttpRequest& request) {
    return request.target == "/missing" ? Answer(404, "no such thing") : Answer(206, "0123456789");
  });
  auto client = Open();
  std::string memory(10, '?');
  const auto into = std::as_writable_bytes(std::span(memory));
  const auto response = client->Fetch({.url = server.url() + "/", .into = into});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->into_bytes, 10u);
  EXPECT_EQ(memory, "0123456789");
  const auto missing = client->Fetch({.url = server.url() + "/missing", .into = into});
  EXPECT_EQ(missing->body, "no such thing") << "an error's body is not the caller's data";
  EXPECT_EQ(memory, "0123456789");
  const auto longer = client->Fetch({.url = server.url() + "/", .into = into.first(9)});
  EXPECT_TRUE(longer.status().Is(Code::kResourceExhausted));
}

TEST(HttpClient, BodyIsHandedOverInPieces) {
  TestHttpServer server([](const TestHttpRequest& request) {
    return request.target == "/missing" ? Answer(404, "no such thing")
                                        : Answer(200, std::string(3'000'000, 'x'));
  });
  auto client = Open();
  std::string taken;
  const auto take = [&](std::string_view piece) {
    taken += piece;
    return true;
  };
  const auto response = client->Fetch({.url = server.url() + "/", .sink = take});
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(taken.size(), 3'000'000u);
  EXPECT_EQ(response->body, "");
  const auto missing = client->Fetch({.url = server.url() + "/missing", .sink = take});
  EXPECT_EQ(missing->body, "no such thing") << "an error's body is not the caller's data";
  EXPECT_EQ(taken.size(), 3'000'000u);
  const auto enough =
      client->Fetch({.url = server.url() + "/", .sink = [](std::string_view) { return false; }});
  EXPECT_TRUE(enough.status().Is(Code::kCancelled));
}

TEST(HttpClient, RefusesALongerBodyThanAllowed) {
  TestHttpServer server([](const TestHttpRequest&) { return Answer(200, std::string(100, 'x')); });
  auto client = Open();
  EXPECT_TRUE(client->Fetch({.url = server.url() + "/", .max_body_bytes = 100}).ok());
  const auto response = client->Fetch({.url = server.url() + "/", .max_body_bytes = 99});
  EXPECT_TRUE(response.status().Is(Code::kResourceExhausted)) << response.status().ToString();
}

TEST(HttpClient, RefusesEndlessHeaders) {
  TestHttpServer server([](const TestHttpRequest&) {
    std::string bytes = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 300; ++i) bytes += "X-Long: " + std::string(1000, 'x') + "\r\n";
    return TestHttpReply{.bytes = bytes + "Content-Length: 0\r\n\r\n"};
  });
  auto client = Open();
  EXPECT_FALSE(client->Fetch({.url = server.url() + "/"}).ok());
}

TEST(HttpClient, TriesAgainAfterTransientAnswers) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) {
    return ++requests < 3 ? Answer(503, "slow down") : Answer(200, "at last");
  });
  auto client = Open();
  const auto response = client->Fetch({.url = server.url() + "/"});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->body, "at last");
  EXPECT_EQ(requests, 3);
}

TEST(HttpClient, GivesTheLastAnswerWhenAttemptsAreUsedUp) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) {
    ++requests;
    return Answer(500, "broken");
  });
  auto client = Open();
  const auto response = client->Fetch({.url = server.url() + "/"});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 500);
  EXPECT_EQ(requests, 3);
}

TEST(HttpClient, TriesNothingAgainThatWillNotHelp) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) {
    ++requests;
    return Answer(403, "no");
  });
  auto client = Open();
  EXPECT_EQ(client->Fetch({.url = server.url() + "/"})->status, 403);
  EXPECT_EQ(requests, 1);
}

TEST(HttpClient, TriesAgainWhenTheServerHangsUp) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) -> TestHttpReply {
    switch (++requests) {
      case 1:
        return {.bytes = "", .close = true};  // without a word
      case 2:
        return {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", .close = true};
      default:
        return Answer(200, "0123456789");
    }
  });
  auto client = Open();
  std::string memory(10, '?');
  const auto response =
      client->Fetch({.url = server.url() + "/", .into = std::as_writable_bytes(std::span(memory))});
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(memory, "0123456789");
  EXPECT_GE(requests, 3);
}

TEST(HttpClient, APostThatMustNotBeSentTwiceIsNotSentTwiceOnAKeptConnection) {
  std::atomic<int> posts = 0;
  TestHttpServer server([&](const TestHttpRequest& request) {
    if (request.method == "GET") return Answer(200);
    ++posts;
    return TestHttpReply{.close = true};
  });
  auto client = Open();
  ASSERT_TRUE(client->Fetch({.url = server.url() + "/"}).ok());
  const HttpRequest request{.method = "POST", .url = server.url() + "/submit"};
  const auto response = client->Fetch(
      {.prepare = [&](int) -> Result<HttpRequest> { return request; }, .max_attempts = 1});
  EXPECT_TRUE(response.status().Is(Code::kUnavailable)) << response.status().ToString();
  EXPECT_EQ(posts.load(), 1);
}

TEST(HttpClient, HeadThatWasCutIsNotAnAnswer) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) -> TestHttpReply {
    if (++requests == 1)
      return {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A", .close = true};
    return Answer(200, "", {{"X-A", "whole"}});
  });
  auto client = Open();
  const auto response = client->Fetch({.url = server.url() + "/"});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->Header("x-a"), "whole");
}

TEST(HttpClient, PreparesEachAttemptAnew) {
  TestHttpServer server([&](const TestHttpRequest& request) {
    return Answer(request.target == "/2" ? 200 : 500, request.target);
  });
  auto client = Open();
  std::vector<int> judged;
  HttpCall call;
  call.prepare = [&](int attempt) -> Result<HttpRequest> {
    return HttpRequest{.url = server.url() + "/" + std::to_string(attempt)};
  };
  call.retry = [&](int attempt, const Result<HttpResponse>& outcome) {
    judged.push_back(attempt);
    return IsTransient(outcome);
  };
  const auto response = client->Fetch(std::move(call));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->body, "/2");
  EXPECT_THAT(judged, ::testing::ElementsAre(1, 2));
}

TEST(HttpClient, UnpreparedCallFails) {
  auto client = Open();
  HttpCall call;
  call.prepare = [](int) -> Result<HttpRequest> { return PermissionDeniedError("no keys"); };
  EXPECT_TRUE(client->Fetch(std::move(call)).status().Is(Code::kPermissionDenied));
}

TEST(HttpClient, UnreachableServerIsUnavailable) {
  std::uint16_t port = 0;
  {
    TestHttpServer gone([](const TestHttpRequest&) { return Answer(200); });
    port = gone.port();
  }
  auto client = Open();
  const auto response = client->Fetch({.url = "http://127.0.0.1:" + std::to_string(port) + "/a"});
  EXPECT_TRUE(response.status().Is(Code::kUnavailable));
  EXPECT_THAT(response.status().ToString(), HasSubstr(std::to_string(port)));
  EXPECT_TRUE(
      client->Fetch({.url = "http://no-such-host.invalid/"}).status().Is(Code::kUnavailable));
  EXPECT_TRUE(client->Fetch({.url = "ftp://127.0.0.1/"}).status().Is(Code::kInvalidArgument));
}

TEST(HttpClient, PlainServerBehindHttpsIsAnErrorThatDoesNotHang) {
  TestHttpServer server([](const TestHttpRequest&) { return Answer(200); });
  HttpClientOptions options = Quick();
  options.connect_timeout = milliseconds(100);
  auto client = Open(options);
  const auto response =
      client->Fetch({.url = "https://127.0.0.1:" + std::to_string(server.port()) + "/"});
  EXPECT_FALSE(response.ok());
}

TEST(HttpClient, SilentServerIsGivenUpAndTriedAgain) {
  std::latch release(1);
  std::atomic<int> requests = 0;
  ManualClock clock;
  std::unique_ptr<HttpClient> client;
  TestHttpServer server([&](const TestHttpRequest& request) {
    if (request.target == "/other") return Answer(200);
    if (++requests == 1) {
      // Its end shows that the client has seen the last byte of this request move.
      EXPECT_TRUE(client->Fetch({.url = server.url() + "/other"}).ok());
      clock.Advance(milliseconds(200));
      release.wait();
    }
    return Answer(200, "awake");
  });
  HttpClientOptions options = Quick();
  options.clock = &clock;
  options.random = [] { return 0.0; };  // no wait before another attempt
  options.stall_timeout = milliseconds(100);
  client = Open(options);
  const auto response = client->Fetch({.url = server.url() + "/"});
  release.count_down();
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->body, "awake");
}

TEST(HttpClient, SilentServerIsDeadlineExceededInTheEnd) {
  std::latch release(1);
  TestHttpServer server([&](const TestHttpRequest&) {
    release.wait();
    return Answer(200);
  });
  HttpClientOptions options = Quick();
  options.stall_timeout = milliseconds(50);
  options.retry.max_attempts = 2;
  auto client = Open(options);
  const auto response = client->Fetch({.url = server.url() + "/"});
  release.count_down();
  EXPECT_TRUE(response.status().Is(Code::kDeadlineExceeded)) << response.status().ToString();
}

TEST(HttpClient, AnAnswerThatNeverEndsIsGivenUp) {
  ManualClock clock;
  std::optional<HttpStream> answer;
  std::latch asked(1);
  auto server = HttpServer::Start({.listen = "127.0.0.1:0"},
                                  {{.method = "GET",
                                    .pattern = "/",
                                    .handler = [&](const ServerRequest&, const HttpReply& reply) {
                                      answer = reply.Stream(200, "text/plain");
                                      asked.count_down();
                                    }}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  std::atomic<int> pieces = 0;
  const std::jthread writer([&] {
    asked.wait();
    // Each piece comes in time, by the clock, and there is always one more.
    while (answer->Write("x")) {
      ++pieces;
      clock.Advance(milliseconds(100));
      Clock::System()->Sleep(milliseconds(1));
    }
  });
  HttpClientOptions options = Quick();
  options.clock = &clock;
  options.stall_timeout = seconds(10);
  options.attempt_timeout = seconds(30);
  options.retry.max_attempts = 1;
  const auto response = Open(options)->Fetch({.url = (*server)->url() + "/"});
  EXPECT_TRUE(response.status().Is(Code::kDeadlineExceeded)) << response.status().ToString();
  EXPECT_THAT(response.status().ToString(), HasSubstr("within 30 s"));
  EXPECT_GT(pieces, 100) << "it was not silent";
}

TEST(HttpClient, APatientRequestIsGivenItsTime) {
  ManualClock clock;
  std::unique_ptr<HttpClient> client;
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest& request) {
    if (request.target == "/other") return Answer(200);
    if (++requests == 1) {
      clock.Advance(seconds(90));
      // Its end shows that the client has looked at the clock since.
      EXPECT_TRUE(client->Fetch({.url = server.url() + "/other"}).ok());
    }
    return Answer(200);
  });
  HttpClientOptions options = Quick();
  options.clock = &clock;
  options.stall_timeout = seconds(60);
  client = Open(options);
  ASSERT_TRUE(client->Fetch({.url = server.url() + "/", .patience = seconds(100)}).ok());
  EXPECT_EQ(requests, 1) << "not given up, not sent again";
}

TEST(HttpClient, KeepsToItsConnections) {
  TestHttpServer server([&](const TestHttpRequest& request) { return Answer(200, request.body); });
  HttpClientOptions options = Quick();
  options.connections = 3;
  auto client = Open(options);
  constexpr int kCalls = 60;
  std::latch done(kCalls);
  std::atomic<int> good = 0;
  for (int i = 0; i < kCalls; ++i) {
    HttpCall call;
    call.prepare = [&](int) -> Result<HttpRequest> {
      return HttpRequest{.url = server.url() + "/"};
    };
    call.done = [&](Result<HttpResponse> response) {
      if (response.ok() && response->status == 200) ++good;
      done.count_down();
    };
    client->Start(std::move(call));
  }
  done.wait();
  EXPECT_EQ(good, kCalls);
  EXPECT_LE(server.most_open(), 3);
  EXPECT_LE(server.connections(), 3) << "they are used again";
}

TEST(HttpClient, CancelEndsACallUnderWayOrWaiting) {
  std::latch release(1);
  std::latch arrived(1);
  TestHttpServer server([&](const TestHttpRequest&) {
    arrived.count_down();
    release.wait();
    return Answer(200);
  });
  HttpClientOptions options = Quick();
  options.connections = 1;
  auto client = Open(options);
  std::latch ended(2);
  std::atomic<int> cancelled = 0;
  std::vector<HttpClient::CallId> ids;
  for (int i = 0; i < 2; ++i) {
    HttpCall call;
    call.prepare = [&](int) -> Result<HttpRequest> {
      return HttpRequest{.url = server.url() + "/"};
    };
    call.done = [&](Result<HttpResponse> response) {
      if (response.status().Is(Code::kCancelled)) ++cancelled;
      ended.count_down();
    };
    ids.push_back(client->Start(std::move(call)));
  }
  arrived.wait();
  for (const HttpClient::CallId id : ids) client->Cancel(id);
  client->Cancel(12345);
  ended.wait();
  EXPECT_EQ(cancelled, 2);
  release.count_down();
}

TEST(HttpClient, AllCallsCanBeCancelledAndThoseToComeToo) {
  std::latch release(1);
  std::latch arrived(1);
  TestHttpServer server([&](const TestHttpRequest&) {
    arrived.count_down();
    release.wait();
    return Answer(200);
  });
  HttpClientOptions options = Quick();
  options.connections = 1;
  auto client = Open(options);
  std::latch ended(2);
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 2; ++i) {  // one is under way, the other waits
    HttpCall call;
    call.prepare = [&](int) -> Result<HttpRequest> {
      return HttpRequest{.url = server.url() + "/"};
    };
    call.done = [&](Result<HttpResponse> response) {
      if (response.status().Is(Code::kCancelled)) ++cancelled;
      ended.count_down();
    };
    client->Start(std::move(call));
  }
  arrived.wait();
  client->CancelAll();
  ended.wait();
  EXPECT_EQ(cancelled, 2);
  EXPECT_TRUE(client->Fetch(HttpRequest{.url = server.url() + "/"}).status().Is(Code::kCancelled));
  release.count_down();
}

TEST(HttpClient, DestructionCancelsWhatIsUnderWay) {
  std::latch release(1);
  TestHttpServer server([&](const TestHttpRequest&) {
    release.wait();
    return Answer(200);
  });
  std::atomic<int> cancelled = 0;
  {
    HttpClientOptions options = Quick();
    options.connections = 2;
    auto client = Open(options);
    for (int i = 0; i < 4; ++i) {
      HttpCall call;
      call.prepare = [&](int) -> Result<HttpRequest> {
        return HttpRequest{.url = server.url() + "/"};
      };
      call.done = [&](Result<HttpResponse> response) {
        if (response.status().Is(Code::kCancelled)) ++cancelled;
      };
      client->Start(std::move(call));
    }
  }
  EXPECT_EQ(cancelled, 4);
  release.count_down();
}

/// Moves on by itself, a second per look, so that waits of minutes pass at once.
class HurryingClock final : public Clock {
 public:
  Duration Now() override { return nanoseconds(now_ += nanoseconds(seconds(1)).count()); }
  std::int64_t WallNanos() override { return Clock::System()->WallNanos(); }
  void Sleep(Duration) override {}

 private:
  std::atomic<std::int64_t> now_{0};
};

TEST(HttpClient, WaitsBetweenAttemptsByThePassedInClock) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) {
    return ++requests < 3 ? Answer(503, "", {{"Retry-After", "120"}}) : Answer(200);
  });
  HurryingClock clock;
  HttpClientOptions options;
  options.retry = {.max_attempts = 3, .first_wait = seconds(60), .longest_wait = seconds(120)};
  options.random = [] { return 1.0; };
  options.clock = &clock;
  options.stall_timeout = seconds(100'000);
  auto client = Open(options);
  const auto response = client->Fetch({.url = server.url() + "/"});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 200);
  EXPECT_GE(clock.Now(), seconds(240));
}

TEST(HttpClient, KeepsToItsRateOfUploads) {
  TestHttpServer server([](const TestHttpRequest&) { return Answer(200); });
  HttpClientOptions options = Quick();
  options.send_bytes_per_second = 4 << 20;
  auto client = Open(options);
  const std::string body(256 << 10, 'x');
  const nanoseconds begin = Clock::System()->Now();
  std::latch done(9);
  for (int i = 0; i < 9; ++i) {
    HttpCall call;
    call.prepare = [&](int) -> Result<HttpRequest> {
      return HttpRequest{.method = "PUT", .url = server.url() + "/", .body = AsBytes(body)};
    };
    call.done = [&](const Result<HttpResponse>&) { done.count_down(); };
    client->Start(std::move(call));
  }
  done.wait();
  // Nine bodies of 1/16 s each; the first goes at once.
  EXPECT_GE(Clock::System()->Now() - begin, milliseconds(490));
}

TEST(HttpClient, BodiesThatAreSentAgainCountForTheRate) {
  std::atomic<int> requests = 0;
  TestHttpServer server([&](const TestHttpRequest&) { return Answer(++requests < 3 ? 503 : 200); });
  HttpClientOptions options = Quick();
  options.send_bytes_per_second = 4 << 20;
  auto client = Open(options);
  const std::string body(256 << 10, 'x');
  HttpCall call;
  std::vector<nanoseconds> begun;  // attempts
  call.prepare = [&](int attempt) -> Result<HttpRequest> {
    begun.resize(static_cast<std::size_t>(attempt));
    begun.back() = Clock::System()->Now();  // asked again when its time has come
    return HttpRequest{.method = "PUT", .url = server.url() + "/", .body = AsBytes(body)};
  };
  const auto response = client->Fetch(std::move(call));
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  ASSERT_EQ(begun.size(), 3u);
  EXPECT_GE(begun[2] - begun[0], milliseconds(124)) << "two bodies of 1/16 s each before it";
}

/// Sets a variable of the environment for a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST(HttpClient, ProxiesAreLeftOutWhereToldSo) {
  TestHttpServer proxy([](const TestHttpRequest&) { return Answer(200, "proxy"); });
  TestHttpServer server([](const TestHttpRequest&) { return Answer(200, "server"); });
  const ScopedVariable variable("http_proxy", proxy.url());
  EXPECT_EQ(Open()->Fetch({.url = server.url() + "/"})->body, "proxy");
  HttpClientOptions options = Quick();
  options.proxies = false;
  EXPECT_EQ(Open(options)->Fetch({.url = server.url() + "/"})->body, "server");
}

TEST(HttpClient, RefusesBadOptions) {
  EXPECT_FALSE(HttpClient::Open({.connections = 0}).ok());
  EXPECT_FALSE(HttpClient::Open({.stall_timeout = seconds(0)}).ok());
  EXPECT_FALSE(HttpClient::Open({.retry = {.max_attempts = 0}}).ok());
  const auto no_file = HttpClient::Open({.ca_bundle = "/nonexistent/ca.pem"});
  EXPECT_TRUE(no_file.status().Is(Code::kInvalidArgument));
  EXPECT_THAT(no_file.status().ToString(), HasSubstr("/nonexistent/ca.pem"));
}

TEST(HttpClient, ForkedCopyFailsCleanly) {
  TestHttpServer server([](const TestHttpRequest&) { return Answer(200); });
  auto client = Open();
  ASSERT_TRUE(client->Fetch({.url = server.url() + "/"}).ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto response = client->Fetch({.url = server.url() + "/"});
    const bool refused = response.status().Is(Code::kFailedPrecondition);
    client.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->Fetch({.url = server.url() + "/"}).ok()) << "the parent's goes on";
}

}  // namespace
}  // namespace cairn

#include "master/log_followers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catalog/catalog.h"
#include "net/http_client.h"
#include "storage/local/temp_directory.h"

namespace cairn::master {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

/// Followers of a real log, asked over HTTP. How the trial does is the test's to say.
class LogFollowersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_ = Catalog::Open({.url = "sqlite:" + (directory_ / "cairn.db")}).value();
    followers_ = std::make_unique<LogFollowers>(LogFollowersOptions{
        .logs = &catalog_->logs(), .ended = [this](const std::string&) { return ended_(); }});
    followers_->Start();
    HttpRoute route{.method = "GET", .pattern = "/log", .handler = nullptr, .authorize = nullptr};
    route.handler = [this](const ServerRequest&, const HttpReply& reply) {
      followers_->Follow(reply, query_, [] { return true; });
    };
    std::vector<HttpRoute> routes;
    routes.push_back(std::move(route));
    server_ = HttpServer::Start({}, std::move(routes)).value();
    client_ =
        HttpClient::Open({.stall_timeout = std::chrono::seconds(20), .retry = {.max_attempts = 1}})
            .value();
  }
  void TearDown() override {
    followers_->Stop();
    server_->Stop();
  }

  /// Each line is a stretch of its own.
  void Write(int count, const std::string& text) {
    std::vector<LogBatch> batches;
    for (int i = 0; i < count; ++i, ++written_) {
      batches.push_back({.trial = "1",
                         .run = 1,
                         .from = written_,
                         .next = written_ + 1,
                         .lines = {{.time = 100, .level = LineLevel::kInfo, .text = text}}});
    }
    ASSERT_TRUE(catalog_->logs().Append(batches).ok());
  }
  /// The whole stream, to its end.
  std::string Read() {
    const auto answer =
        client_->Fetch(HttpRequest{.method = "GET", .url = server_->url() + "/log"});
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return answer.ok() ? answer->body : "";
  }

  TempDirectory directory_;
  std::unique_ptr<Catalog> catalog_;
  LogQuery query_{.trial = "1"};
  std::function<std::string()> ended_;
  std::uint64_t written_ = 0;
  std::unique_ptr<LogFollowers> followers_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpClient> client_;
};

TEST_F(LogFollowersTest, WhatIsWrittenWhileTheLastLinesAreLookedForComesBeforeTheEnd) {
  Write(1, "the needle");
  Write(40, "hay");
  query_ = {.trial = "1", .text = "the", .tail = true, .limit = 10, .max_blocks = 8};
  int asked = 0;
  ended_ = [&]() -> std::string {
    // The first stretch was looked at when the trial writes its last line and ends.
    if (++asked == 2) Write(1, "the end");
    return asked > 1 ? "COMPLETED" : "";
  };
  const std::string log = Read();
  EXPECT_THAT(log, HasSubstr("the needle"));
  EXPECT_THAT(log, HasSubstr("the end"));
  EXPECT_LT(log.find("the needle"), log.find("the end"));
  EXPECT_THAT(log, EndsWith("event: end\ndata: {\"state\":\"COMPLETED\"}\n\n"));
}

TEST_F(LogFollowersTest, TheEndComesAlsoWhileAnotherTrialWritesAllTheTime) {
  Write(1, "a line");
  std::atomic<int> asked = 0;
  ended_ = [&] { return std::string(++asked > 1 ? "COMPLETED" : ""); };
  std::atomic<bool> silent = false;
  std::jthread other([&](const std::stop_token& stop) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!stop.stop_requested() && std::chrono::steady_clock::now() < until) {
      followers_->OnChange("2");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    silent = !stop.stop_requested();
  });
  const std::string log = Read();
  EXPECT_FALSE(silent) << "only then";
  EXPECT_THAT(log, HasSubstr("a line"));
  EXPECT_THAT(log, EndsWith("event: end\ndata: {\"state\":\"COMPLETED\"}\n\n"));
}

}  // namespace
}  // namespace cairn::master

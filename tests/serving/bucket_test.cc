// A follower of a repository in a bucket of a real S3 server, with a proxy in between that fails:
// what passes refuses nothing, whatever it looks like and however long it takes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/manual_clock.h"
#include "net/test_http_server.h"
#include "serving/test_follower.h"
#include "storage/s3/test_s3_objects.h"
#include "storage/s3/test_s3_server.h"

namespace cairn::serving {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

enum class Fault { kHangUp, kCutAnswer, kHalfARange, kInternalError, kSlowDown, kForbidden };
constexpr Fault kFaults[] = {Fault::kHangUp,        Fault::kCutAnswer, Fault::kHalfARange,
                             Fault::kInternalError, Fault::kSlowDown,  Fault::kForbidden};
constexpr const char* kFaultNames[] = {"HangUp",        "CutAnswer", "HalfARange",
                                       "InternalError", "SlowDown",  "Forbidden"};

class FollowerOfABucket : public FollowerTest {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    SetLogSink([](LogLevel, std::string_view) {});
    url_ = "s3://" + server_->NewBucket() + "/run";
    store_ = server_->Open(url_);
    proxy_ = std::make_unique<TestHttpServer>(
        [this](const TestHttpRequest& request) { return Pass(request); });
  }
  void TearDown() override {
    follower_ = nullptr;
    proxy_ = nullptr;
    SetLogSink(nullptr);
  }

  /// A job that does not go through the proxy.
  std::unique_ptr<TestWriter> Writer() {
    // So few checkpoints that a look stays as long as it is.
    return std::make_unique<TestWriter>(
        url_, TestWriter::Options{.keep_last = 1, .store = server_->Open(url_)});
  }

  /// Time stands still for the follower but for what a test says. Each request is sent once: what
  /// the client itself tries again is no fault to whoever uses it.
  void FollowBucket() {
    S3StoreOptions options = server_->Options(url_, proxy_->port());
    options.environment.retry.max_attempts = 1;
    options.environment.clock = &client_clock_;
    options.environment.stall_timeout = std::chrono::milliseconds(300);  // of that clock
    Follow({.repository = url_,
            .clock = &clock_,
            .open = [this, options]() -> Result<std::unique_ptr<Store>> {
              auto store = S3Store::Open(options);
              if (!store.ok()) return store.status();
              followed_ = store->get();
              return std::unique_ptr<Store>(*std::move(store));
            }});
  }

  /// Of the requests that can fail so, those with these numbers from now on do.
  void Fail(Fault fault, int from, int to) {
    const std::lock_guard lock(proxy_mutex_);
    requests_ = 0;
    failed_ = 0;
    fault_ = fault;
    from_ = from;
    to_ = to;
  }
  /// How many did since then, with all others answered.
  int EndFaults() {
    const std::lock_guard lock(proxy_mutex_);
    from_ = to_ = 0;
    return failed_;
  }

  std::string Problems() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const UpdateReport& report : reports_) {
      if (report.kind != Kind::kApplied) all += report.message + "\n";
    }
    return all;
  }

  static constexpr int kAll = 1'000'000;
  TestS3Server* server_ = nullptr;
  std::string url_;
  std::unique_ptr<S3Store> store_;  // not through the proxy
  ManualClock clock_;
  HeldClock client_clock_;
  std::atomic<S3Store*> followed_{nullptr};
  /// What is asked about each request first; true: it was seen to.
  std::function<bool(const TestHttpRequest&)> hold_;

 private:
  TestHttpReply Pass(const TestHttpRequest& request) {
    if (hold_ && hold_(request)) return {.close = true};
    const std::optional<Fault> fault = Next(request);
    if (!fault) return ForwardTo(server_->port(), request);
    switch (*fault) {
      case Fault::kHangUp:
        return {.close = true};
      case Fault::kCutAnswer: {
        TestHttpReply reply = ForwardTo(server_->port(), request);
        reply.bytes.resize(reply.bytes.size() / 2);
        reply.close = true;
        return reply;
      }
      case Fault::kHalfARange:
        return Halved(request, ForwardTo(server_->port(), request));
      case Fault::kInternalError:
        return Answer(500, "<Error><Code>InternalError</Code></Error>");
      case Fault::kSlowDown:
        return Answer(503, "<Error><Code>SlowDown</Code></Error>");
      case Fault::kForbidden:
        return Answer(403, "<Error><Code>AccessDenied</Code></Error>");
    }
    return {};
  }
  std::optional<Fault> Next(const TestHttpRequest& request) {
    const std::lock_guard lock(proxy_mutex_);
    if (fault_ == Fault::kHalfARange && request.Header("range").empty()) return std::nullopt;
    const int number = requests_++;
    if (number < from_ || number >= to_) return std::nullopt;
    ++failed_;
    return fault_;
  }

  std::mutex proxy_mutex_;
  int requests_ = 0;  // guarded by it, like the others
  int failed_ = 0;
  int from_ = 0;
  int to_ = 0;
  Fault fault_{};
  std::unique_ptr<TestHttpServer> proxy_;  // last: its threads use the rest
};

class PassingFaultsOfABucket : public FollowerOfABucket,
                               public ::testing::WithParamInterface<Fault> {};

TEST_P(PassingFaultsOfABucket, OfAnyRequestRefuseNothing) {
  const auto writer = Writer();
  writer->Set({1, 2}, 1).Full(1);
  FollowBucket();
  ASSERT_EQ(LookInTurn().at(-2), 1) << Problems();
  std::int64_t step = 1;
  int failures = 0;
  int late = 0;
  for (int at = 0;; at += 2) {
    ++step;
    writer->Set({1, 3}, static_cast<float>(step));
    step % 3 == 0 ? writer->Full(step) : writer->Increment(step);
    Fail(GetParam(), at, at + 2);
    const RowMap before = Served();
    const RowMap during = LookInTurn();
    const int failed = EndFaults();
    ASSERT_TRUE(during == before || during.at(-2) == static_cast<float>(step)) << at;
    failures += failed;
    late += during == before ? 1 : 0;
    clock_.Advance(seconds(30));
    const RowMap after = LookInTurn();
    ASSERT_EQ(after.at(-2), static_cast<float>(step)) << at << ": " << Problems();
    ASSERT_EQ(after.at(1), static_cast<float>(step)) << at;
    if (failed == 0) break;
    ASSERT_LT(at, 400) << "a look has an end";
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(late, 0) << "some requests are needed for an update";
  EXPECT_EQ(Count(Kind::kRefused), 0) << Problems();
  EXPECT_EQ(follower_->stats().refused, 0u);
  EXPECT_TRUE(follower_->stats().reachable);
}

TEST_P(PassingFaultsOfABucket, ThatLastRefuseNothing) {
  const auto writer = Writer();
  writer->Set({1, 2}, 1).Full(1);
  FollowBucket();
  ASSERT_EQ(LookInTurn().at(-2), 1) << Problems();
  writer->Set({1}, 2).Increment(2);
  Fail(GetParam(), 0, kAll);
  for (int look = 0; look < 6; ++look) {
    EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}, {2, 1}})) << "the old version stays";
    EXPECT_FALSE(follower_->stats().reachable);
    clock_.Advance(seconds(30));
  }
  EXPECT_GE(EndFaults(), 6) << "each look tried again";
  EXPECT_EQ(Count(Kind::kUnreachable), 1) << "and it was told once: " << Problems();
  EXPECT_EQ(LookInTurn(), (RowMap{{-2, 2}, {1, 2}, {2, 1}})) << Problems();
  EXPECT_EQ(Count(Kind::kRefused), 0) << Problems();
  EXPECT_TRUE(follower_->stats().reachable);
}

INSTANTIATE_TEST_SUITE_P(Faults, PassingFaultsOfABucket, ::testing::ValuesIn(kFaults),
                         [](const auto& fault) {
                           return kFaultNames[static_cast<std::size_t>(fault.param)];
                         });

/// A request that is never answered: the client gives it up, and the follower goes on later.
TEST_F(FollowerOfABucket, SilenceRefusesNothing) {
  const auto writer = Writer();
  writer->Set({1, 2}, 1).Full(1);
  std::atomic<const char*> silent = nullptr;  // what a request is for that is not answered
  std::shared_ptr<std::latch> given_up;
  hold_ = [&](const TestHttpRequest& request) {
    const char* const about = silent;
    if (about == nullptr || request.target.find(about) == std::string::npos) return false;
    const std::shared_ptr<std::latch> until = given_up;
    silent = nullptr;
    // Its end shows that the client has seen the last byte of this request move.
    EXPECT_TRUE(followed_.load()->Stat("nothing").status().Is(Code::kNotFound));
    client_clock_.Advance(seconds(1));
    until->wait();
    return true;
  };
  FollowBucket();
  ASSERT_EQ(LookInTurn().at(-2), 1) << Problems();
  float step = 1;
  for (const char* about : {"generations", "manifest.json", "__lookup_table__", "__model__"}) {
    SCOPED_TRACE(about);
    const float before = step++;
    writer->Set({1}, step).Increment(static_cast<std::int64_t>(step));
    given_up = std::make_shared<std::latch>(1);
    silent = about;
    EXPECT_EQ(LookInTurn().at(-2), before);
    EXPECT_EQ(silent.load(), nullptr) << "there was such a request";
    EXPECT_FALSE(follower_->stats().reachable);
    given_up->count_down();
    clock_.Advance(seconds(30));
    EXPECT_EQ(LookInTurn().at(-2), step) << Problems();
  }
  EXPECT_EQ(Count(Kind::kRefused), 0) << Problems();
}

TEST_F(FollowerOfABucket, WhoeverEndsDoesNotWaitForASilentServer) {
  const auto writer = Writer();
  writer->Set({1, 2}, 1).Full(1);
  std::latch asked(1);
  std::latch released(1);
  std::once_flag once;
  hold_ = [&](const TestHttpRequest&) {
    std::call_once(once, [&] { asked.count_down(); });
    released.wait();
    return true;
  };
  FollowBucket();  // the client's clock stands still: it would wait for ever
  follower_->Start();
  asked.wait();
  const auto ended = std::async(std::launch::async, [this] { follower_ = nullptr; });
  const bool soon = ended.wait_for(seconds(20)) == std::future_status::ready;
  released.count_down();
  ended.wait();
  EXPECT_TRUE(soon);
  EXPECT_TRUE(reports_.empty()) << "that it ended is no news of the repository: " << Problems();
}

TEST_F(FollowerOfABucket, DamageInTheBucketIsFinal) {
  const auto writer = Writer();
  writer->Set({1, 2}, 1).Full(1);
  FollowBucket();
  ASSERT_EQ(LookInTurn().at(-2), 1) << Problems();
  const CheckpointInfo bad = writer->Set({1}, 2).Increment(2);
  const std::string name = RowsOf(bad).substr(url_.size() + 1);
  std::string bytes = store_->Get(name, kNoLimit).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_TRUE(store_->Put(name, bytes).ok());
  for (int look = 0; look < 4; ++look) {
    EXPECT_EQ(LookInTurn(), (RowMap{{-2, 1}, {1, 1}, {2, 1}}));
    clock_.Advance(seconds(30));
  }
  EXPECT_EQ(Count(Kind::kRefused), 1) << Problems();
  EXPECT_THAT(Problems(), HasSubstr("differ from their checksum"));
  writer->Set({1}, 3).Full(3);
  EXPECT_EQ(LookInTurn().at(-2), 3) << "it goes on with the next good one";
}

}  // namespace
}  // namespace cairn::serving

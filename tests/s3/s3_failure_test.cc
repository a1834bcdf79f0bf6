// The engine, a proxy that fails, and a real S3 server. First each request of a job fails once, and
// the job must not notice. Then the machine ends at a request: all that was acknowledged must be
// there for the next one.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <mutex>
#include <string>

#include "base/log.h"
#include "net/test_http_server.h"
#include "tests/s3/s3_job.h"

namespace cairn::s3 {
namespace {

class S3Failures : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    SetLogSink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { SetLogSink(nullptr); }

  Result<std::unique_ptr<CheckpointManager>> Open(const std::string& url, std::uint16_t port,
                                                  int attempts) {
    S3StoreOptions options = server_->Options(url, port);
    options.environment.retry.max_attempts = attempts;
    ManagerOptions manager;
    manager.directory = url;
    manager.retention.keep_last = 2;
    return OpenManager(std::move(manager), EnvironmentOn(std::move(options)));
  }

  /// Opens, restores and saves three steps; `acknowledged` follows.
  Status RunJob(const std::string& url, std::uint16_t port, int attempts,
                std::atomic<std::int64_t>* acknowledged) {
    auto manager = Open(url, port, attempts);
    if (!manager.ok()) return manager.status();
    auto restored = RestoreLatest(manager->get());
    if (!restored.ok()) return restored.status();
    for (std::int64_t step = *restored + 1; step <= *restored + 3; ++step) {
      auto saved = SaveStep(manager->get(), step);
      if (!saved.ok()) return saved.status();
      *acknowledged = step;
    }
    return (*manager)->Close();
  }

  /// A new opening finds everything that was acknowledged, and can go on.
  void CheckRepository(const std::string& url, std::int64_t acknowledged) {
    auto manager = Open(url, 0, 6);
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    const auto restored = RestoreLatest(manager->get());
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_GE(*restored, acknowledged);
    const auto saved = SaveStep(manager->get(), *restored + 1);
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    ASSERT_TRUE((*manager)->Close().ok());
    const auto store = server_->Open(url);
    EXPECT_TRUE(store->ListUnfinished("")->empty());
  }

  TestS3Server* server_ = nullptr;
};

enum class Fault : int { kDrop, kLoseAnswer, kCutAnswer, kInternalError, kSlowDown };
constexpr int kFaults = 5;

TestHttpReply Misbehave(Fault fault, std::uint16_t port, const TestHttpRequest& request) {
  switch (fault) {
    case Fault::kDrop:
      return {.close = true};
    case Fault::kLoseAnswer:
      ForwardTo(port, request);
      return {.close = true};
    case Fault::kCutAnswer: {
      TestHttpReply reply = ForwardTo(port, request);
      reply.bytes.resize(reply.bytes.size() / 2);
      return reply;
    }
    case Fault::kInternalError:
      return Answer(500, "<Error><Code>InternalError</Code></Error>");
    case Fault::kSlowDown:
      return Answer(503, "<Error><Code>SlowDown</Code></Error>");
  }
  return {};
}

/// In `make torture` every request, in `make test` every so many.
int Stride(int usual) { return std::getenv("CAIRN_TORTURE_SECONDS") != nullptr ? 1 : usual; }

TEST_F(S3Failures, JobDoesNotNoticeARequestThatFailsOnce) {
  const std::string bucket = server_->NewBucket();
  int runs = 0;
  for (int failing = 1;; failing += Stride(7)) {
    const std::string url = "s3://" + bucket + "/" + std::to_string(failing);
    const Fault fault = static_cast<Fault>(runs++ % kFaults);
    SCOPED_TRACE("request " + std::to_string(failing) + ", fault " +
                 std::to_string(static_cast<int>(fault)));
    std::atomic<int> requests = 0;
    TestHttpServer proxy([&](const TestHttpRequest& request) {
      return ++requests == failing ? Misbehave(fault, server_->port(), request)
                                   : ForwardTo(server_->port(), request);
    });
    std::atomic<std::int64_t> acknowledged = -1;
    const Status status = RunJob(url, proxy.port(), 6, &acknowledged);
    ASSERT_TRUE(status.ok()) << status.ToString();
    CheckRepository(url, acknowledged);
    if (HasFailure() || requests < failing) break;
  }
  std::printf("%d runs with one failed request each\n", runs);
}

TEST_F(S3Failures, NothingAcknowledgedIsLostWhenTheMachineEndsAtARequest) {
  const std::string bucket = server_->NewBucket();
  int crashes = 0;
  for (int last = 1;; last += Stride(5)) {
    const std::string url = "s3://" + bucket + "/" + std::to_string(last);
    // Whether the last request was still carried out.
    const bool arrives = crashes++ % 2 == 0;
    SCOPED_TRACE("the machine ended at request " + std::to_string(last));
    std::atomic<int> requests = 0;
    TestHttpServer proxy([&](const TestHttpRequest& request) -> TestHttpReply {
      const int number = ++requests;
      if (number < last) return ForwardTo(server_->port(), request);
      if (number == last && arrives) ForwardTo(server_->port(), request);
      return {.close = true};
    });
    std::atomic<std::int64_t> acknowledged = -1;
    const Status status = RunJob(url, proxy.port(), 1, &acknowledged);
    CheckRepository(url, acknowledged);
    if (HasFailure() || status.ok()) break;
  }
  std::printf("%d ends of the machine\n", crashes);
}

TEST_F(S3Failures, ManifestThatArrivesAfterItWasGivenUpIsWholeOrDoesNotCount) {
  const std::string url = "s3://" + server_->NewBucket() + "/a";
  std::atomic<bool> hold = false;
  std::latch release(1);
  std::latch arrived(1);
  auto proxy = std::make_unique<TestHttpServer>([&](const TestHttpRequest& request) {
    const bool manifest = request.method == "PUT" && request.target.ends_with("/manifest.json");
    if (!manifest || !hold) return ForwardTo(server_->port(), request);
    release.wait();
    TestHttpReply reply = ForwardTo(server_->port(), request);
    arrived.count_down();
    return reply;
  });
  S3StoreOptions options = server_->Options(url, proxy->port());
  options.environment.retry.max_attempts = 1;
  options.environment.stall_timeout = std::chrono::milliseconds(300);
  auto manager = OpenManager({.directory = url}, EnvironmentOn(options));
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  ASSERT_TRUE(SaveStep(manager->get(), 1).ok());
  hold = true;
  const auto saved = SaveStep(manager->get(), 2);
  EXPECT_FALSE(saved.ok()) << "no answer came";
  release.count_down();
  arrived.wait();
  // The writer goes on as if nothing were, and so does the next one.
  hold = false;
  auto reader =
      OpenManager({.directory = url, .read_only = true}, EnvironmentOn(server_->Options(url)));
  ASSERT_TRUE(reader.ok());
  const auto restored = RestoreLatest(reader->get());
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(*restored, 2) << "it counts, whole";
  ASSERT_TRUE(SaveStep(manager->get(), 3).ok());
  EXPECT_EQ(*RestoreLatest(reader->get()), 3);
}

TEST_F(S3Failures, WrongKeysAreAClearErrorOfTheOpening) {
  const std::string bucket = server_->NewBucket();
  S3StoreOptions options = server_->Options("s3://" + bucket + "/a");
  auto variables = server_->Variables();
  variables["AWS_SECRET_ACCESS_KEY"] = "wrong";
  options.environment.variables = VariablesOf(variables);
  auto manager = OpenManager({.directory = options.url}, EnvironmentOn(options));
  EXPECT_TRUE(manager.status().Is(Code::kPermissionDenied)) << manager.status().ToString();
}

}  // namespace
}  // namespace cairn::s3

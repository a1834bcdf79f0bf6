#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/log.h"
#include "net/test_http_server.h"
#include "tests/remote/job.h"

/// The engine, a proxy that fails, and a real server: what the tests of each kind of server share.
namespace cairn::remote {

enum class Fault : int { kDrop, kLoseAnswer, kCutAnswer, kInternalError, kSlowDown };
inline constexpr int kFaults = 5;

class FailingRequests : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { SetLogSink(nullptr); }

  /// A manager over a store that goes through a proxy (0: straight to the server) and tries each
  /// request so often.
  virtual Result<std::unique_ptr<CheckpointManager>> Open(const std::string& url,
                                                          std::uint16_t proxy, int attempts) = 0;
  /// What the server answers to a request that went to the proxy at that port.
  virtual TestHttpReply Forward(const TestHttpRequest& request, std::uint16_t proxy) = 0;
  /// A repository of its own.
  virtual std::string FreshUrl() = 0;
  /// Called when a repository was checked.
  virtual void CheckLeftovers(const std::string& /*url*/) {}

  static ManagerOptions Options(const std::string& url) {
    ManagerOptions options;
    options.directory = url;
    options.retention.keep_last = 2;
    return options;
  }

  /// In `make torture` every request, in `make test` every so many.
  static int Stride(int usual) {
    return std::getenv("CAIRN_TORTURE_SECONDS") != nullptr ? 1 : usual;
  }

  /// Each request of a job fails once, and the job must not notice.
  void FailEachRequestOnce(int stride) {
    int runs = 0;
    for (int failing = 1;; failing += Stride(stride)) {
      const std::string url = FreshUrl();
      const Fault fault = static_cast<Fault>(runs++ % kFaults);
      SCOPED_TRACE("request " + std::to_string(failing) + ", fault " +
                   std::to_string(static_cast<int>(fault)));
      std::atomic<int> requests = 0;
      std::atomic<std::uint16_t> port = 0;
      TestHttpServer proxy([&](const TestHttpRequest& request) {
        return ++requests == failing ? Misbehave(fault, request, port) : Forward(request, port);
      });
      port = proxy.port();
      std::atomic<std::int64_t> acknowledged = -1;
      const Status status = RunJob(url, proxy.port(), 6, &acknowledged);
      ASSERT_TRUE(status.ok()) << status.ToString();
      CheckRepository(url, acknowledged);
      if (HasFailure() || requests < failing) break;
    }
    std::printf("%d runs with one failed request each\n", runs);
  }

  /// The machine ends at a request: all that was acknowledged must be there for the next one.
  void EndAtEachRequest(int stride) {
    int crashes = 0;
    for (int last = 1;; last += Stride(stride)) {
      const std::string url = FreshUrl();
      // Whether the last request was still carried out.
      const bool arrives = crashes++ % 2 == 0;
      SCOPED_TRACE("the machine ended at request " + std::to_string(last));
      std::atomic<int> requests = 0;
      std::atomic<std::uint16_t> port = 0;
      TestHttpServer proxy([&](const TestHttpRequest& request) -> TestHttpReply {
        const int number = ++requests;
        if (number < last) return Forward(request, port);
        if (number == last && arrives) Forward(request, port);
        return {.close = true};
      });
      port = proxy.port();
      std::atomic<std::int64_t> acknowledged = -1;
      const Status status = RunJob(url, proxy.port(), 1, &acknowledged);
      CheckRepository(url, acknowledged);
      if (HasFailure() || status.ok()) break;
    }
    std::printf("%d ends of the machine\n", crashes);
  }

 private:
  TestHttpReply Misbehave(Fault fault, const TestHttpRequest& request, std::uint16_t port) {
    switch (fault) {
      case Fault::kDrop:
        return {.close = true};
      case Fault::kLoseAnswer:
        Forward(request, port);
        return {.close = true};
      case Fault::kCutAnswer: {
        TestHttpReply reply = Forward(request, port);
        reply.bytes.resize(reply.bytes.size() / 2);
        reply.close = true;
        return reply;
      }
      case Fault::kInternalError:
        return Answer(500, "<Error><Code>InternalError</Code></Error>");
      case Fault::kSlowDown:
        return Answer(503, "<Error><Code>SlowDown</Code></Error>");
    }
    return {};
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
    CheckLeftovers(url);
  }
};

}  // namespace cairn::remote

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "net/test_http_server.h"
#include "tests/remote/job.h"

/// The engine, a proxy that fails, and a real server: what the tests of each kind of server share.
namespace cairn::remote {

enum class Fault : int { kDrop, kLoseAnswer, kCutAnswer, kInternalError, kSlowDown, kDelay };
inline constexpr int kFaults = 6;

/// A request that its client has given up and that reaches the server all the same: when so many
/// others have come after it, or when it is delivered at last. No clock is involved.
class LateRequest {
 public:
  using Forward = std::function<void(const TestHttpRequest&)>;

  explicit LateRequest(Forward forward) : forward_(std::move(forward)) {}
  void Hold(const TestHttpRequest& request, int until) {
    const std::lock_guard lock(mu_);
    held_ = request;
    until_ = until;
  }
  /// Called before the request of that number is forwarded.
  void Pass(int number) {
    if (const auto request = Take(number)) forward_(*request);
  }
  void Deliver() { Pass(std::numeric_limits<int>::max()); }

 private:
  std::optional<TestHttpRequest> Take(int number) {
    const std::lock_guard lock(mu_);
    if (number < until_) return std::nullopt;
    return std::exchange(held_, std::nullopt);
  }

  const Forward forward_;
  std::mutex mu_;
  std::optional<TestHttpRequest> held_;
  int until_ = 0;
};

class FailingRequests : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { SetLogSink(nullptr); }

  /// A store that goes through a proxy (0: straight to the server) and tries each request so often.
  virtual Result<std::shared_ptr<Store>> OpenStore(const std::string& url, std::uint16_t proxy,
                                                   int attempts) = 0;
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

  Result<std::unique_ptr<CheckpointManager>> Open(const std::string& url, std::uint16_t proxy,
                                                  int attempts) {
    auto store = OpenStore(url, proxy, attempts);
    if (!store.ok()) return store.status();
    Environment env;
    env.store = *std::move(store);
    env.host = "test";
    env.pid = 1;
    return OpenManager(Options(url), std::move(env));
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
      const Fault fault = static_cast<Fault>(runs % kFaults);
      // Behind its own repetition, a save later, and behind all.
      static constexpr int kLate[] = {2, 30, 1'000'000};
      const int until = failing + kLate[runs / kFaults % 3];
      ++runs;
      SCOPED_TRACE("request " + std::to_string(failing) + ", fault " +
                   std::to_string(static_cast<int>(fault)));
      std::atomic<int> requests = 0;
      std::atomic<std::uint16_t> port = 0;
      LateRequest late([&](const TestHttpRequest& request) { Forward(request, port); });
      TestHttpServer proxy([&](const TestHttpRequest& request) {
        const int number = ++requests;
        late.Pass(number);
        if (number != failing) return Forward(request, port);
        if (fault == Fault::kDelay) late.Hold(request, until);
        return Misbehave(fault, request, port);
      });
      port = proxy.port();
      std::atomic<std::int64_t> acknowledged = -1;
      const Status status = RunJob(url, proxy.port(), 6, &acknowledged);
      ASSERT_TRUE(status.ok()) << status.ToString();
      CheckRepository(url, acknowledged, &late);
      if (HasFailure() || requests < failing) break;
    }
    ExpectShared();
    std::printf("%d runs with one failed request each; %d files shared, %d with removed ones\n",
                runs, shared_, shared_with_removed_);
  }

  /// The machine ends at a request: all that was acknowledged must be there for the next one.
  void EndAtEachRequest(int stride) {
    int crashes = 0;
    for (int last = 1;; last += Stride(stride)) {
      const std::string url = FreshUrl();
      // Whether the last request was still carried out, or is when the next machine works already.
      enum class Last { kArrives, kIsLost, kArrivesLate };
      const Last fate = static_cast<Last>(crashes++ % 3);
      SCOPED_TRACE("the machine ended at request " + std::to_string(last) + ", fate " +
                   std::to_string(static_cast<int>(fate)));
      std::atomic<int> requests = 0;
      std::atomic<std::uint16_t> port = 0;
      LateRequest late([&](const TestHttpRequest& request) { Forward(request, port); });
      TestHttpServer proxy([&](const TestHttpRequest& request) -> TestHttpReply {
        const int number = ++requests;
        if (number < last) return Forward(request, port);
        if (number == last && fate == Last::kArrives) Forward(request, port);
        if (number == last && fate == Last::kArrivesLate) {
          late.Hold(request, std::numeric_limits<int>::max());
        }
        return {.close = true};
      });
      port = proxy.port();
      std::atomic<std::int64_t> acknowledged = -1;
      const Status status = RunJob(url, proxy.port(), 1, &acknowledged);
      CheckRepository(url, acknowledged, &late);
      if (HasFailure() || status.ok()) break;
    }
    ExpectShared();
    std::printf("%d ends of the machine; %d files shared, %d with removed ones\n", crashes, shared_,
                shared_with_removed_);
  }

  /// Opens, restores and saves so many steps; `acknowledged` follows.
  Status RunJob(const std::string& url, std::uint16_t port, int attempts,
                std::atomic<std::int64_t>* acknowledged) {
    auto manager = Open(url, port, attempts);
    if (!manager.ok()) return manager.status();
    auto restored = RestoreLatest(manager->get());
    if (!restored.ok()) return restored.status();
    for (std::int64_t step = *restored + 1; step <= *restored + kSavesUntilShared; ++step) {
      auto saved = SaveStep(manager->get(), step);
      if (!saved.ok()) return saved.status();
      *acknowledged = step;
    }
    return (*manager)->Close();
  }

  /// A new opening finds everything that was acknowledged, every kept checkpoint is whole, and it
  /// can go on; when all that the first one made is removed, nothing of it stays. `late` arrives
  /// when the new one has begun.
  void CheckRepository(const std::string& url, std::int64_t acknowledged, LateRequest* late) {
    auto manager = Open(url, 0, 6);
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    const auto restored = RestoreLatest(manager->get());
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_GE(*restored, acknowledged);
    late->Deliver();
    CheckContents(url, *restored);
    for (int save = 1; save <= 2; ++save) {
      const auto saved = SaveStep(manager->get(), *restored + save);
      ASSERT_TRUE(saved.ok()) << saved.status().ToString();
      ASSERT_TRUE((*manager)->WaitAll().ok());  // also for what retention removes
      CheckContents(url, *restored + save);
    }
    ASSERT_TRUE((*manager)->Close().ok());
    manager = Open(url, 0, 6);  // sweeps what came late
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    ASSERT_TRUE((*manager)->Close().ok());
    const auto contents = CheckContents(url, *restored + 2);
    EXPECT_THAT(contents.garbage, ::testing::IsEmpty());
    CheckLeftovers(url);
  }

 private:
  TestHttpReply Misbehave(Fault fault, const TestHttpRequest& request, std::uint16_t port) {
    switch (fault) {
      case Fault::kDrop:
      case Fault::kDelay:
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

  Contents CheckContents(const std::string& url, std::int64_t latest) {
    const auto store = OpenStore(url, 0, 6);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    const auto contents = store.ok() ? VerifyAll(store->get()) : store.status();
    EXPECT_TRUE(contents.ok()) << contents.status().ToString();
    if (!contents.ok()) return {};
    if (latest >= 0) {
      EXPECT_EQ(contents->steps.empty() ? -1 : contents->steps.back(), latest);
    }
    shared_ += contents->shared;
    shared_with_removed_ += contents->shared_with_removed;
    return *contents;
  }

  /// Without this the sweeps would say nothing about references.
  void ExpectShared() {
    EXPECT_GT(shared_, 0);
    EXPECT_GT(shared_with_removed_, 0);
  }

  int shared_ = 0;
  int shared_with_removed_ = 0;
};

}  // namespace cairn::remote

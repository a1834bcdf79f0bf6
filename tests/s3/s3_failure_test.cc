// The engine, a proxy that fails, and a real S3 server. First each request of a job fails once, and
// the job must not notice. Then the machine ends at a request: all that was acknowledged must be
// there for the next one.

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "storage/s3/test_s3_objects.h"
#include "tests/remote/failing_requests.h"
#include "tests/s3/s3_job.h"

namespace cairn::s3 {
namespace {

class S3Failures : public remote::FailingRequests {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    bucket_ = server_->NewBucket();
    FailingRequests::SetUp();
  }

  Result<std::shared_ptr<Store>> OpenStore(const std::string& url, std::uint16_t proxy,
                                           int attempts) override {
    S3StoreOptions options = server_->Options(url, proxy);
    options.environment.retry.max_attempts = attempts;
    auto store = S3Store::Open(std::move(options));
    if (!store.ok()) return store.status();
    return std::shared_ptr<Store>(*std::move(store));
  }
  TestHttpReply Forward(const TestHttpRequest& request, std::uint16_t /*proxy*/) override {
    return ForwardTo(server_->port(), request);
  }
  std::string FreshUrl() override { return "s3://" + bucket_ + "/" + std::to_string(++urls_); }
  void CheckLeftovers(const std::string& url) override {
    EXPECT_TRUE(server_->Open(url)->ListUnfinished("")->empty());
  }

  TestS3Server* server_ = nullptr;
  std::string bucket_;
  int urls_ = 0;
};

TEST_F(S3Failures, JobDoesNotNoticeARequestThatFailsOnce) { FailEachRequestOnce(7); }

TEST_F(S3Failures, NothingAcknowledgedIsLostWhenTheMachineEndsAtARequest) { EndAtEachRequest(5); }

TEST_F(S3Failures, JobDoesNotNoticeErrorsInsideOfSuccesses) {
  // Large enough for an upload in parts at every save; each end of one fails once, every other time
  // after it was done.
  const std::string url = FreshUrl();
  std::mutex mu;
  std::set<std::string> failed;  // by target
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (!SaysSuccessBeforeItKnows(request)) return ForwardTo(server_->port(), request);
    bool first = false;
    bool done = false;
    {
      const std::lock_guard lock(mu);
      first = failed.insert(request.target).second;
      done = failed.size() % 2 == 0;
    }
    if (!first || done) {
      TestHttpReply reply = ForwardTo(server_->port(), request);
      if (!first) return reply;
    }
    return Answer(200, kLateError);
  });
  auto manager = Open(url, proxy.port(), 6);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  std::vector<std::uint64_t> large(1'500'000);  // 12 MB: three parts
  constexpr std::int64_t kSaves = 4;
  for (std::int64_t step = 1; step <= kSaves; ++step) {
    kill::JobState::Fill(&large, static_cast<std::uint64_t>(step));
    SaveRequest request{.step = step};
    request.tensors = {
        {.name = "large", .dtype = DType::kU64, .shape = {large.size()}, .data = large.data()}};
    auto handle = (*manager)->Save(std::move(request));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    const auto saved = handle->Wait();
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  }
  ASSERT_TRUE((*manager)->Close().ok());
  EXPECT_EQ(failed.size(), static_cast<std::size_t>(kSaves));
  const auto contents = remote::VerifyAll(server_->Open(url).get());
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_EQ(contents->steps, (std::vector<std::int64_t>{kSaves - 1, kSaves}));
  CheckLeftovers(url);
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
  options.environment.stall_timeout = std::chrono::seconds(2);  // also for a busy machine
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

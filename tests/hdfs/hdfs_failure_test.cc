// The engine, a proxy that fails, and a real HDFS: requests to the NameNode and, as it is told
// where to go, to the DataNode.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "storage/webhdfs/test_hdfs_server.h"
#include "storage/webhdfs/webhdfs_store.h"
#include "tests/remote/failing_requests.h"

namespace cairn::remote {
namespace {

class HdfsFailures : public FailingRequests {
 protected:
  void SetUp() override {
    auto server = TestHdfsServer::Shared();
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *server;
    FailingRequests::SetUp();
  }

  Result<std::shared_ptr<Store>> OpenStore(const std::string& url, std::uint16_t proxy,
                                           int attempts) override {
    WebHdfsStoreOptions options;
    options.url = url;
    if (proxy != 0) {
      const std::string direct = ":" + std::to_string(server_->http_port()) + "/";
      options.url.replace(url.find(direct), direct.size(), ":" + std::to_string(proxy) + "/");
    }
    options.environment.retry.max_attempts = attempts;
    auto store = WebHdfsStore::Open(std::move(options));
    if (!store.ok()) return store.status();
    return std::shared_ptr<Store>(*std::move(store));
  }

  /// The NameNode says where the DataNode is: the client is sent to the proxy instead.
  TestHttpReply Forward(const TestHttpRequest& request, std::uint16_t proxy) override {
    const bool data = request.target.find("namenoderpcaddress=") != std::string::npos;
    TestHttpReply reply = ForwardTo(data ? server_->data_port() : server_->http_port(), request);
    const std::size_t location = reply.bytes.find("{\"Location\":");
    const std::size_t end = reply.bytes.rfind('}');
    if (location == std::string::npos || end == std::string::npos) return reply;
    std::string body = reply.bytes.substr(location, end + 1 - location);
    const std::string direct = ":" + std::to_string(server_->data_port()) + "/";
    const std::size_t at = body.find(direct);
    if (at == std::string::npos) return reply;
    body.replace(at, direct.size(), ":" + std::to_string(proxy) + "/");
    return Answer(200, body);
  }
  std::string FreshUrl() override { return server_->FreshUrl(); }

  TestHdfsServer* server_ = nullptr;
};

TEST_F(HdfsFailures, JobDoesNotNoticeARequestThatFailsOnce) { FailEachRequestOnce(97); }

TEST_F(HdfsFailures, NothingAcknowledgedIsLostWhenTheMachineEndsAtARequest) {
  EndAtEachRequest(71);
}

/// The mark that says whose a directory is was sent beside the data. When its writer ended between
/// the two, what arrived of the data stayed for ever: no sweep takes what may be a user's.
TEST_F(HdfsFailures, NoDataIsSentBeforeItsDirectoryIsClaimed) {
  std::mutex mu;
  std::condition_variable changed;
  bool data = false;
  int marks = 0;
  std::atomic<std::uint16_t> port = 0;
  TestHttpServer proxy([&](const TestHttpRequest& request) -> TestHttpReply {
    const auto has = [&](std::string_view part) {
      return request.target.find(part) != std::string::npos;
    };
    std::unique_lock lock(mu);
    if (has(".safetensors") && request.method == "PUT") {
      data = true;
      changed.notify_all();
    }
    if (has(".cairn-attempt") && request.method == "PUT") {
      // Long enough for whoever does not wait for the answer.
      ++marks;
      changed.wait_for(lock, std::chrono::seconds(2), [&] { return data; });
      return {.close = true};
    }
    lock.unlock();
    return Forward(request, port);
  });
  port = proxy.port();
  std::atomic<std::int64_t> acknowledged = -1;
  const Status status = RunJob(FreshUrl(), proxy.port(), 1, &acknowledged);
  EXPECT_FALSE(status.ok());
  const std::lock_guard lock(mu);
  EXPECT_GE(marks, 1) << "the mark has another name now";
  EXPECT_FALSE(data);
}

}  // namespace
}  // namespace cairn::remote

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/manual_clock.h"
#include "net/test_http_server.h"
#include "storage/s3/s3_store.h"
#include "storage/s3/test_s3_objects.h"
#include "storage/s3/test_s3_server.h"

// Objects that would have more parts than an upload may have. S3 allows 10,000, these tests a few.

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kGiB = 1u << 30;
constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;

class S3LargeObjects : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    url_ = "s3://" + server_->NewBucket() + "/runs";
    plain_ = server_->Open(url_);
  }

  /// A store whose uploads have few parts, of which each is noted on its way.
  std::unique_ptr<S3Store> Open(std::uint64_t most_parts) {
    proxy_ = std::make_unique<TestHttpServer>([this](const TestHttpRequest& request) {
      const std::size_t at = request.target.find("partNumber=");
      if (at != std::string::npos) {
        const std::lock_guard lock(mu_);
        parts_[std::stoi(request.target.substr(at + 11))] = request.body.size();
        ranges_.emplace_back(request.Header("x-amz-copy-source-range"));
      }
      return ForwardTo(server_->port(), request);
    });
    S3StoreOptions options = server_->Options(url_, proxy_->port());
    options.most_parts = most_parts;
    options.most_copied_at_once = 5 * kMiB;
    return S3Store::Open(options).value();
  }
  std::vector<std::uint64_t> PartSizes() {
    const std::lock_guard lock(mu_);
    std::vector<std::uint64_t> sizes;
    for (const auto& [number, bytes] : parts_) sizes.push_back(bytes);
    return sizes;
  }

  TestS3Server* server_ = nullptr;
  std::string url_;
  std::unique_ptr<S3Store> plain_;
  std::unique_ptr<TestHttpServer> proxy_;
  std::mutex mu_;
  std::map<int, std::uint64_t> parts_;  // sizes, by number
  std::vector<std::string> ranges_;
};

TEST_F(S3LargeObjects, PartsGrowWithTheObject) {
  const auto store = Open(4);
  const std::string at_limit = Pattern(20 * kMiB, 1);
  ASSERT_TRUE(WriteObject(store.get(), "at the limit", at_limit).ok());
  EXPECT_THAT(PartSizes(), ElementsAre(5 * kMiB, 5 * kMiB, 5 * kMiB, 5 * kMiB));
  EXPECT_TRUE(*plain_->Get("at the limit", kNoLimit) == at_limit);
  const std::string over = Pattern(30 * kMiB + 7, 2);
  const Status written = WriteObject(store.get(), "over it", over);
  ASSERT_TRUE(written.ok()) << written.ToString();
  EXPECT_THAT(PartSizes(), ElementsAre(8 * kMiB, 8 * kMiB, 8 * kMiB, 6 * kMiB + 7));
  EXPECT_TRUE(*plain_->Get("over it", kNoLimit) == over);
  EXPECT_THAT(*plain_->ListUnfinished(""), IsEmpty());
}

TEST_F(S3LargeObjects, LargePartsThatArrivedAreNotSentAgain) {
  const std::string over = Pattern(30 * kMiB + 7, 3);
  LeaveUpload(Open(4).get(), "c/large", over, 2);
  EXPECT_THAT(*plain_->ListUnfinished(""), ElementsAre("c/large"));
  const auto store = Open(4);
  parts_.clear();
  const auto kept = ResumeUpload(store.get(), "c/large", over);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(*kept, 2);
  EXPECT_THAT(PartSizes(), ElementsAre(8 * kMiB, 6 * kMiB + 7)) << "only the rest";
  EXPECT_TRUE(*plain_->Get("c/large", kNoLimit) == over);
}

TEST_F(S3LargeObjects, TheServerCopiesInNoMorePartsThanItTakes) {
  const std::string large = Pattern(33 * kMiB, 4);
  ASSERT_TRUE(WriteObject(plain_.get(), "old", large).ok());
  const Status copied = Open(3)->Adopt("old", "new");
  ASSERT_TRUE(copied.ok()) << copied.ToString();
  std::sort(ranges_.begin(), ranges_.end());
  EXPECT_THAT(ranges_, ElementsAre("bytes=0-11534335", "bytes=11534336-23068671",
                                   "bytes=23068672-34603007"));
  EXPECT_TRUE(*plain_->Get("new", kNoLimit) == large);
}

TEST_F(S3LargeObjects, WhatNoUploadCanHoldIsRefusedAtOnceByTheLimitsName) {
  const std::uint64_t most = 50'000 * kGiB;
  const Status refused =
      (*plain_->NewWriteSession(WriteMode::kAuto))->Open("x", {.bytes = most + 1}).status();
  EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
  for (const char* text : {"\"x\"", "53687091200001 bytes", "10000 parts", "48.8 TiB", "5 TiB"}) {
    EXPECT_THAT(refused.ToString(), HasSubstr(text));
  }
  const auto session = *plain_->NewWriteSession(WriteMode::kAuto);
  const auto taken = session->Open("x", {.bytes = most});
  EXPECT_TRUE(taken.ok()) << taken.status().ToString();
}

TEST_F(S3LargeObjects, AServersOwnLimitIsNamed) {
  const TestHttpServer proxy([this](const TestHttpRequest& request) {
    if (request.method != "POST" || request.target.find("uploadId=") == std::string::npos) {
      return ForwardTo(server_->port(), request);
    }
    return Answer(400, "<Error><Code>EntityTooLarge</Code><Message>too large</Message></Error>");
  });
  const Status refused =
      WriteObject(server_->Open(url_, proxy.port()).get(), "x", Pattern(6 * kMiB, 5));
  EXPECT_TRUE(refused.Is(Code::kResourceExhausted)) << refused.ToString();
  EXPECT_THAT(refused.ToString(), HasSubstr("objects of up to 5 TiB"));
  EXPECT_THAT(*plain_->ListUnfinished(""), IsEmpty());
}

TEST_F(S3LargeObjects, AServerMayTakeItsTimeToJoinTheParts) {
  ManualClock clock;
  std::shared_ptr<S3Store> store;
  std::atomic<int> ends = 0;
  const TestHttpServer proxy([&](const TestHttpRequest& request) {
    const bool end =
        request.method == "POST" && request.target.find("uploadId=") != std::string::npos;
    if (end && ++ends == 1) {
      clock.Advance(std::chrono::milliseconds(900));
      // Its end shows that the client has looked at the clock since.
      EXPECT_TRUE(store->Put("other", "1").ok());
    }
    return ForwardTo(server_->port(), request);
  });
  S3StoreOptions options = server_->Options(url_, proxy.port());
  options.environment.clock = &clock;
  options.environment.random = [] { return 0.0; };  // no wait before another attempt
  options.environment.stall_timeout = std::chrono::milliseconds(500);
  store = S3Store::Open(options).value();
  const Status written = WriteObject(store.get(), "x", Pattern(40 * kMiB, 6));
  ASSERT_TRUE(written.ok()) << written.ToString();
  EXPECT_EQ(ends, 1) << "not given up, not sent again";
}

TEST_F(S3LargeObjects, MemoryIsBoundedWhateverTheSize) {
  S3StoreOptions options = server_->Options(url_);
  options.storage.part_bytes = 8 * kMiB;
  const auto session = *(*S3Store::Open(options))->NewWriteSession(WriteMode::kAuto);
  for (std::uint64_t bytes = 1; bytes < 48 * kTiB; bytes = bytes * 5 / 4 + 1) {
    const ObjectParts parts = session->PartsOf(bytes);
    SCOPED_TRACE(std::to_string(bytes) + " bytes in parts of " + std::to_string(parts.part_bytes));
    ASSERT_EQ(parts.part_bytes % (4 * kMiB), 0u) << "whole chunks of a manifest";
    ASSERT_LE((bytes - 1) / parts.part_bytes + 1, kS3Parts);
    const std::uint64_t memory = parts.part_bytes * static_cast<std::uint64_t>(parts.buffers);
    ASSERT_GE(parts.buffers, 2);
    ASSERT_LE(memory, std::max(512 * kMiB, 2 * parts.part_bytes));
    if (bytes <= 80'000 * kMiB) {
      ASSERT_EQ(memory, 64 * kMiB) << "as it always was";
    }
  }
  EXPECT_EQ(session->PartsOf(5 * kTiB).part_bytes, 528 * kMiB);
}

}  // namespace
}  // namespace cairn

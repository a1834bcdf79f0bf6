// Copies into a bucket that are cut short in the middle of a file, on a real S3 server: what is
// sent again, what is copied by the server, and what is swept.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manager.h"
#include "checkpoint/restore.h"
#include "checkpoint/transfer.h"
#include "net/test_http_server.h"
#include "storage/memory/memory_store.h"
#include "storage/s3/test_s3_server.h"

namespace cairn::s3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kLarge = 100u << 20;  // 20 parts of 5 MiB, of which eight may be in flight
constexpr std::uint64_t kSeen = 55u << 20;    // of them

bool IsPart(const TestHttpRequest& request) {
  return request.target.find("partNumber=") != std::string::npos;
}

class S3Copy : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    url_ = "s3://" + server_->NewBucket() + "/copies";
    SetLogSink([this](LogLevel, std::string_view line) { log_ += std::string(line) + "\n"; });
    source_ = MemoryStore::Open({.part_bytes = 1u << 20}).value();
    auto manager = OpenManager({}, Env(source_)).value();
    std::vector<std::uint64_t> large(kLarge / 8);
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = i * 0x9E3779B97F4A7C15u;
    SaveRequest request{.step = 7, .blocking = true};
    request.tensors = {
        {.name = "large", .dtype = DType::kU64, .shape = {large.size()}, .data = large.data()}};
    ASSERT_TRUE(manager->Save(std::move(request)).ok());
    ASSERT_TRUE(manager->Close().ok());
    view_ = RepositoryReader(source_.get()).Read().value();
  }
  void TearDown() override { SetLogSink(nullptr); }

  static Environment Env(std::shared_ptr<Store> store) {
    Environment env;
    env.store = std::move(store);
    return env;
  }
  std::shared_ptr<Store> Target(std::uint16_t port = 0, std::uint64_t at_once = 5ull << 30) {
    S3StoreOptions options = server_->Options(url_, port);
    options.most_copied_at_once = at_once;
    options.most_parts = most_parts_;
    options.storage.connections = connections_;
    return S3Store::Open(options).value();
  }
  Result<CopyReport> Copy(std::shared_ptr<Store> target, const TransferControl& control = {}) {
    const auto chosen = ChooseForCopy(view_, "source", {});
    if (!chosen.ok()) return chosen.status();
    return CopyInto(Env(source_), view_, *chosen, Env(std::move(target)), {}, control);
  }
  /// A copy that is interrupted when the server has so many bytes of it. That is looked at before
  /// each part, when eight others may be in flight: at most 60 MiB are sure to be seen.
  void CopyUntil(std::uint64_t bytes) {
    std::uint64_t done = 0;
    TransferControl control;
    control.progress = [&](std::uint64_t now, std::uint64_t) { done = now; };
    control.cancelled = [&] { return done >= bytes; };
    const auto report = Copy(Target(), control);
    ASSERT_TRUE(report.status().Is(Code::kCancelled)) << report.status().ToString();
  }
  /// A copy whose files are all there, but not its manifest.
  void CopyWithoutManifest() {
    TestHttpServer proxy([&](const TestHttpRequest& request) {
      if (request.target.find("manifest.json") == std::string::npos || request.method != "PUT") {
        return ForwardTo(server_->port(), request);
      }
      return Answer(503, "<Error><Code>SlowDown</Code></Error>");
    });
    const auto report = Copy(Target(proxy.port()));
    ASSERT_FALSE(report.ok());
  }
  std::vector<std::string> Unfinished() { return server_->Open(url_)->ListUnfinished("").value(); }
  std::uint64_t Bytes() const { return view_.checkpoints[0].manifest->Bytes(); }

  void ExpectWhole() {
    const auto store = server_->Open(url_);
    const RepositoryView view = RepositoryReader(store.get()).Read().value();
    ASSERT_THAT(view.checkpoints, SizeIs(1));
    EXPECT_TRUE(view.checkpoints[0].counts);
    EXPECT_THAT(view.unfinished, IsEmpty()) << "what the first left was swept";
    EXPECT_THAT(Unfinished(), IsEmpty());
    auto open = OpenCheckpoint::Open(store.get(), view.checkpoints[0].directory,
                                     view.checkpoints[0].manifest);
    ASSERT_TRUE(open.ok()) << open.status().ToString();
    std::vector<VerifyProblem> problems;
    ASSERT_TRUE(VerifyFiles(store.get(), **open, {}, &problems).ok());
    EXPECT_THAT(problems, IsEmpty());
  }

  TestS3Server* server_ = nullptr;
  std::string url_;
  std::string log_;
  std::uint64_t most_parts_ = kS3Parts;  // of the target
  int connections_ = 0;                  // to it; 0: as many as usual
  std::shared_ptr<MemoryStore> source_;
  RepositoryView view_;
};

TEST_F(S3Copy, OneThatWasInterruptedGoesOnInsideTheFile) {
  CopyUntil(kSeen);
  EXPECT_THAT(Unfinished(), ElementsAre(HasSubstr(".safetensors"))) << "left for the next";
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<int> parts = 0;
  std::latch two(2);  // several parts at a time: the first is answered when the second has come
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    sent += request.body.size();
    if (IsPart(request) && ++parts <= 2) two.arrive_and_wait();
    return ForwardTo(server_->port(), request);
  });
  const auto report = Copy(Target(proxy.port()));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(report->bytes_resumed, kSeen) << "all but what was in flight";
  EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes());
  EXPECT_LT(sent, report->bytes + (1u << 20)) << "only the rest";
  ExpectWhole();
}

TEST_F(S3Copy, OneThatIsInterruptedAgainAndAgainGetsToItsEnd) {
  for (const std::uint64_t until : {20u << 20, 40u << 20, 55u << 20}) CopyUntil(until);
  const auto report = Copy(Target());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(report->bytes_resumed, 55u << 20);
  ExpectWhole();
}

TEST_F(S3Copy, OneOfAFileThatNeedsLargerPartsGoesOnInsideItToo) {
  most_parts_ = 9;  // of 12 MiB instead of 20 of 5
  connections_ = 2;
  CopyUntil(kSeen);
  EXPECT_THAT(Unfinished(), SizeIs(1));
  const auto report = Copy(Target());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(report->bytes_resumed, kSeen) << "all but what was in flight";
  EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes());
  ExpectWhole();
}

TEST_F(S3Copy, WhatNoCopyGoesOnWithIsSweptByTheNextOpening) {
  CopyUntil(kSeen);
  ASSERT_THAT(Unfinished(), SizeIs(1));
  auto manager = OpenManager({}, Env(Target()));
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  EXPECT_THAT(Unfinished(), IsEmpty());
}

TEST_F(S3Copy, AnUploadThatItsLivingOwnerGivesUpIsCopiedAnew) {
  CopyUntil(kSeen);
  // The server would say so too, but hang up on whoever is still sending the part.
  const std::string gone = "<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>";
  std::once_flag once;
  std::string given_up;
  const auto give_up = [&](const std::string& target) {
    const std::size_t id = target.find("uploadId=");
    given_up = target.substr(id, target.find('&', id) - id);
    for (const std::string& name : Unfinished()) {
      EXPECT_TRUE(server_->Open(url_)->AbandonUnfinished(name).ok());
    }
  };
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (IsPart(request)) {
      std::call_once(once, give_up, request.target);
      if (request.target.find(given_up) != std::string::npos) return Answer(404, gone);
    }
    return ForwardTo(server_->port(), request);
  });
  const auto report = Copy(Target(proxy.port()));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(given_up, HasSubstr("uploadId="));
  EXPECT_EQ(report->bytes, Bytes());
  EXPECT_THAT(log_, HasSubstr("is copied anew"));
  ExpectWhole();
}

TEST_F(S3Copy, FilesOverTheLimitOfOneRequestAreTakenOverInParts) {
  CopyWithoutManifest();
  std::atomic<int> parts = 0;
  std::atomic<std::uint64_t> sent = 0;
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    sent += request.body.size();
    if (!request.Header("x-amz-copy-source-range").empty()) ++parts;
    return ForwardTo(server_->port(), request);
  });
  const auto report = Copy(Target(proxy.port(), /*at_once=*/32u << 20));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(parts, 4);
  EXPECT_EQ(report->bytes, 0u);
  EXPECT_EQ(report->bytes_resumed, Bytes());
  EXPECT_LT(sent, 1u << 20) << "no byte of the files";
  ExpectWhole();
}

TEST_F(S3Copy, AServerThatDoesNotCopyInPartsIsSentTheFileAgain) {
  CopyWithoutManifest();
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (request.Header("x-amz-copy-source-range").empty()) {
      return ForwardTo(server_->port(), request);
    }
    return Answer(501, "<Error><Code>NotImplemented</Code></Error>");
  });
  const auto report = Copy(Target(proxy.port(), /*at_once=*/32u << 20));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(report->bytes, kLarge);
  EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes());
  EXPECT_THAT(log_, HasSubstr("so it is sent again"));
  ExpectWhole();
}

}  // namespace
}  // namespace cairn::s3

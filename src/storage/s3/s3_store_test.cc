#include "storage/s3/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "base/manual_clock.h"
#include "net/test_http_server.h"
#include "storage/s3/test_s3_objects.h"
#include "storage/s3/test_s3_server.h"

// What the conformance suite cannot know: what goes wrong between a store and a real S3 server,
// with a proxy in between that the test makes misbehave.

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class S3StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    bucket_ = server_->NewBucket();
    url_ = "s3://" + bucket_ + "/runs";
    store_ = server_->Open(url_);
  }

  /// The server behind a handler that sees every request first.
  using Handler = TestHttpServer::Handler;
  std::unique_ptr<TestHttpServer> Proxy(Handler handler) {
    return std::make_unique<TestHttpServer>(std::move(handler));
  }
  TestHttpReply Forward(const TestHttpRequest& request) {
    return ForwardTo(server_->port(), request);
  }

  Status StatusWith(const std::string& variable, const std::string& value,
                    const std::string& url = "") {
    S3StoreOptions options = server_->Options(url.empty() ? url_ : url);
    auto variables = server_->Variables();
    variables[variable] = value;
    options.environment.variables = VariablesOf(variables);
    auto store = S3Store::Open(options);
    return store.ok() ? (*store)->Put("x", "1") : store.status();
  }

  TestS3Server* server_ = nullptr;
  std::string bucket_;
  std::string url_;
  std::unique_ptr<S3Store> store_;
};

// ---------------------------------------------------------------- errors and remedies

TEST_F(S3StoreTest, WrongSecretIsToldFromUnknownKey) {
  const Status secret = StatusWith("AWS_SECRET_ACCESS_KEY", "wrong");
  EXPECT_TRUE(secret.Is(Code::kPermissionDenied)) << secret.ToString();
  EXPECT_THAT(secret.ToString(), HasSubstr("AWS_SECRET_ACCESS_KEY"));
  const Status key = StatusWith("AWS_ACCESS_KEY_ID", "nobody");
  EXPECT_TRUE(key.Is(Code::kPermissionDenied)) << key.ToString();
  EXPECT_THAT(key.ToString(), HasSubstr("AWS_ACCESS_KEY_ID"));
}

TEST_F(S3StoreTest, MissingBucketIsNeverAnEmptyStore) {
  const auto store = server_->Open("s3://no-such-bucket/runs");
  const std::vector<Status> statuses = {
      store->Put("x", "1"),
      store->Create("x", "1"),
      store->Get("x", kNoLimit).status(),
      store->Stat("x").status(),
      store->OpenReader("x").status(),
      store->List("").status(),
      store->Delete("x"),
      WriteObject(store.get(), "x", "1"),
      WriteObject(store.get(), "y", Pattern((5u << 20) + 1, 1)),
      store->ListUnfinished("").status(),
  };
  for (const Status& status : statuses) {
    EXPECT_TRUE(status.Is(Code::kFailedPrecondition)) << status.ToString();
    EXPECT_THAT(status.ToString(), HasSubstr("there is no bucket \"no-such-bucket\""));
  }
}

TEST_F(S3StoreTest, BucketThatGoesAwayIsNoticed) {
  ASSERT_TRUE(store_->Put("x", "1").ok());
  server_->DeleteBucket(bucket_);
  EXPECT_TRUE(store_->Stat("x").status().Is(Code::kFailedPrecondition));
  EXPECT_TRUE(store_->Get("x", kNoLimit).status().Is(Code::kFailedPrecondition));
}

TEST_F(S3StoreTest, UnreachableServerIsUnavailable) {
  const Status status = StatusWith("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  EXPECT_THAT(status.ToString(), HasSubstr("127.0.0.1:1"));
}

TEST_F(S3StoreTest, ErrorsOfOtherServersAreUnderstood) {
  struct Case {
    int status;
    const char* code;
    Code expected;
    const char* says;
  };
  for (const Case& c : {Case{403, "AccessDenied", Code::kPermissionDenied, "permission"},
                        Case{403, "ExpiredToken", Code::kPermissionDenied, "renew"},
                        Case{301, "PermanentRedirect", Code::kFailedPrecondition, "AWS_REGION"},
                        Case{403, "QuotaExceeded", Code::kResourceExhausted, "QuotaExceeded"},
                        Case{503, "SlowDown", Code::kUnavailable, "SlowDown"},
                        Case{400, "Odd", Code::kInvalidArgument, "Odd"}}) {
    const auto proxy = Proxy([&](const TestHttpRequest&) {
      return Answer(c.status, "<Error><Code>" + std::string(c.code) + "</Code></Error>");
    });
    const auto store = server_->Open(url_, proxy->port());
    const Status status = store->Put("x", "1");
    EXPECT_EQ(status.code(), c.expected) << status.ToString();
    EXPECT_THAT(status.ToString(), HasSubstr(c.says));
  }
}

TEST_F(S3StoreTest, NonsenseInsteadOfAListIsCorruption) {
  const auto proxy =
      Proxy([](const TestHttpRequest&) { return Answer(200, "<html>hello</html>"); });
  const auto store = server_->Open(url_, proxy->port());
  EXPECT_TRUE(store->List("").status().Is(Code::kCorruption));
}

TEST_F(S3StoreTest, AListThatDoesNotEndIsCorruption) {
  const auto proxy = Proxy([](const TestHttpRequest&) {
    return Answer(200,
                  "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again"
                  "</NextContinuationToken></ListBucketResult>");
  });
  const auto listing = server_->Open(url_, proxy->port())->List("");
  EXPECT_TRUE(listing.status().Is(Code::kCorruption)) << listing.status().ToString();
  EXPECT_THAT(listing.status().ToString(), HasSubstr("does not end"));
}

// ---------------------------------------------------------------- the clock

class SkewedClock final : public Clock {
 public:
  explicit SkewedClock(std::int64_t seconds) : nanos_(seconds * 1'000'000'000) {}
  Duration Now() override { return Clock::System()->Now(); }
  std::int64_t WallNanos() override { return Clock::System()->WallNanos() + nanos_; }
  void Sleep(Duration duration) override { Clock::System()->Sleep(duration); }

 private:
  const std::int64_t nanos_;
};

TEST_F(S3StoreTest, ServersTimeIsTakenWhenOurClockIsWrong) {
  for (const std::int64_t hours : {-30, 5}) {
    SkewedClock clock(hours * 3600);
    S3StoreOptions options = server_->Options(url_);
    options.environment.clock = &clock;
    auto store = S3Store::Open(options);
    ASSERT_TRUE(store.ok());
    const std::string name = "skewed/" + std::to_string(hours);
    EXPECT_TRUE((*store)->Stat(name).status().Is(Code::kNotFound))
        << "also without an error's body";
    const Status put = (*store)->Put(name, "1");
    EXPECT_TRUE(put.ok()) << put.ToString();
    EXPECT_EQ(*store_->Get(name, kNoLimit), "1");
  }
}

// ---------------------------------------------------------------- create-only puts

TEST_F(S3StoreTest, ServerThatIgnoresConditionsIsRefusedForWriting) {
  const auto proxy = Proxy([](const TestHttpRequest& request) {
    return Answer(request.method == "DELETE" ? 204 : 200);
  });
  const auto store = server_->Open(url_, proxy->port());
  const Status created = store->Create("x", "1");
  EXPECT_TRUE(created.Is(Code::kFailedPrecondition)) << created.ToString();
  EXPECT_THAT(created.ToString(), HasSubstr("CAIRN_SINGLE_WRITER"));
  EXPECT_FALSE(store->traits().create_only);
}

TEST_F(S3StoreTest, ServerThatRefusesConditionsIsTakenForASingleWriter) {
  // As MinIO's predecessors and others: 501 for the header, otherwise S3.
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    if (!request.Header("if-none-match").empty()) {
      return Answer(501, "<Error><Code>NotImplemented</Code></Error>");
    }
    return Forward(request);
  });
  EXPECT_TRUE(server_->Open(url_, proxy->port())->Create("x", "1").Is(Code::kFailedPrecondition));
  S3StoreOptions options = server_->Options(url_, proxy->port());
  options.storage.single_writer = true;
  auto store = S3Store::Open(options);
  ASSERT_TRUE(store.ok());
  EXPECT_TRUE((*store)->Create("x", "1").ok());
  EXPECT_TRUE((*store)->Create("x", "2").Is(Code::kAlreadyExists));
  EXPECT_EQ(*store_->Get("x", kNoLimit), "1");
}

TEST_F(S3StoreTest, ProbeLeavesNothing) {
  ASSERT_TRUE(store_->Create("x", "1").ok());
  const auto listed = store_->client()->Expect(
      {.what = "list", .query = {{"list-type", "2"}, {"prefix", "runs/"}}});
  ASSERT_TRUE(listed.ok());
  EXPECT_THAT(listed->body, ::testing::Not(HasSubstr("cairn-tmp")));
}

// ---------------------------------------------------------------- lost answers

TEST_F(S3StoreTest, CreateWhoseAnswerWasLostSaysExistsAndTheBytesAreOurs) {
  ASSERT_TRUE(store_->Create("probe", "").ok());
  std::atomic<bool> lose = false;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    TestHttpReply reply = Forward(request);
    if (request.method == "PUT" && lose.exchange(false)) return TestHttpReply{.close = true};
    return reply;
  });
  const auto store = server_->Open(url_, proxy->port());
  ASSERT_TRUE(store->Create("first", "x").ok());
  lose = true;
  EXPECT_TRUE(store->Create("record", "mine").Is(Code::kAlreadyExists));
  EXPECT_EQ(*store->Get("record", kNoLimit), "mine");
}

TEST_F(S3StoreTest, SessionKnowsItsOwnObjectAfterALostAnswer) {
  std::atomic<bool> lose = false;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    TestHttpReply reply = Forward(request);
    const bool ends = !request.Header("if-none-match").empty();
    if (ends && lose.exchange(false)) return TestHttpReply{.close = true};
    return reply;
  });
  const auto store = server_->Open(url_, proxy->port());
  const std::string large = Pattern((11u << 20) + 3, 5);
  for (const auto& [name, bytes] : {std::pair<std::string, std::string>{"empty", ""},
                                    {"small", "few bytes"},
                                    {"large", large}}) {
    lose = true;
    const Status written = WriteObject(store.get(), name, bytes);
    EXPECT_TRUE(written.ok()) << name << ": " << written.ToString();
    EXPECT_FALSE(lose) << name;
    EXPECT_TRUE(*store_->Get(name, kNoLimit) == bytes) << name;
  }
}

TEST_F(S3StoreTest, SessionDoesNotTakeAStrangersObjectForItsOwn) {
  std::atomic<bool> lose = true;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    if (!request.Header("if-none-match").empty() && lose.exchange(false)) {
      EXPECT_TRUE(store_->Put("taken", "of somebody else").ok());
      return TestHttpReply{.close = true};
    }
    return Forward(request);
  });
  const auto store = server_->Open(url_, proxy->port());
  EXPECT_TRUE(WriteObject(store.get(), "taken", "my own bytes....").Is(Code::kAlreadyExists));
  EXPECT_EQ(*store_->Get("taken", kNoLimit), "of somebody else");
}

// ---------------------------------------------------------------- failures on the way

/// What a proxy does to one request.
enum class Fault {
  kDrop,
  kLoseAnswer,
  kCutAnswer,
  kInternalError,
  kSlowDown,
  kStall,
  kLateError,      // 200, with an error in the body; nothing was done
  kLateErrorDone,  // the same, although all was done
};

constexpr Fault kFaults[] = {Fault::kDrop,          Fault::kLoseAnswer,   Fault::kCutAnswer,
                             Fault::kInternalError, Fault::kSlowDown,     Fault::kStall,
                             Fault::kLateError,     Fault::kLateErrorDone};

class S3StoreFaultTest : public S3StoreTest, public ::testing::WithParamInterface<Fault> {
 protected:
  /// Only ends of uploads and copies say 200 before they know.
  bool MayMeet(const TestHttpRequest& request) const {
    if (GetParam() != Fault::kLateError && GetParam() != Fault::kLateErrorDone) return true;
    return SaysSuccessBeforeItKnows(request);
  }
  TestHttpReply Misbehave(const TestHttpRequest& request, std::latch* end_of_stall) {
    switch (GetParam()) {
      case Fault::kDrop:
        return {.close = true};
      case Fault::kLoseAnswer:
        Forward(request);
        return {.close = true};
      case Fault::kCutAnswer: {
        TestHttpReply reply = Forward(request);
        reply.bytes.resize(reply.bytes.size() / 2);
        return reply;
      }
      case Fault::kInternalError:
        return Answer(500, "<Error><Code>InternalError</Code></Error>");
      case Fault::kSlowDown:
        return Answer(503, "<Error><Code>SlowDown</Code></Error>", {{"Retry-After", "0"}});
      case Fault::kStall:
        // Its end shows that the client has seen the last byte of this request move.
        EXPECT_TRUE(silent_.load()->Stat(kProbe).status().Is(Code::kNotFound));
        clock_.Advance(std::chrono::seconds(1));
        end_of_stall->wait();
        return {.close = true};
      case Fault::kLateErrorDone:
        Forward(request);
        [[fallthrough]];
      case Fault::kLateError:
        return Answer(200, kLateError);
    }
    return {};
  }

  static constexpr const char* kProbe = "probe";
  HeldClock clock_;                         // of a store whose server falls silent
  std::atomic<S3Store*> silent_ = nullptr;  // it
};

std::string FaultName(const ::testing::TestParamInfo<Fault>& info) {
  static constexpr const char* kNames[] = {"Drop",     "LoseAnswer", "CutAnswer", "InternalError",
                                           "SlowDown", "Stall",      "LateError", "LateErrorDone"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Faults, S3StoreFaultTest, ::testing::ValuesIn(kFaults), FaultName);

TEST_P(S3StoreFaultTest, EveryRequestMayFailOnce) {
  // Fails the 1st, 2nd, … n-th request of the same work, until it is done without meeting one.
  const std::string large = Pattern((10u << 20) + 77, 9);
  for (int failing = 1;; ++failing) {
    ASSERT_LT(failing, 100);
    std::atomic<int> requests = 0;
    std::latch end_of_stall(1);
    const auto proxy = Proxy([&](const TestHttpRequest& request) {
      if (request.target.ends_with(kProbe)) return Forward(request);
      const bool fails = MayMeet(request) && ++requests == failing;
      return fails ? Misbehave(request, &end_of_stall) : Forward(request);
    });
    S3StoreOptions options = server_->Options(url_ + "/" + std::to_string(failing), proxy->port());
    if (GetParam() == Fault::kStall) {
      options.environment.clock = &clock_;
      options.environment.random = [] { return 0.0; };  // no wait before another attempt
      options.environment.stall_timeout = std::chrono::milliseconds(300);
    }
    options.most_copied_at_once = 5u << 20;
    auto opened = S3Store::Open(options);
    ASSERT_TRUE(opened.ok());
    S3Store* store = opened->get();
    silent_ = store;
    SCOPED_TRACE("request " + std::to_string(failing));
    EXPECT_TRUE(store->Put("a", "1").ok());
    const Status created = store->Create("b", "2");
    EXPECT_TRUE(created.ok() || created.Is(Code::kAlreadyExists)) << created.ToString();
    EXPECT_EQ(*store->Get("b", kNoLimit), "2");
    const Status written = WriteObject(store, "c/large", large);
    EXPECT_TRUE(written.ok()) << written.ToString();
    auto reader = store->OpenReader("c/large");
    if (!reader.ok()) end_of_stall.count_down();
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    std::string got(large.size(), '?');
    EXPECT_TRUE((*reader)->Read(0, std::as_writable_bytes(std::span(got))).ok());
    EXPECT_TRUE(got == large);
    const std::string two_parts = large.substr(0, (5u << 20) + 77);
    LeaveUpload(store_.get(), std::to_string(failing) + "/d", two_parts, 1);
    const auto kept = ResumeUpload(store, "d", two_parts);
    EXPECT_TRUE(kept.ok() && *kept == 1) << kept.status().ToString();
    const Status adopted = store->Adopt("d", "e");
    EXPECT_TRUE(adopted.ok()) << adopted.ToString();
    EXPECT_TRUE(*store_->Get(std::to_string(failing) + "/e", kNoLimit) == two_parts);
    EXPECT_EQ(store->List("")->objects.size(), 4u);
    const Status deleted = store->Delete("a");
    EXPECT_TRUE(deleted.ok()) << deleted.ToString();
    opened->reset();
    end_of_stall.count_down();
    if (HasFailure() || requests < failing) break;
  }
}

TEST_F(S3StoreTest, AnErrorInsideASuccessIsToldByItsCode) {
  ASSERT_TRUE(WriteObject(store_.get(), "old", Pattern(6u << 20, 5)).ok());
  struct Case {
    const char* code;
    Code expected;
    bool repeated;
  };
  for (const Case& c :
       {Case{"InternalError", Code::kUnavailable, true}, Case{"", Code::kUnavailable, true},
        Case{"AccessDenied", Code::kPermissionDenied, false},
        Case{"PreconditionFailed", Code::kAlreadyExists, false}}) {
    std::atomic<int> requests = 0;
    const auto proxy = Proxy([&](const TestHttpRequest& request) {
      if (!SaysSuccessBeforeItKnows(request)) return Forward(request);
      ++requests;
      return Answer(200, "<Error><Code>" + std::string(c.code) + "</Code></Error>");
    });
    const auto store = server_->Open(url_, proxy->port());
    const Status written = WriteObject(store.get(), "new", Pattern(6u << 20, 6));
    EXPECT_EQ(written.code(), c.expected) << written.ToString();
    EXPECT_EQ(requests > 1, c.repeated) << c.code;
    requests = 0;
    const Status copied = store->Adopt("old", "copy");
    EXPECT_EQ(copied.code(), c.expected) << copied.ToString();
    EXPECT_EQ(requests > 1, c.repeated) << c.code;
    EXPECT_TRUE(store_->Stat("new").status().Is(Code::kNotFound));
    EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
  }
}

TEST_F(S3StoreTest, FailedSessionGivesItsUploadUp) {
  std::atomic<bool> broken = false;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    const bool part = request.target.find("partNumber=2") != std::string::npos;
    return part && broken ? Answer(500) : Forward(request);
  });
  broken = true;
  const auto store = server_->Open(url_, proxy->port());
  const Status status = WriteObject(store.get(), "lost", Pattern((11u << 20), 5));
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
  EXPECT_TRUE(store_->Stat("lost").status().Is(Code::kNotFound));
}

TEST_F(S3StoreTest, DamageOnTheWayThereIsNoticedAndRepeated) {
  std::atomic<int> damaged = 0;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    TestHttpRequest changed = request;
    if (request.method == "PUT" && request.body.size() > 1000 && damaged.fetch_add(1) % 2 == 0) {
      changed.body[500] ^= 1;
    }
    return Forward(changed);
  });
  const auto store = server_->Open(url_, proxy->port());
  const std::string large = Pattern((10u << 20) + 4096, 3);
  const Status written = WriteObject(store.get(), "large", large);
  EXPECT_TRUE(written.ok()) << written.ToString();
  EXPECT_TRUE(*store_->Get("large", kNoLimit) == large);
  const Status put = store->Put("record", Pattern(5000, 1));
  EXPECT_TRUE(put.ok()) << put.ToString();
  EXPECT_TRUE(*store_->Get("record", kNoLimit) == Pattern(5000, 1));
  EXPECT_GE(damaged, 3);
}

TEST_F(S3StoreTest, DamageOnTheWayBackIsCorruption) {
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    TestHttpReply reply = Forward(request);
    if (request.method == "GET") reply.bytes.back() ^= 1;
    return reply;
  });
  ASSERT_TRUE(store_->Put("record", "some bytes").ok());
  const auto store = server_->Open(url_, proxy->port());
  const auto got = store->Get("record", kNoLimit);
  EXPECT_TRUE(got.status().Is(Code::kCorruption)) << got.status().ToString();
}

TEST_F(S3StoreTest, AnAnswerThatIsTooShortIsTriedAgainAndIsNoDamage) {
  std::atomic<int> halved = 0;  // answers to come
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    const TestHttpReply reply = Forward(request);
    const bool half = !request.Header("range").empty() && halved-- > 0;
    return half ? Halved(request, reply) : reply;
  });
  const std::string bytes = Pattern(5000, 1);
  ASSERT_TRUE(store_->Put("rows", bytes).ok());
  const auto store = server_->Open(url_, proxy->port());
  const auto reader = store->OpenReader("rows");
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  const auto queue = *store->NewReadQueue(2);
  std::string into(3000, '\0');
  const auto read = [&](bool queued) -> Status {
    const auto span = std::as_writable_bytes(std::span(into));
    if (!queued) return (*reader)->Read(1000, span);
    if (Status status = queue->Submit(reader->get(), 1000, span, 1); !status.ok()) return status;
    return queue->Wait()->status;
  };
  for (const bool queued : {false, true}) {
    into.assign(into.size(), '\0');
    halved = 1;
    Status status = read(queued);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(into == bytes.substr(1000, 3000));
    halved = 100;
    status = read(queued);
    EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
    EXPECT_THAT(status.ToString(), HasSubstr("short read: 1500 of 3000 bytes at 1000"));
  }
}

// ---------------------------------------------------------------- unfinished uploads

TEST_F(S3StoreTest, UploadsOfAKilledWriterAreFoundAndGivenUp) {
  const auto begin = [&](const std::string& name) {
    ASSERT_TRUE(store_->client()
                    ->Expect({.what = "begin",
                              .method = "POST",
                              .key = store_->client()->config().KeyOf(name),
                              .query = {{"uploads", ""}}})
                    .ok());
  };
  begin("checkpoint_1/a");
  begin("checkpoint_1/a");
  begin("checkpoint_10/b");
  EXPECT_THAT(*store_->ListUnfinished(""), ElementsAre("checkpoint_1/a", "checkpoint_10/b"));
  EXPECT_THAT(*store_->ListUnfinished("checkpoint_1"), ElementsAre("checkpoint_1/a"));
  EXPECT_THAT(*server_->Open("s3://" + bucket_ + "/other")->ListUnfinished(""), IsEmpty());
  EXPECT_TRUE(store_->AbandonUnfinished("checkpoint_1/a").ok());
  EXPECT_THAT(*store_->ListUnfinished(""), ElementsAre("checkpoint_10/b"));
  EXPECT_TRUE(store_->AbandonUnfinished("checkpoint_1/a").ok()) << "nothing is there any more";
}

TEST_F(S3StoreTest, UploadInProgressIsAnUnfinishedName) {
  const std::string large = Pattern(12u << 20, 5);
  auto session = store_->NewWriteSession(WriteMode::kAuto);
  auto object = (*session)->Open("slow", {.bytes = large.size()});
  ASSERT_TRUE(object.ok());
  const auto part = std::as_bytes(std::span(large)).first((*session)->part_bytes());
  ASSERT_TRUE((*session)->Append(*object, part, false, 1).ok());
  EXPECT_EQ(*(*session)->WaitPart(), 1u);
  EXPECT_THAT(*store_->ListUnfinished(""), ElementsAre("slow"));
  session->reset();
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty()) << "destruction gives it up";
}

// ---------------------------------------------------------------- copies made by the server

/// A proxy that counts what matters of copies.
struct CopyTraffic {
  std::atomic<int> parts = 0;
  std::atomic<std::uint64_t> bytes_sent = 0;
  void Count(const TestHttpRequest& request) {
    bytes_sent += request.body.size();
    if (!request.Header("x-amz-copy-source-range").empty()) ++parts;
  }
};

TEST_F(S3StoreTest, WhatIsTooLargeForOneRequestIsCopiedInParts) {
  CopyTraffic traffic;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    traffic.Count(request);
    return Forward(request);
  });
  S3StoreOptions options = server_->Options(url_, proxy->port());
  options.most_copied_at_once = 5u << 20;
  const auto store = *S3Store::Open(options);
  const std::string large = Pattern((21u << 20) + 3, 5);
  ASSERT_TRUE(WriteObject(store_.get(), "old/a b+ü", large).ok());
  ASSERT_TRUE(store_->Put("old/limit", Pattern(5u << 20, 1)).ok());
  const Status copied = store->Adopt("old/a b+ü", "new/a b+ü");
  ASSERT_TRUE(copied.ok()) << copied.ToString();
  EXPECT_EQ(traffic.parts, 5) << "four of the limit's size and the rest";
  EXPECT_LT(traffic.bytes_sent, 4096u) << "the server copies, nothing is sent";
  EXPECT_TRUE(*store_->Get("new/a b+ü", kNoLimit) == large);
  EXPECT_TRUE(*store_->Get("old/a b+ü", kNoLimit) == large);
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
  ASSERT_TRUE(store->Adopt("old/limit", "new/limit").ok());
  EXPECT_EQ(traffic.parts, 5) << "at the limit one request is enough";
  EXPECT_TRUE(store->Adopt("old/a b+ü", "new/a b+ü").Is(Code::kAlreadyExists));
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
}

TEST_F(S3StoreTest, AServerThatCannotCopyInPartsSaysSoAndNothingIsLeft) {
  ASSERT_TRUE(WriteObject(store_.get(), "old", Pattern(11u << 20, 5)).ok());
  for (const bool silent : {false, true}) {
    const auto proxy = Proxy([&](const TestHttpRequest& request) {
      if (request.Header("x-amz-copy-source-range").empty()) return Forward(request);
      return silent ? Answer(200, "", {{"ETag", "\"d41d8cd98f00b204e9800998ecf8427e\""}})
                    : Answer(501, "<Error><Code>NotImplemented</Code></Error>");
    });
    S3StoreOptions options = server_->Options(url_, proxy->port());
    options.most_copied_at_once = 5u << 20;
    const auto store = *S3Store::Open(options);
    const Status copied = store->Adopt("old", "new");
    EXPECT_TRUE(copied.Is(Code::kUnimplemented)) << copied.ToString();
    EXPECT_TRUE(store_->Stat("new").status().Is(Code::kNotFound));
    EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
  }
}

TEST_F(S3StoreTest, AnObjectThatIsReplacedWhileItIsCopiedIsNotMixed) {
  std::atomic<int> parts = 0;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    if (!request.Header("x-amz-copy-source-range").empty() && ++parts == 2) {
      EXPECT_TRUE(store_->Put("old", Pattern(11u << 20, 6)).ok());
    }
    return Forward(request);
  });
  ASSERT_TRUE(WriteObject(store_.get(), "old", Pattern(11u << 20, 5)).ok());
  S3StoreOptions options = server_->Options(url_, proxy->port());
  options.most_copied_at_once = 5u << 20;
  options.storage.connections = 1;
  const Status copied = (*S3Store::Open(options))->Adopt("old", "new");
  EXPECT_TRUE(copied.Is(Code::kNotFound)) << copied.ToString();
  EXPECT_TRUE(store_->Stat("new").status().Is(Code::kNotFound));
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
}

// ---------------------------------------------------------------- uploads that are resumed

TEST_F(S3StoreTest, PartsThatArrivedAreNotSentAgain) {
  std::atomic<std::uint64_t> sent = 0;
  const auto proxy = Proxy([&](const TestHttpRequest& request) {
    sent += request.body.size();
    return Forward(request);
  });
  const std::string large = Pattern((21u << 20) + 5, 3);
  LeaveUpload(store_.get(), "c/large", large, 3);
  EXPECT_THAT(*store_->ListUnfinished(""), ElementsAre("c/large"));
  const auto kept = ResumeUpload(server_->Open(url_, proxy->port()).get(), "c/large", large);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(*kept, 3);
  const std::uint64_t rest = large.size() - 3 * (5u << 20);
  EXPECT_GE(sent, rest);
  EXPECT_LT(sent, rest + 4096) << "the rest, and the list of parts";
  EXPECT_TRUE(*store_->Get("c/large", kNoLimit) == large);
  EXPECT_THAT(*store_->ListUnfinished(""), IsEmpty());
}

TEST_F(S3StoreTest, PartsOfAnotherSizeAreNotKept) {
  const std::string large = Pattern((21u << 20) + 5, 3);
  S3StoreOptions options = server_->Options(url_);
  options.storage.part_bytes = 8u << 20;
  LeaveUpload(S3Store::Open(options)->get(), "c/large", large, 2);
  const auto kept = ResumeUpload(store_.get(), "c/large", large);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(*kept, 0);
  EXPECT_TRUE(*store_->Get("c/large", kNoLimit) == large);
  EXPECT_THAT(*store_->ListUnfinished(""), ElementsAre("c/large")) << "for the next sweep";
}

TEST_F(S3StoreTest, AnUploadThatIsGivenUpMeanwhileFailsClearly) {
  const std::string large = Pattern(21u << 20, 3);
  LeaveUpload(store_.get(), "c/large", large, 2);
  auto session = store_->NewWriteSession(WriteMode::kAuto);
  const auto object = (*session)->Open("c/large", {.bytes = large.size(), .resume = true});
  ASSERT_TRUE(object.ok());
  ASSERT_TRUE(store_->AbandonUnfinished("c/large").ok());
  const auto bytes = std::as_bytes(std::span(large));
  const std::size_t part = (*session)->part_bytes();
  ASSERT_TRUE(*(*session)->KeepLeft(*object, bytes.first(part)));
  ASSERT_TRUE(*(*session)->KeepLeft(*object, bytes.subspan(part, part)));
  ASSERT_TRUE((*session)->Append(*object, bytes.subspan(2 * part, part), false, 1).ok());
  const Status drained = (*session)->Drain();
  EXPECT_TRUE(drained.Is(Code::kFailedPrecondition)) << drained.ToString();
  EXPECT_THAT(drained.ToString(), HasSubstr("given up"));
}

TEST_F(S3StoreTest, WhatIsLeftStaysWhenTheServerIsNotReachedAndGoesOtherwise) {
  const std::string large = Pattern(11u << 20, 5);
  for (const bool unreachable : {true, false}) {
    std::atomic<bool> broken = false;
    const auto proxy = Proxy([&](const TestHttpRequest& request) {
      const bool part = request.target.find("partNumber=3") != std::string::npos;
      if (!part || !broken) return Forward(request);
      return unreachable ? TestHttpReply{.close = true}
                         : Answer(403, "<Error><Code>AccessDenied</Code></Error>");
    });
    const auto store = server_->Open(url_, proxy->port());
    auto session = store->NewWriteSession(WriteMode::kAuto);
    (*session)->LeaveUnfinished(true);
    const auto object = (*session)->Open("c/large", {.bytes = large.size()});
    ASSERT_TRUE(object.ok());
    broken = true;
    Status status;
    for (std::size_t at = 0; at < large.size() && status.ok(); at += (*session)->part_bytes()) {
      const std::size_t count = std::min(large.size() - at, (*session)->part_bytes());
      status = (*session)->Append(*object, std::as_bytes(std::span(large)).subspan(at, count),
                                  false, at);
      if (status.ok()) status = (*session)->WaitPart().status();
    }
    EXPECT_EQ(status.code(), unreachable ? Code::kUnavailable : Code::kPermissionDenied);
    session->reset();
    EXPECT_EQ(store_->ListUnfinished("")->size(), unreachable ? 1u : 0u);
    ASSERT_TRUE(store_->AbandonUnfinished("c/large").ok());
  }
}

}  // namespace
}  // namespace cairn

#include "trial/client_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "format/json.h"
#include "net/test_http_server.h"
#include "trial/run_log.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// An engine that answers as each test wants, over real sockets.
class ClientTest : public ::testing::Test {
 protected:
  ClientTest() : server_([this](const TestHttpRequest& request) { return Serve(request); }) {}
  ~ClientTest() override { released_ = true; }

  TestHttpReply Serve(const TestHttpRequest& request) {
    const std::string base = "/trial/v1/trials/t%201/runs/3";
    if (request.target == "/trial/v1/join") {
      return Answer(200, R"({"trial_id":"9","run_id":2,"token":"own","heartbeat_seconds":0.2})");
    }
    if (request.target.find("/preemption?") != std::string::npos) return ServePoll(request);
    if (hang_) {
      hung_ = true;
      while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    MutexLock lock(&mu_);
    seen_.push_back(request.method + " " + request.target + " " + request.body);
    tokens_.push_back(std::string(request.Header("authorization")));
    if (request.target == base && request.method == "GET") {
      return Answer(200, R"({"run_id":3,"next_sequence":)" + std::to_string(next_) + "}");
    }
    if (failures_ > 0) {
      --failures_;
      return {.bytes = "", .close = true};  // the answer is lost
    }
    if (status_ != 200) return Answer(status_, refusal_);
    return Answer(200, answer_);
  }

  TestHttpReply ServePoll(const TestHttpRequest& request) {
    {
      MutexLock lock(&mu_);
      poll_targets_.push_back(request.target);
    }
    ++polls_;  // who waits for it reads the targets
    const int version = version_;
    if (request.target.find("seen=" + std::to_string(version)) != std::string::npos) {
      while (version_ == version && !released_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return Answer(200, poll_);
  }

  Result<std::unique_ptr<RunClient>> Open() {
    RunClientOptions options;
    options.url = server_.url();
    options.token = "secret";
    options.trial = "t 1";
    options.run = 3;
    options.attempts = 4;
    return RunClient::Open(std::move(options));
  }

  std::vector<std::string> Seen() {
    MutexLock lock(&mu_);
    return seen_;
  }

  Mutex mu_;
  std::vector<std::string> seen_ GUARDED_BY(mu_);
  std::vector<std::string> tokens_ GUARDED_BY(mu_);
  std::vector<std::string> poll_targets_ GUARDED_BY(mu_);
  int failures_ GUARDED_BY(mu_) = 0;
  int status_ GUARDED_BY(mu_) = 200;
  int next_ GUARDED_BY(mu_) = 1;
  std::string refusal_ GUARDED_BY(mu_);
  std::string answer_ GUARDED_BY(mu_) = "{}";
  std::string poll_ = R"({"preempt":false,"version":1})";
  std::atomic<int> version_ = 1;
  std::atomic<int> polls_ = 0;
  std::atomic<bool> released_ = false;
  std::atomic<bool> hang_ = false;  // whoever asks is answered at the end
  std::atomic<bool> hung_ = false;
  TestHttpServer server_;
};

TEST_F(ClientTest, EveryRequestCarriesTheTokenOfTheRun) {
  auto client = Open();
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  ASSERT_TRUE((*client)->Ready(0, 77, "here").ok());
  MutexLock lock(&mu_);
  for (const std::string& token : tokens_) EXPECT_EQ(token, "Bearer secret");
  EXPECT_THAT(seen_.back(), HasSubstr("/trial/v1/trials/t%201/runs/3/ready"));
  EXPECT_THAT(seen_.back(), HasSubstr("\"pid\":77"));
}

TEST_F(ClientTest, AReportWhoseAnswerWasLostIsSentAgainWithItsNumber) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    failures_ = 2;
  }
  ASSERT_TRUE((*client)->Report("training", 10, Value::Object{{"loss", 0.5}}).ok());
  ASSERT_TRUE((*client)->Report("training", 20, Value::Object{{"loss", 0.25}}).ok());
  std::vector<std::string> numbers;
  for (const std::string& request : Seen()) {
    const std::size_t at = request.find("\"sequence\":");
    if (at != std::string::npos) numbers.push_back(request.substr(at + 11, 1));
  }
  EXPECT_THAT(numbers, ElementsAre("1", "1", "1", "2"));
}

TEST_F(ClientTest, AfterAReportOfUnknownOutcomeTheEngineSaysWhichNumberIsNext) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    failures_ = 1000;  // more than there are attempts, with those that the connection makes itself
  }
  EXPECT_EQ((*client)->Report("training", 10, Value::Object{}).code(), Code::kUnavailable);
  {
    MutexLock lock(&mu_);
    failures_ = 0;
    next_ = 2;  // it was taken after all
  }
  ASSERT_TRUE((*client)->Report("training", 20, Value::Object{}).ok());
  EXPECT_THAT(Seen().back(), HasSubstr("\"sequence\":2"));
}

TEST_F(ClientTest, AReportOfUnknownOutcomeThatTheScriptRepeatsKeepsItsNumber) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  const Value metrics = Value::Object{{"loss", 0.5}};
  {
    MutexLock lock(&mu_);
    failures_ = 1000;
  }
  EXPECT_EQ((*client)->Report("training", 10, metrics).code(), Code::kUnavailable);
  EXPECT_EQ((*client)->Report("training", 10, metrics).code(), Code::kUnavailable);
  {
    MutexLock lock(&mu_);
    failures_ = 0;
    next_ = 2;  // it was taken after all
  }
  ASSERT_TRUE((*client)->Report("training", 10, metrics).ok());
  EXPECT_THAT(Seen().back(), HasSubstr("\"sequence\":1"));
  ASSERT_TRUE((*client)->Report("training", 10, metrics).ok());  // and this is another one
  EXPECT_THAT(Seen().back(), HasSubstr("\"sequence\":2"));
}

TEST_F(ClientTest, AReportThatWasRefusedForItsNumberIsRepeatedUnderTheRightOne) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  const Value metrics = Value::Object{{"loss", 0.5}};
  ASSERT_TRUE((*client)->Report("training", 10, metrics).ok());
  {
    MutexLock lock(&mu_);
    status_ = 409;  // an engine that came back with an older record
    refusal_ = R"({"code":"out_of_order","message":"report 2 came where 1 belongs"})";
  }
  EXPECT_EQ((*client)->Report("training", 20, metrics).code(), Code::kFailedPrecondition);
  {
    MutexLock lock(&mu_);
    status_ = 200;
  }
  ASSERT_TRUE((*client)->Report("training", 20, metrics).ok());
  EXPECT_THAT(Seen().back(), HasSubstr("\"sequence\":1"));
}

TEST_F(ClientTest, RefusalsBecomeTheStatusesOfTheProtocol) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  const std::vector<std::tuple<int, std::string, Code>> table = {
      {400, "invalid_argument", Code::kInvalidArgument},
      {401, "unauthenticated", Code::kPermissionDenied},
      {404, "not_found", Code::kNotFound},
      {409, "out_of_order", Code::kFailedPrecondition},
      {409, "conflict", Code::kAlreadyExists},
      {412, "failed_precondition", Code::kFailedPrecondition},
      {413, "too_large", Code::kInvalidArgument},
      {503, "unavailable", Code::kUnavailable},
      {507, "no_space", Code::kResourceExhausted},
  };
  for (const auto& [status, code, expected] : table) {
    {
      MutexLock lock(&mu_);
      status_ = status;
      refusal_ = R"({"code":")" + code + R"(","message":"because )" + code + "\"}";
    }
    const Status refused = (*client)->SetStatus("x");
    EXPECT_EQ(refused.code(), expected) << status << " " << code;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("because"));
  }
  EXPECT_FALSE((*client)->preempt());
}

TEST_F(ClientTest, AReplacedRunIsToldToStop) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    status_ = 409;
    refusal_ = R"({"code":"run_replaced","message":"run 4 is the newest"})";
  }
  EXPECT_EQ((*client)->Report("training", 1, Value::Object{}).code(), Code::kAborted);
  EXPECT_TRUE((*client)->preempt());
  EXPECT_EQ((*client)->preempt_reason(), "replaced");
}

TEST_F(ClientTest, TheBackgroundSetsTheFlagWhenTheEngineAnswers) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  while (polls_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE((*client)->preempt());
  poll_ = R"({"preempt":true,"reason":"pause","version":2})";
  version_ = 2;
  while (!(*client)->preempt()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ((*client)->preempt_reason(), "pause");
  ASSERT_TRUE((*client)->AcknowledgePreemption().ok());
  EXPECT_THAT(Seen().back(), HasSubstr("/preemption/ack"));
  MutexLock lock(&mu_);
  EXPECT_THAT(poll_targets_[1], HasSubstr("seen=1"));
}

TEST_F(ClientTest, CheckpointsAreRegisteredAndCompletedUnderOneId) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    answer_ = R"({"state":"COMPLETED","remove":["old1","old2"]})";
  }
  ASSERT_TRUE((*client)->RegisterCheckpoint("id-1", 10, 2, Value::Object{}).ok());
  CompletedCheckpoint checkpoint;
  checkpoint.id = "id-1";
  checkpoint.steps_completed = 10;
  auto remove = (*client)->CompleteCheckpoint(checkpoint);
  ASSERT_TRUE(remove.ok()) << remove.status().ToString();
  EXPECT_THAT(*remove, ElementsAre("old1", "old2"));
  EXPECT_THAT(Seen().back(), HasSubstr("/checkpoints/id-1/complete"));
}

TEST_F(ClientTest, ADetachedProcessJoinsAndIsHeardOfOften) {
  RunClientOptions options;
  options.url = server_.url();
  options.token = "join";
  auto client = RunClient::Join(std::move(options), {.external_id = "mine", .hparams = {}});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_EQ((*client)->trial(), "9");
  EXPECT_EQ((*client)->run(), 2u);
  while (polls_ < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  MutexLock lock(&mu_);
  EXPECT_THAT(poll_targets_[0], HasSubstr("timeout=0.2"));
}

TEST_F(ClientTest, AnEngineThatIsNotThereIsNamed) {
  RunClientOptions options;
  options.url = "unix:/no/such/socket";
  options.trial = "1";
  options.attempts = 2;
  const auto client = RunClient::Open(std::move(options));
  EXPECT_EQ(client.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("/no/such/socket"));
  RunClientOptions nonsense;
  nonsense.url = "gopher://x";
  nonsense.trial = "1";
  EXPECT_EQ(RunClient::Open(std::move(nonsense)).status().code(), Code::kInvalidArgument);
}

TEST_F(ClientTest, AWaitThatIsCancelledEnds) {
  RunClientOptions options;
  options.url = "unix:/no/such/socket";
  options.trial = "1";
  options.attempts = 1000;
  options.cancelled = [] { return true; };
  EXPECT_EQ(RunClient::Open(std::move(options)).status().code(), Code::kCancelled);
}

TEST_F(ClientTest, LinesWaitForAnEngineThatIsAwayAndTheOldestGo) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    status_ = 503;
    refusal_ = R"({"code":"unavailable","message":"away"})";
  }
  RunLog log({.client = client->get(), .rank = 2, .gather = {}, .max_bytes = 10});
  log.Write(false, "first\n");
  while (Seen().size() < 2) std::this_thread::yield();  // it was tried
  log.Write(false, "second\n");
  log.Write(true, "third");
  log.Write(true, "!\n");
  {
    MutexLock lock(&mu_);
    seen_.clear();
    status_ = 200;
  }
  log.Close(std::chrono::seconds(60));
  std::string all;
  for (const std::string& request : Seen()) all += request;
  EXPECT_THAT(all, Not(HasSubstr("first")));
  EXPECT_THAT(all, HasSubstr("WARNING: here 2 lines are missing"));
  EXPECT_THAT(all, HasSubstr(R"("rank":2,"stream":"stderr","text":"third!")"));
  log.Write(false, "nobody's\n");
}

TEST_F(ClientTest, ARunThatWasReplacedSendsNoMoreLines) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  {
    MutexLock lock(&mu_);
    status_ = 409;
    refusal_ = R"({"code":"run_replaced","message":"replaced"})";
  }
  RunLog log({.client = client->get(), .gather = {}});
  log.Write(false, "a line\n");
  while (!(*client)->preempt()) std::this_thread::yield();
  log.Write(false, "another\n");
  log.Close(std::chrono::seconds(60));
  for (const std::string& request : Seen()) EXPECT_THAT(request, Not(HasSubstr("another")));
}

/// A script's end does not wait for a log.
TEST_F(ClientTest, LinesOfAnEngineThatHangsAreGivenUp) {
  auto client = Open();
  ASSERT_TRUE(client.ok());
  hang_ = true;
  RunLog log({.client = client->get(), .gather = {}});
  log.Write(false, "a line\n");
  while (!hung_) std::this_thread::yield();
  log.Close(std::chrono::milliseconds(10));
  EXPECT_TRUE(hung_);
}

}  // namespace
}  // namespace cairn

#include "trial/trial_service.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "format/json.h"
#include "net/http_client.h"
#include "trial/test_trial.h"

namespace cairn {
namespace {

using std::chrono::seconds;

struct Reply {
  int status = 0;
  Value body;
  std::string Code() const {
    const Value* code = body.Find("code");
    return code == nullptr || !code->is_string() ? "" : *code->if_string();
  }
};

class TrialServiceTest : public ::testing::Test {
 protected:
  TrialServiceTest() {
    engine_ = TrialEngine::Open({.log = &log_,
                                 .launcher = &launcher_,
                                 .repositories = &repositories_,
                                 .clock = &clock_,
                                 .answer_timeout = kAnswerTimeout,
                                 .join_token = "join"})
                  .value();
    launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
    service_ = TrialService::Start({.engine = engine_.get()}).value();
    EXPECT_TRUE(engine_->Start().ok());
    client_ = HttpClient::Open({}).value();
    engine_->Create({.experiment = "e", .argv = {"x"}, .storage = "/s"}).value();
    const LaunchSpec spec = launcher_.WaitFor("1.1");
    EXPECT_EQ(spec.env.at("CAIRN_TRIAL_URL"), service_->url());
    token_ = spec.env.at("CAIRN_RUN_TOKEN");
  }
  ~TrialServiceTest() override {
    launcher_.listener = nullptr;
    service_->Stop();
  }

  Reply Send(const std::string& method, const std::string& path, const std::string& body = "",
             const std::string& token = "<own>") {
    const std::string bearer = "Bearer " + (token == "<own>" ? token_ : token);
    const auto answer = client_->Fetch(
        HttpCall{.prepare = [&](int) -> Result<HttpRequest> {
                   return HttpRequest{.method = method,
                                      .url = service_->url() + path,
                                      .headers = {{"Authorization", bearer}},
                                      .body = std::as_bytes(std::span(body.data(), body.size()))};
                 },
                 .max_attempts = 1});
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    if (!answer.ok()) return {};
    auto value = DecodeJson(answer->body);
    EXPECT_TRUE(value.ok()) << answer->body;
    return {answer->status, value.ok() ? *value : Value()};
  }

  static constexpr char kRun[] = "/trial/v1/trials/1/runs/1";
  static constexpr seconds kAnswerTimeout{60};
  SettableClock clock_;
  MemoryEventLog log_;
  FakeLauncher launcher_;
  FakeRepositories repositories_;
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<TrialService> service_;
  std::unique_ptr<HttpClient> client_;
  std::string token_;
};

TEST_F(TrialServiceTest, ALifeOverTheWire) {
  const std::string run = kRun;
  EXPECT_EQ(Send("GET", "/trial/v1/healthz", "", "").status, 200);
  const Reply info = Send("GET", run);
  EXPECT_EQ(info.status, 200);
  EXPECT_EQ(*info.body.Find("resume_mode"), Value("fresh"));
  EXPECT_TRUE(info.body.Find("latest_checkpoint")->is_null());
  EXPECT_EQ(Send("POST", run + "/ready", R"({"rank":0})").status, 200);
  const Reply report = Send(
      "POST", run + "/reports",
      R"({"sequence":1,"group":"training","steps_completed":10,"metrics":{"loss":"NaN","x":1}})");
  EXPECT_EQ(report.status, 200);
  EXPECT_EQ(*report.body.Find("duplicate"), Value(false));
  EXPECT_EQ(Send("POST", run + "/progress", R"({"progress":0.5})").status, 200);
  EXPECT_EQ(Send("POST", run + "/status", R"({"status":"warm"})").status, 200);
  EXPECT_EQ(Send("POST", run + "/checkpoints",
                 R"({"registration":"11111111-2222","steps_completed":10,"ranks":1})")
                .status,
            201);
  EXPECT_EQ(Send("POST", run + "/checkpoints/11111111-2222/complete",
                 R"({"id":"c10","steps_completed":10,"metadata":{"steps_completed":10}})")
                .status,
            200);
  EXPECT_EQ(*Send("GET", run + "/checkpoints/c10").body.Find("state"), Value("COMPLETED"));
  EXPECT_EQ(Send("GET", run + "/preemption?timeout=0").body.Find("preempt")->if_bool()[0], false);
  EXPECT_EQ(Send("GET", run + "/preemption?timeout=0&seen=").status, 200);
  EXPECT_EQ(Send("POST", run + "/preemption/ack").status, 412);
  ASSERT_TRUE(engine_->Pause("1").ok());
  EXPECT_EQ(*Send("GET", run + "/preemption?timeout=100").body.Find("reason"), Value("pause"));
  EXPECT_EQ(Send("POST", run + "/preemption/ack").status, 200);
  EXPECT_EQ(Send("POST", run + "/heartbeat").status, 200);
  EXPECT_EQ(Send("POST", run + "/exit", R"({"code":0})").status, 412);  // the launcher sees it
  launcher_.End("1.1", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kPaused);
  const Reply over = Send("GET", run);
  EXPECT_EQ(over.status, 409);
  EXPECT_EQ(over.Code(), "run_replaced");
}

TEST_F(TrialServiceTest, WhoMayNotAndWhatMakesNoSenseIsToldSo) {
  const std::string run = kRun;
  EXPECT_EQ(Send("GET", run, "", "wrong").Code(), "unauthenticated");
  EXPECT_EQ(Send("GET", run, "", "").status, 401);
  EXPECT_EQ(Send("GET", "/trial/v1/trials/9/runs/1").status, 404);
  EXPECT_EQ(Send("GET", "/trial/v1/trials/1/runs/7").status, 404);
  EXPECT_EQ(Send("GET", "/trial/v1/trials/1/runs/x").status, 404);
  EXPECT_EQ(Send("GET", "/trial/v1/trials/..%2f..%2fetc/runs/1").status, 404);
  EXPECT_EQ(Send("DELETE", run).status, 405);
  EXPECT_EQ(Send("POST", run + "/reports", "{").status, 400);
  EXPECT_EQ(Send("POST", run + "/reports", "[1]").status, 400);
  EXPECT_EQ(
      Send("POST", run + "/reports", R"({"sequence":0,"group":"a","steps_completed":1})").status,
      400);
  EXPECT_EQ(Send("POST", run + "/reports",
                 R"({"sequence":1,"group":"a","steps_completed":1,"metrics":[1]})")
                .status,
            400);
  EXPECT_EQ(
      Send("POST", run + "/reports", R"({"sequence":2,"group":"a","steps_completed":1})").Code(),
      "out_of_order");
  // It was taken for one that is there already, and acknowledged.
  EXPECT_EQ(Send("POST", run + "/reports",
                 R"({"sequence":9223372036854775808,"group":"a","steps_completed":1})")
                .Code(),
            "out_of_order");
  EXPECT_EQ(Send("POST", run + "/progress", R"({"progress":2})").status, 400);
  EXPECT_EQ(
      Send("POST", run + "/checkpoints", R"({"registration":"../x","steps_completed":1})").status,
      400);
  EXPECT_EQ(Send("POST", run + "/checkpoints", R"({"registration":"r"})").status, 400);
  const Reply negative = Send("POST", run + "/reports",
                              R"({"sequence":1,"group":"a","steps_completed":-1,"metrics":{}})");
  EXPECT_EQ(negative.status, 400);
  EXPECT_EQ(*negative.body.Find("message"), Value("\"steps_completed\" must not be negative"));
  EXPECT_EQ(
      Send("POST", run + "/checkpoints", R"({"registration":"r","steps_completed":-1})").status,
      400);
  EXPECT_EQ(
      Send("POST", run + "/checkpoints/r/complete", R"({"id":"i","steps_completed":-1})").status,
      400);
  EXPECT_EQ(Send("GET", run + "/checkpoints/none").status, 404);
  for (const char* seen : {"1e300", "-1", "nan", "99999999999999999999"}) {
    EXPECT_EQ(Send("GET", run + "/preemption?timeout=0&seen=" + seen).status, 400) << seen;
  }
  for (const char* timeout : {"-1", "nan", "soon", "1x"}) {
    const Reply odd = Send("GET", run + "/preemption?timeout=" + timeout);
    EXPECT_EQ(odd.status, 400) << timeout;
    EXPECT_EQ(*odd.body.Find("message"),
              Value("timeout: \"" + std::string(timeout) + "\" is not a number from 0 up"));
  }
  EXPECT_EQ(Send("POST", run + "/logs", "{}").status, 400);
  EXPECT_EQ(
      Send("POST", run + "/status", "{\"status\":\"" + std::string(2u << 20, 'x') + "\"}").Code(),
      "too_large");
  EXPECT_EQ(Send("POST", "/trial/v1/join", R"({"external_id":"a"})", "no").status, 401);
  EXPECT_EQ(Send("POST", "/trial/v1/join", R"({"external_id":"a"})", "join").status,
            400);  // no storage
}

TEST_F(TrialServiceTest, NulsNeverComeIntoTheLog) {
  const std::string run = kRun;
  const Reply group =
      Send("POST", run + "/reports",
           R"({"sequence":1,"group":"a\u0000b","steps_completed":1,"metrics":{"x":1}})");
  EXPECT_EQ(group.status, 400);
  EXPECT_EQ(*group.body.Find("message"),
            Value("\"group\": the text holds a NUL, which cannot be stored"));
  EXPECT_EQ(Send("POST", run + "/reports",
                 R"({"sequence":1,"group":"a","steps_completed":1,"metrics":{"x\u0000":1}})")
                .status,
            400);
  EXPECT_EQ(
      Send("POST", run + "/reports",
           R"({"sequence":1,"group":"a","steps_completed":1,"metrics":{"x":[{"y":"\u0000"}]}})")
          .status,
      400);
  // Words for people lose what cannot be stored, and nothing else.
  EXPECT_EQ(Send("POST", run + "/status", R"({"status":"a\u0000b"})").status, 200);
  // Text that only looks like one is text.
  EXPECT_EQ(Send("POST", run + "/reports",
                 R"({"sequence":1,"group":"a","steps_completed":1,"metrics":{"x":"\\u0000"}})")
                .status,
            200);
}

TEST_F(TrialServiceTest, StrangersAreRefusedBeforeTheirBodiesAreTaken) {
  const std::string body = "{\"status\":\"" + std::string(2u << 20, 'x') + "\"}";
  EXPECT_EQ(Send("POST", std::string(kRun) + "/status", body, "wrong").Code(), "unauthenticated");
  EXPECT_EQ(Send("POST", "/trial/v1/join", body, "wrong").Code(), "unauthenticated");
}

TEST_F(TrialServiceTest, AReplacedRunIsRefusedWithItsOwnCode) {
  launcher_.End("1.1", {.code = 1});
  const std::string old_token = token_;
  token_ = launcher_.WaitFor("1.2").env.at("CAIRN_RUN_TOKEN");
  const std::string body = R"({"sequence":1,"group":"training","steps_completed":1})";
  const Reply stale = Send("POST", std::string(kRun) + "/reports", body, old_token);
  EXPECT_EQ(stale.status, 409);
  EXPECT_EQ(stale.Code(), "run_replaced");
  EXPECT_EQ(Send("POST", "/trial/v1/trials/1/runs/2/reports", body, old_token).status, 401);
  EXPECT_EQ(Send("POST", "/trial/v1/trials/1/runs/2/reports", body).status, 200);
}

TEST_F(TrialServiceTest, WithoutStorageTheAnswerIsToComeAgain) {
  log_.Fail(UnavailableError("gone"));
  const std::string body = R"({"sequence":1,"group":"training","steps_completed":1})";
  Reply refused;
  {
    const std::jthread time([&](const std::stop_token& over) {
      while (!over.stop_requested()) {
        clock_.Advance(kAnswerTimeout);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    refused = Send("POST", std::string(kRun) + "/reports", body);
  }
  EXPECT_EQ(refused.status, 503);
  log_.Fail(Status::Ok());
  Reply again;
  do again = Send("POST", std::string(kRun) + "/reports", body);
  while (again.status == 503);
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(*again.body.Find("duplicate"), Value(true));
}

}  // namespace
}  // namespace cairn

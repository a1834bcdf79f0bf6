#include "serving/server/serving_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "format/json.h"
#include "net/http_client.h"
#include "serving/model/test_graph.h"
#include "serving/test_writer.h"
#include "storage/local/temp_directory.h"

namespace cairn::serving {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kDim = 4;

class ServingServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ExportRequest request;
    request.directory = export_;
    request.model = SumGraph(kDim);
    request.feed_names = {"rows"};
    request.target_names = {"y"};
    request.tables = {{"rows", ExportTable::Of(*writer_.table())}};
    request.increments = true;
    ASSERT_TRUE(Export(request).ok());
    ModelOptions options;
    options.export_dir = export_;
    options.repository = run_;
    options.follow = false;
    options.require_version = false;
    options.max_row_bytes = 100 * kDim * sizeof(float);
    model_ = Model::Open(options).value();
    ServingServerOptions server;
    server.name = "ctr";
    server.token = "secret";
    server.max_request_bytes = 4096;
    server.max_answer_bytes = 100 * kDim * sizeof(float);
    server_ = ServingServer::Start(server, model_.get()).value();
  }
  void Commit(int step) {
    writer_.Set({1, 2}, static_cast<float>(step));
    step == 1 ? writer_.Full(step) : writer_.Increment(step);
    ASSERT_TRUE(model_->Update().ok());
  }
  HttpResponse Ask(const std::string& method, const std::string& path, const std::string& body = "",
                   const std::string& token = "secret") {
    HttpRequest request;
    request.method = method;
    request.url = server_->url() + path;
    request.body = std::as_bytes(std::span(body));
    if (!token.empty()) request.headers = {{"Authorization", "Bearer " + token}};
    HttpCall call;
    call.prepare = [&](int) { return request; };
    call.max_attempts = 1;
    auto response = client_->Fetch(std::move(call));
    EXPECT_TRUE(response.ok()) << response.status().ToString();
    return response.ok() ? *response : HttpResponse{};
  }
  static std::string Infer(const std::string& ids, int count) {
    return R"({"inputs": [{"name": "rows", "datatype": "INT64", "shape": [)" +
           std::to_string(count) + R"(], "data": [)" + ids + "]}]}";
  }

  TempDirectory directory_;
  const std::string run_ = directory_ / "run";
  const std::string export_ = directory_ / "export";
  JumpingClock clock_;
  TestWriter writer_{run_, {.clock = &clock_}};
  std::unique_ptr<Model> model_;
  std::unique_ptr<ServingServer> server_;
  std::unique_ptr<HttpClient> client_ = HttpClient::Open({}).value();
};

TEST_F(ServingServerTest, IsLiveAtOnceAndReadyWithTheFirstVersion) {
  EXPECT_EQ(Ask("GET", "/v2/health/live").status, 200);
  EXPECT_EQ(Ask("GET", "/v2/health/ready").status, 503);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/infer", Infer("1", 1)).status, 503);
  Commit(1);
  EXPECT_EQ(Ask("GET", "/v2/health/ready").status, 200);
  EXPECT_EQ(Ask("GET", "/v2/models/ctr/ready").status, 200);
  EXPECT_EQ(Ask("GET", "/v2/models/other/ready").status, 404);
}

TEST_F(ServingServerTest, PredictsAndLooksUp) {
  Commit(1);
  Commit(2);
  const HttpResponse answer = Ask("POST", "/v2/models/ctr/infer", Infer("1, 9", 2));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Value value = DecodeJson(answer.body).value();
  EXPECT_EQ(*value.Find("model_name")->if_string(), "ctr");
  EXPECT_EQ(*value.Find("model_version")->if_string(), "2");
  const Value& y = (*value.Find("outputs")->if_list())[0];
  EXPECT_EQ(*y.Find("datatype")->if_string(), "FP32");
  EXPECT_EQ((*y.Find("data")->if_list())[0].AsDouble(), 4);
  EXPECT_EQ((*y.Find("data")->if_list())[kDim].AsDouble(), 2) << "the default is 0";

  const std::int64_t ids[2] = {2, 9};
  const HttpResponse rows = Ask("POST", "/v2/models/ctr/tables/t/lookup",
                                std::string(reinterpret_cast<const char*>(ids), sizeof(ids)));
  ASSERT_EQ(rows.status, 200);
  EXPECT_EQ(rows.Header("x-cairn-version"), "2");
  ASSERT_EQ(rows.body.size(), 2 * kDim * sizeof(float));
  float first = 0;
  std::memcpy(&first, rows.body.data(), sizeof(first));
  EXPECT_EQ(first, 2);

  const Value described = DecodeJson(Ask("GET", "/v2/models/ctr").body).value();
  EXPECT_EQ(*(*described.Find("inputs")->if_list())[0].Find("datatype")->if_string(), "INT64");
}

TEST_F(ServingServerTest, AVersionThatIsKeptMayBeNamed) {
  for (const int step : {1, 2, 3, 4}) Commit(step);
  const Value described = DecodeJson(Ask("GET", "/v2/models/ctr/versions/3").body).value();
  const Value::List kept{"2", "3", "4"};
  EXPECT_EQ(*described.Find("versions"), Value(kept));
  for (const auto& [version, expected] : {std::pair("2", 4.0), std::pair("4", 8.0)}) {
    const std::string path = "/v2/models/ctr/versions/" + std::string(version);
    EXPECT_EQ(Ask("GET", path + "/ready").status, 200);
    const HttpResponse answer = Ask("POST", path + "/infer", Infer("1", 1));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Value value = DecodeJson(answer.body).value();
    EXPECT_EQ(*value.Find("model_version")->if_string(), version);
    const Value& y = (*value.Find("outputs")->if_list())[0];
    EXPECT_EQ((*y.Find("data")->if_list())[0].AsDouble(), expected);
  }
  for (const std::string version : {"1", "5", "-1", "latest", "2x", "99999999999999999999"}) {
    const std::string path = "/v2/models/ctr/versions/" + version;
    EXPECT_EQ(Ask("GET", path).status, 404) << version;
    EXPECT_EQ(Ask("GET", path + "/ready").status, 404) << version;
    EXPECT_EQ(Ask("POST", path + "/infer", Infer("1", 1)).status, 404) << version;
  }
  EXPECT_THAT(Ask("POST", "/v2/models/ctr/versions/1/infer", Infer("1", 1)).body,
              HasSubstr("(step 4)"));
  EXPECT_EQ(Ask("GET", "/v2/models/other/versions/4").status, 404);
}

TEST_F(ServingServerTest, APredictionLooksUpNoMoreRowsThanItMay) {
  Commit(1);
  const auto ask = [&](int count) {
    std::string ids = "1";
    for (int i = 1; i < count; ++i) ids += ",1";
    return Ask("POST", "/v2/models/ctr/infer", Infer(ids, count));
  };
  EXPECT_EQ(ask(100).status, 200);
  const HttpResponse many = ask(101);
  EXPECT_EQ(many.status, 413) << many.body;
  EXPECT_THAT(many.body, HasSubstr("101 ids of \\\"rows\\\""));
}

TEST_F(ServingServerTest, WhatIsWrongIsNamed) {
  Commit(1);
  const HttpResponse shape = Ask("POST", "/v2/models/ctr/infer", Infer("1", 2));
  EXPECT_EQ(shape.status, 400);
  EXPECT_THAT(shape.body, HasSubstr("inputs[0].data"));
  const HttpResponse missing = Ask("POST", "/v2/models/ctr/infer", R"({"inputs": []})");
  EXPECT_EQ(missing.status, 400);
  EXPECT_THAT(missing.body, HasSubstr("rows"));
  EXPECT_EQ(Ask("POST", "/v2/models/other/infer", Infer("1", 1)).status, 404);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/tables/t/lookup", "abc").status, 400);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/tables/u/lookup", "").status, 400);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/infer", std::string(5000, ' ')).status, 413);
  const std::string lookup = "/v2/models/ctr/tables/t/lookup";
  EXPECT_EQ(Ask("POST", lookup, std::string(100 * 8, '\1')).status, 200);
  const HttpResponse many = Ask("POST", lookup, std::string(101 * 8, '\1'));
  EXPECT_EQ(many.status, 413);
  EXPECT_THAT(many.body, HasSubstr("at most 100 rows"));
  EXPECT_EQ(Ask("GET", "/v2/nothing").status, 404);
}

/// Clients of KServe look for "error", whoever refused: the router, the intake or the model.
TEST_F(ServingServerTest, EveryErrorHasKServesFieldAndOurs) {
  Commit(1);
  const struct {
    std::string method;
    std::string path;
    std::string body;
    std::string token;
    int status;
    std::string code;
  } cases[] = {
      {"GET", "/v2/nothing", "", "secret", 404, "not_found"},
      {"GET", "/v2/models/other", "", "secret", 404, "not_found"},
      {"GET", "/v2/models/ctr/infer", "", "secret", 405, "method_not_allowed"},
      {"DELETE", "/v2", "", "secret", 405, "method_not_allowed"},
      {"POST", "/v2/models/ctr/infer", std::string(5000, ' '), "secret", 413, "too_large"},
      {"POST", "/v2/models/ctr/infer", "{", "secret", 400, "invalid_argument"},
      {"POST", "/v2/models/ctr/infer", "{", "wrong", 401, "unauthenticated"},
      {"POST", "/v2/models/ctr/rollback", "{\"n\": 9}", "secret", 409, "failed_precondition"},
      {"POST", "/v2/models/ctr/tables/t/lookup", std::string(101 * 8, '\1'), "secret", 413,
       "too_large"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.method + " " + one.path);
    const HttpResponse answer = Ask(one.method, one.path, one.body, one.token);
    EXPECT_EQ(answer.status, one.status);
    EXPECT_EQ(answer.Header("content-type"), "application/json");
    const auto body = DecodeJson(answer.body);
    ASSERT_TRUE(body.ok()) << answer.body;
    for (const char* member : {"error", "code", "message", "details"}) {
      ASSERT_NE(body->Find(member), nullptr) << member << " in " << answer.body;
    }
    EXPECT_FALSE(body->Find("error")->if_string()->empty());
    EXPECT_EQ(*body->Find("error")->if_string(), *body->Find("message")->if_string());
    EXPECT_EQ(*body->Find("code")->if_string(), one.code);
    EXPECT_TRUE(body->Find("details")->is_object());
  }
}

TEST_F(ServingServerTest, ATrainerBesideItSaysThatItHasCommitted) {
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/notify", "", "wrong").status, 401);
  EXPECT_EQ(Ask("POST", "/v2/models/other/notify").status, 404);
  const HttpResponse told = Ask("POST", "/v2/models/ctr/notify");
  EXPECT_EQ(told.status, 202) << told.body;
}

TEST_F(ServingServerTest, AsksForATokenWhereItMatters) {
  Commit(1);
  EXPECT_EQ(Ask("GET", "/v2/health/live", "", "").status, 200) << "probes have none";
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/infer", Infer("1", 1), "").status, 401);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/rollback", "", "wrong").status, 401);
  EXPECT_EQ(Ask("GET", "/metrics", "", "").status, 401);
}

TEST_F(ServingServerTest, GoesBackAndTellsWhatIsServed) {
  Commit(1);
  Commit(2);
  const HttpResponse back = Ask("POST", "/v2/models/ctr/rollback");
  EXPECT_EQ(back.status, 200);
  EXPECT_EQ(DecodeJson(back.body).value().Find("step")->AsInt(), 1);
  Commit(3);
  const std::string page = Ask("GET", "/metrics").body;
  EXPECT_THAT(page, HasSubstr("cairn_serving_version_step 1\n"));
  EXPECT_THAT(page, HasSubstr("cairn_serving_lag_steps 2\n"));
  EXPECT_THAT(page, HasSubstr("cairn_serving_held 1\n"));
  EXPECT_THAT(page, HasSubstr("cairn_serving_updates_total 3\n"));
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/rollback").status, 409) << "nothing before it";
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/pin", R"({"step": 2})").status, 200);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/pin", R"({"step": 7})").status, 404);
  EXPECT_EQ(Ask("POST", "/v2/models/ctr/pin", "{}").status, 400);
  EXPECT_EQ(DecodeJson(Ask("POST", "/v2/models/ctr/resume").body).value().Find("step")->AsInt(), 3);
  (void)Ask("POST", "/v2/models/ctr/infer", Infer("1", 1));
  EXPECT_THAT(Ask("GET", "/metrics").body,
              HasSubstr("cairn_serving_request_seconds_count{kind=\"predict\"} 1\n"));
}

TEST_F(ServingServerTest, TheLagIsRightWhenTheTrainersClockWasSetBack) {
  Commit(1);
  clock_.wall -= std::int64_t{3'600'000'000'000};
  Commit(2);
  EXPECT_THAT(Ask("GET", "/metrics").body, HasSubstr("cairn_serving_lag_seconds 0\n"));
  ASSERT_TRUE(model_->Rollback(1).ok());
  // What is served was committed later than the newest, by the clock.
  EXPECT_THAT(Ask("GET", "/metrics").body,
              ::testing::ContainsRegex("cairn_serving_lag_seconds 3[0-9]{3}[.]"));
}

}  // namespace
}  // namespace cairn::serving

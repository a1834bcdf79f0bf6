// The master in this process, asked over HTTP, with real processes as trials (shell scripts, which
// say nothing and exit).
#include "master/master.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/thread_annotations.h"
#include "format/json.h"
#include "master/api.h"
#include "master/code_archive.h"
#include "master/files.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "storage/local/temp_directory.h"

namespace cairn::master {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  int status = 0;
  Value body;
  std::string text;
  std::string cookie;

  std::string Text(std::string_view key) const {
    const Value* found = body.Find(key);
    return found != nullptr && found->if_string() != nullptr ? *found->if_string() : "";
  }
  std::int64_t Int(std::string_view key) const {
    const Value* found = body.Find(key);
    return found == nullptr ? -1 : found->AsInt(-1);
  }
};

class MasterTest : public ::testing::Test {
 protected:
  void SetUp() override { StartMaster(); }

  void StartMaster() {
    auto started = Master::Start({.data_directory = data_,
                                  .listen = "127.0.0.1:0",
                                  .slots = 2,
                                  .heartbeat = heartbeat_,
                                  .version = "test",
                                  .weak_hashes = true});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    master_ = *std::move(started);
    token_ = *ReadWhole(master_->token_path());
    token_.pop_back();
    auto client = HttpClient::Open({.retry = {.max_attempts = 1}});
    ASSERT_TRUE(client.ok());
    client_ = *std::move(client);
  }

  Answer Ask(const std::string& method, const std::string& path, const Value& body = {},
             std::vector<HttpHeader> headers = {}, bool with_token = true) {
    if (with_token) headers.push_back({"Authorization", "Bearer " + token_});
    const std::string bytes = body.is_null()     ? ""
                              : body.if_string() ? *body.if_string()
                                                 : EncodeJson(body);
    const auto response =
        client_->Fetch(HttpRequest{.method = method,
                                   .url = master_->url() + path,
                                   .headers = headers,
                                   .body = std::as_bytes(std::span(bytes.data(), bytes.size()))});
    EXPECT_TRUE(response.ok()) << method << " " << path << ": " << response.status().ToString();
    if (!response.ok()) return {};
    Answer answer{.status = response->status, .text = response->body};
    answer.cookie = response->Header("set-cookie");
    if (auto decoded = DecodeJson(response->body); decoded.ok()) answer.body = *std::move(decoded);
    return answer;
  }
  Answer Get(const std::string& path) { return Ask("GET", path); }
  Answer Post(const std::string& path, const Value& body = {}) { return Ask("POST", path, body); }

  std::string Create(const std::string& config, const std::string& request_id = "") {
    Value::Object body{{"config", config}};
    if (!request_id.empty()) body["request_id"] = request_id;
    const Answer made = Post("/api/v1/experiments", body);
    EXPECT_EQ(made.status, 201) << made.text;
    return made.Text("id");
  }

  /// Waits until the experiment is in the state.
  Answer Await(const std::string& id, const std::string& state) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      Answer answer = Get("/api/v1/experiments/" + id);
      if (answer.Text("state") == state) return answer;
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "experiment " << id << " is not " << state << ": " << answer.text;
        return answer;
      }
      Clock::System()->Sleep(std::chrono::milliseconds(20));
    }
  }

  /// Waits until the trial's log has that in it.
  void AwaitLog(const std::string& trial, const std::string& text) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Get("/api/v1/trials/" + trial + "/logs").text.find(text) == std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "no \"" << text << "\"";
      Clock::System()->Sleep(std::chrono::milliseconds(20));
    }
  }

  TempDirectory temp_;
  const std::string data_ = temp_.path() + "/data";
  std::chrono::milliseconds heartbeat_ = std::chrono::seconds(10);
  std::unique_ptr<Master> master_;
  std::unique_ptr<HttpClient> client_;
  std::string token_;
};

TEST_F(MasterTest, AProcessThatJoinedAndIsSilentIsGivenUpAndMayComeAgain) {
  master_.reset();
  heartbeat_ = std::chrono::milliseconds(50);
  StartMaster();
  const Value who = Value::Object{{"external_id", "by hand"}, {"hparams", Value::Object{{"a", 1}}}};
  EXPECT_EQ(Ask("POST", "/trial/v1/join", who, {}, /*with_token=*/false).status, 401);
  EXPECT_EQ(Post("/trial/v1/join", Value::Object{}).status, 400);
  const Answer joined = Post("/trial/v1/join", who);
  ASSERT_EQ(joined.status, 200) << joined.text;
  EXPECT_EQ(joined.Int("run_id"), 1);
  const std::string id = joined.Text("experiment_id");
  EXPECT_EQ(Get("/api/v1/experiments/" + id).Text("name"), "by hand");
  // Six heartbeats that never come; nobody here can start it again.
  Await(id, "PAUSED");
  const Answer again = Post("/trial/v1/join", who);
  ASSERT_EQ(again.status, 200) << again.text;
  EXPECT_EQ(again.Text("trial_id"), joined.Text("trial_id"));
  EXPECT_EQ(again.Int("run_id"), 2);
  Await(id, "PAUSED");
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/cancel").status, 200);
  Await(id, "CANCELED");
  EXPECT_EQ(Ask("DELETE", "/api/v1/experiments/" + id).status, 200);
  EXPECT_EQ(Post("/trial/v1/join", who).status, 412) << "its experiment was deleted";
}

TEST_F(MasterTest, AnExperimentRunsItsCodeAndKeepsItsLog) {
  const std::string code = temp_.path() + "/code";
  std::filesystem::create_directories(code);
  std::ofstream(code + "/train.sh") << "echo \"lr is $CAIRN_HPARAMS\"; echo oops >&2\n";
  const auto archive = PackCode(code);
  ASSERT_TRUE(archive.ok());
  const Answer stored = Ask("POST", "/api/v1/code", Value(*archive));
  ASSERT_EQ(stored.status, 201) << stored.text;
  EXPECT_EQ(stored.Int("files"), 1);
  const Answer made =
      Post("/api/v1/experiments", Value::Object{{"config",
                                                 "name: first\nentrypoint: sh train.sh\n"
                                                 "hyperparameters: {lr: 0.5}\nmax_restarts: 0\n"},
                                                {"code", stored.Text("code")}});
  ASSERT_EQ(made.status, 201) << made.text;
  EXPECT_EQ(made.Text("name"), "first");
  EXPECT_EQ(made.Text("owner"), "admin");
  const std::string id = made.Text("id");
  const Answer done = Await(id, "COMPLETED");
  const std::string trial = done.Text("trial");
  EXPECT_EQ(Get("/api/v1/trials/" + trial).Text("state"), "COMPLETED");
  EXPECT_EQ(Get("/api/v1/trials/" + trial).Text("experiment"), id);
  // Followed to the end of the trial: the stream ends by itself, with all lines.
  const Answer log = Get("/api/v1/trials/" + trial + "/logs?follow=true");
  EXPECT_THAT(log.text, HasSubstr("lr is {\\\"lr\\\":0.5}"));
  EXPECT_THAT(log.text, HasSubstr("\"stream\":\"stderr\",\"text\":\"oops\""));
  EXPECT_THAT(log.text, HasSubstr("event: end\ndata: {\"state\":\"COMPLETED\"}"));
  const Answer page = Get("/api/v1/trials/" + trial + "/logs?stream=stderr");
  EXPECT_EQ(page.body.Find("lines")->if_list()->size(), 1u);
  EXPECT_EQ(Get("/api/v1/experiments/" + id + "/code/file?path=train.sh").status, 200);
  EXPECT_EQ(Get("/api/v1/experiments/" + id + "/code/file?path=../../token").status, 404);
  EXPECT_THAT(Get("/api/v1/experiments/" + id + "/config").text, HasSubstr("name: first"));
  const Value* config = done.body.Find("config");
  ASSERT_NE(config, nullptr);
  EXPECT_EQ(config->Find("max_restarts")->AsInt(), 0);             // as the file says
  EXPECT_EQ(config->Find("preemption_timeout")->AsDouble(), 600);  // as it does not
  const Answer runs = Get("/api/v1/trials/" + trial + "/runs");
  EXPECT_EQ(runs.body.Find("runs")->if_list()->front().Find("exit_code")->AsInt(), 0);
}

TEST_F(MasterTest, AFailingTrialIsAnErrorAfterItsRestarts) {
  const std::string id = Create("entrypoint: exit 3\nmax_restarts: 1\n");
  const Answer ended = Await(id, "ERROR");
  const std::string trial = ended.Text("trial");
  const Answer runs = Get("/api/v1/trials/" + trial + "/runs");
  ASSERT_EQ(runs.body.Find("runs")->if_list()->size(), 2u) << runs.text;
  EXPECT_EQ(runs.body.Find("runs")->if_list()->back().Find("exit_code")->AsInt(), 3);
}

TEST_F(MasterTest, AGridIsTriedPointByPoint) {
  const std::string id = Create(
      "entrypoint: 'true'\nhyperparameters:\n  a: {type: categorical, vals: [1, 2, 3]}\n"
      "  b: {type: int, minval: 0, maxval: 1, count: 2}\n"
      "searcher: {name: grid, max_concurrent_trials: 2}\n");
  const Answer done = Await(id, "COMPLETED");
  EXPECT_EQ(done.Int("trials"), 6);
  EXPECT_EQ(done.body.Find("progress")->AsDouble(), 1.0);
  const Answer trials = Get("/api/v1/experiments/" + id + "/trials?limit=100");
  std::set<std::string> points;
  for (const Value& trial : *trials.body.Find("trials")->if_list()) {
    points.insert(EncodeJson(*trial.Find("hparams")));
  }
  EXPECT_EQ(points.size(), 6u);
}

TEST_F(MasterTest, PauseActivateCancelKill) {
  const std::string id = Create(
      "entrypoint: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 0.05; done']\n"
      "preemption_timeout: 0\nkill_grace: 1\n");
  Await(id, "STARTING");
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/pause").status, 200);
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/pause").status, 200) << "again is no error";
  Await(id, "PAUSED");
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/activate").status, 200);
  Await(id, "STARTING");
  EXPECT_EQ(Ask("DELETE", "/api/v1/experiments/" + id).status, 412);
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/kill").status, 200);
  Await(id, "CANCELED");
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/activate").status, 412);
  EXPECT_EQ(Ask("DELETE", "/api/v1/experiments/" + id).status, 200);
  EXPECT_EQ(Get("/api/v1/experiments/" + id).status, 404);
  EXPECT_EQ(Get("/api/v1/trials/1").status, 404);
}

TEST_F(MasterTest, CreatedPausedItWaitsToBeActivated) {
  const Answer made = Post("/api/v1/experiments",
                           Value::Object{{"config", "entrypoint: 'true'"}, {"paused", true}});
  ASSERT_EQ(made.status, 201) << made.text;
  EXPECT_EQ(made.Text("state"), "PAUSED");
  const std::string id = made.Text("id");
  EXPECT_EQ(Get("/api/v1/experiments/" + id).Int("trials"), 0);
  EXPECT_EQ(Post("/api/v1/experiments/" + id + "/activate").status, 200);
  Await(id, "COMPLETED");
}

TEST_F(MasterTest, ATrialIsThereWhenItsExperimentWasCreated) {
  for (int i = 0; i < 5; ++i) {
    const Answer made =
        Post("/api/v1/experiments", Value::Object{{"config", "entrypoint: 'true'"}});
    ASSERT_EQ(made.status, 201) << made.text;
    EXPECT_EQ(made.Int("trials"), 1);
    const Answer trials = Get("/api/v1/experiments/" + made.Text("id") + "/trials");
    ASSERT_EQ(trials.body.Find("trials")->if_list()->size(), 1u) << trials.text;
    const std::string trial = made.Text("trial");
    EXPECT_EQ(*trials.body.Find("trials")->if_list()->front().Find("id"), Value(trial));
    EXPECT_EQ(Get("/api/v1/trials/" + trial).status, 200);
  }
}

TEST_F(MasterTest, ManyTrialsAreMadeWhileOthersHaveTheirTurn) {
  const std::string many = Create(
      "entrypoint: 'true'\nhyperparameters: {a: {type: int, minval: 1, maxval: 40}}\n"
      "searcher: {name: random, max_trials: 40, max_concurrent_trials: 40}\n");
  EXPECT_GT(Get("/api/v1/experiments/" + many).Int("trials"), 0);
  EXPECT_EQ(Await(many, "COMPLETED").Int("trials"), 40);
}

TEST_F(MasterTest, AnExperimentWithoutANameIsCalledByItsNumber) {
  const std::string id = Create("entrypoint: 'true'");
  EXPECT_EQ(Get("/api/v1/experiments/" + id).Text("name"), "experiment " + id);
  const Answer found = Get("/api/v1/experiments?search=experiment%20" + id);
  EXPECT_EQ(found.Int("total"), 1);
}

TEST_F(MasterTest, TheSameRequestAgainCreatesNothing) {
  const std::string first = Create("entrypoint: 'true'", "request-0001");
  EXPECT_EQ(Create("entrypoint: 'true'", "request-0001"), first);
  EXPECT_NE(Create("entrypoint: 'true'", "request-0002"), first);
}

TEST_F(MasterTest, BadConfigsAndBodiesAreRefusedWithTheirPlace) {
  const Answer refused =
      Post("/api/v1/experiments", Value::Object{{"config", "entrypoint: a\nmax_restart: 1\n"}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.Text("code"), "invalid_config");
  const Value& problem = refused.body.Find("details/problems")->if_list()->front();
  EXPECT_EQ(problem.Find("line")->AsInt(), 2);
  EXPECT_THAT(*problem.Find("message")->if_string(), HasSubstr("did you mean \"max_restarts\"?"));
  const Answer several = Post("/api/v1/experiments",
                              Value::Object{{"config", "nam: a\nentrypoint: a\nmax_restart: 1\n"}});
  EXPECT_EQ(several.status, 400);
  ASSERT_EQ(several.body.Find("details/problems")->if_list()->size(), 2u) << several.text;
  EXPECT_EQ(several.body.Find("details/problems")->if_list()->back().Find("line")->AsInt(), 3);
  EXPECT_THAT(several.Text("message"), HasSubstr("several mistakes:\nline 1: \"nam\""));
  EXPECT_EQ(Post("/api/v1/experiments", Value::Object{{"confg", "x"}}).status, 400);
  EXPECT_EQ(Ask("POST", "/api/v1/experiments", Value("{")).status, 400);
  EXPECT_EQ(Ask("POST", "/api/v1/code", Value("no archive")).status, 400);
  EXPECT_EQ(Get("/api/v1/experiments?limit=0").status, 400);
  EXPECT_EQ(Get("/api/v1/experiments/0").status, 404);
  EXPECT_EQ(Get("/api/v1/experiments/..%2f..%2ftoken").status, 404);
  EXPECT_EQ(Get("/api/v1/nothing").status, 404);
  EXPECT_EQ(Get("/api/v1/auth/login").status, 405);
  EXPECT_THAT(Post("/api/v1/experiments",
                   Value::Object{{"config", "entrypoint: a\nresources: {slots_per_trial: 9}"}})
                  .text,
              HasSubstr("this master has 2"));
  const std::string label(65, 'a');
  for (const auto& [odd, why] : {std::pair("labels: [" + label + "]", "1 to 64 bytes"),
                                 std::pair(std::string("labels: ['']"), "1 to 64 bytes"),
                                 std::pair(std::string("checkpoint_storage: s3://"), "no bucket"),
                                 std::pair(std::string("checkpoint_storage: s3:///a"), "bucket")}) {
    const Answer one =
        Post("/api/v1/experiments", Value::Object{{"config", "entrypoint: a\n" + odd}});
    EXPECT_EQ(one.status, 400) << odd;
    EXPECT_THAT(one.Text("message"), HasSubstr(why));
  }
}

TEST_F(MasterTest, StrangersAreTurnedAway) {
  EXPECT_EQ(Ask("GET", "/api/v1/experiments", {}, {}, false).status, 401);
  EXPECT_EQ(Ask("GET", "/api/v1/experiments", {}, {{"Authorization", "Bearer x"}}, false).status,
            401);
  EXPECT_EQ(Ask("GET", "/metrics", {}, {}, false).status, 401);
  EXPECT_EQ(Ask("GET", "/healthz", {}, {}, false).status, 200);
  EXPECT_EQ(Ask("GET", "/api/v1/master", {}, {}, false).Text("version"), "test");
  struct stat status{};
  ASSERT_EQ(stat(master_->token_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(data_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(MasterTest, RolesAndSessions) {
  ASSERT_EQ(
      Post("/api/v1/users",
           Value::Object{{"username", "vera"}, {"password", "correct horse"}, {"role", "viewer"}})
          .status,
      201);
  EXPECT_EQ(Post("/api/v1/users", Value::Object{{"username", "VERA"}, {"role", "user"}}).status,
            409);
  const auto login = [&](const std::string& password) {
    return Ask("POST", "/api/v1/auth/login",
               Value::Object{{"username", "vera"}, {"password", password}, {"cookie", true}}, {},
               false);
  };
  EXPECT_EQ(login("wrong").status, 401);
  const Answer in = login("correct horse");
  ASSERT_EQ(in.status, 200) << in.text;
  EXPECT_EQ(in.body.Find("token"), nullptr);
  EXPECT_THAT(in.cookie, HasSubstr("HttpOnly; SameSite=Strict"));
  const HttpHeader cookie{"Cookie", in.cookie.substr(0, in.cookie.find(';'))};
  const HttpHeader header{"X-Cairn-Request", "1"};
  EXPECT_EQ(Ask("GET", "/api/v1/auth/whoami", {}, {cookie}, false).Text("username"), "vera");
  const Value token = Value::Object{{"name", "mine"}};
  EXPECT_EQ(Ask("POST", "/api/v1/tokens", token, {cookie}, false).status, 403) << "no header";
  EXPECT_EQ(Ask("POST", "/api/v1/tokens", token, {cookie, header}, false).status, 201);
  EXPECT_EQ(Ask("GET", "/api/v1/users", {}, {cookie}, false).status, 403);
  EXPECT_EQ(Ask("POST", "/api/v1/experiments", Value::Object{{"config", "entrypoint: a"}},
                {cookie, header}, false)
                .status,
            403);
  EXPECT_EQ(
      Ask("PATCH", "/api/v1/users/vera", Value::Object{{"role", "admin"}}, {cookie, header}, false)
          .status,
      412);
  EXPECT_EQ(Ask("PATCH", "/api/v1/users/admin", Value::Object{{"password", "stolen-pass"}},
                {cookie, header}, false)
                .status,
            404);
  EXPECT_EQ(Ask("POST", "/api/v1/auth/logout", {}, {cookie, header}, false).status, 200);
  EXPECT_EQ(Ask("GET", "/api/v1/auth/whoami", {}, {cookie}, false).status, 401);
  // The last admin stays.
  EXPECT_EQ(Ask("PATCH", "/api/v1/users/admin", Value::Object{{"active", false}}).status, 412);
  for (int i = 0; i < 6; ++i) login("wrong");
  EXPECT_EQ(login("correct horse").status, 429);
  ASSERT_EQ(Ask("PATCH", "/api/v1/users/vera", Value::Object{{"active", false}}).status, 200);
}

TEST_F(MasterTest, ALoginLinkWorksOnce) {
  const auto link = master_->LoginLink();
  ASSERT_TRUE(link.ok());
  const Value body = Value::Object{{"code", link->substr(link->find("code=") + 5)}};
  const Answer first = Ask("POST", "/api/v1/auth/login", body, {}, false);
  EXPECT_EQ(first.status, 200) << first.text;
  EXPECT_FALSE(first.Text("token").empty());
  EXPECT_EQ(Ask("POST", "/api/v1/auth/login", body, {}, false).status, 401);
}

TEST_F(MasterTest, WithoutAPageItsAddressSaysHowToGetOne) {
  EXPECT_THAT(master_->CheckPage().ToString(), HasSubstr("Run scripts/web in the checkout"));
  const Answer answer = Ask("GET", "/", {}, {}, /*with_token=*/false);
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.text, HasSubstr("this master has no web page. Run scripts/web"));
  EXPECT_EQ(Get("/experiments").status, 404);

  master_.reset();
  std::filesystem::create_directory(data_ + "/web");
  StartMaster();
  EXPECT_THAT(master_->CheckPage().ToString(), HasSubstr("/data/web). Run scripts/web"));
  EXPECT_THAT(Ask("GET", "/", {}, {}, /*with_token=*/false).text, Not(HasSubstr("/data/web")));

  std::ofstream(data_ + "/web/index.html") << "<title>the page</title>";
  EXPECT_TRUE(master_->CheckPage().ok());
  EXPECT_EQ(Get("/").text, "<title>the page</title>");
}

TEST_F(MasterTest, ListensElsewhereOnlyWithAPassword) {
  master_.reset();
  const MasterOptions options{
      .data_directory = data_, .listen = "0.0.0.0:0", .slots = 1, .weak_hashes = true};
  const auto refused = Master::Start(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().ToString(), HasSubstr("no user has a password"));
  const auto nowhere = Master::Start({.data_directory = data_, .listen = "nonsense"});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.status().ToString(), HasSubstr("\"nonsense\" has no port"));
}

TEST_F(MasterTest, ASecondMasterIsRefused) {
  const auto second =
      Master::Start({.data_directory = data_, .listen = "127.0.0.1:0", .weak_hashes = true});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().ToString(), HasSubstr("another master lives on"));
  const std::string taken = master_->url().substr(std::string("http://").size());
  const auto third = Master::Start(
      {.data_directory = temp_.path() + "/other", .listen = taken, .weak_hashes = true});
  ASSERT_FALSE(third.ok());
  EXPECT_THAT(third.status().ToString(),
              HasSubstr("listens on " + taken + ": end it, or choose another port with --listen"));
  std::ofstream(temp_.path() + "/file") << "not a directory";
  const auto fourth = Master::Start(
      {.data_directory = temp_.path() + "/file", .listen = "127.0.0.1:0", .weak_hashes = true});
  ASSERT_FALSE(fourth.ok());
  EXPECT_THAT(fourth.status().ToString(), HasSubstr("/file: it is not a directory"));
}

TEST_F(MasterTest, RunsSurviveTheMasterAndAreFoundAgain) {
  const std::string go = temp_.path() + "/go";
  const std::string id = Create("entrypoint: [sh, -c, 'echo begun; while [ ! -e " + go +
                                " ]; do sleep 0.05; done; echo over']\n");
  const std::string trial = Await(id, "STARTING").Text("trial");
  AwaitLog(trial, "begun");  // a master that ends before it has launched it would launch it later
  const std::string waiting = Create("entrypoint: 'true'\nresources: {slots: 2}\n");
  master_.reset();
  StartMaster();
  EXPECT_EQ(Get("/api/v1/experiments/" + id).Text("state"), "STARTING");
  std::ofstream(go) << "";
  Await(id, "COMPLETED");
  Await(waiting, "COMPLETED");
  const Answer runs = Get("/api/v1/trials/" + trial + "/runs");
  EXPECT_EQ(runs.body.Find("runs")->if_list()->size(), 1u) << "it was not started again";
  const std::string log = Get("/api/v1/trials/" + trial + "/logs?follow=true").text;
  EXPECT_THAT(log, HasSubstr("begun"));
  EXPECT_THAT(log, HasSubstr("over"));
  EXPECT_EQ(log.find("begun"), log.rfind("begun")) << "no line twice";
}

TEST_F(MasterTest, WhatWaitsForSlotsIsQueuedInTheListTooAlsoAfterTheMasterWasStartedAgain) {
  const std::string go = temp_.path() + "/go";
  const std::string held =
      "entrypoint: [sh, -c, 'echo begun; while [ ! -e " + go + " ]; do sleep 0.05; done']\n";
  const std::string holder = Create(held + "resources: {slots: 2}\n");
  AwaitLog(Await(holder, "STARTING").Text("trial"), "begun");
  const std::string waiting = Create(held);
  const auto queue = [&] { return Get("/api/v1/cluster").body.Find("queue")->if_list()->size(); };
  while (queue() == 0) Clock::System()->Sleep(std::chrono::milliseconds(5));
  Await(waiting, "QUEUED");
  master_.reset();
  StartMaster();
  Await(holder, "STARTING");
  Await(waiting, "QUEUED");
  std::ofstream(go) << "";
  Await(waiting, "COMPLETED");
}

/// A process that was started by hand and joined: what it says to the master.
struct Joined {
  std::string trial;
  std::string base;
  std::vector<HttpHeader> headers;
};

class JoinedMasterTest : public MasterTest {
 protected:
  Joined Join(const std::string& name) {
    const Answer joined = Post("/trial/v1/join", Value::Object{{"external_id", name}});
    EXPECT_EQ(joined.status, 200) << joined.text;
    return {.trial = joined.Text("trial_id"),
            .base = "/trial/v1/trials/" + joined.Text("trial_id") + "/runs/1",
            .headers = {{"Authorization", "Bearer " + joined.Text("token")}}};
  }
  Answer Say(const Joined& run, const std::string& path, const Value& body) {
    return Ask("POST", run.base + path, body, run.headers, /*with_token=*/false);
  }
  /// A checkpoint as the record knows it; there are no files.
  void Save(const Joined& run, const std::string& id, int steps) {
    const Value::Object what{{"registration", id}, {"id", id}, {"steps_completed", steps}};
    EXPECT_EQ(Say(run, "/checkpoints", what).status, 201);
    EXPECT_EQ(Say(run, "/checkpoints/" + id + "/complete", what).status, 200);
  }
};

TEST_F(JoinedMasterTest, WhatIsNotThereIsNotBegunWith) {
  const Joined one = Join("one");
  const Joined other = Join("other");
  Save(one, "11111111-1111-1111-1111-111111111111", 10);
  Save(one, "22222222-2222-2222-2222-222222222222", 20);
  Save(other, "33333333-3333-3333-3333-333333333333", 30);
  EXPECT_EQ(
      Say(one, "/checkpoints/11111111-1111-1111-1111-111111111111/deleted", Value::Object{}).status,
      200);
  const auto from = [](const char* id) {
    return Value(Value::Object{
        {"new", true}, {"from", id}, {"config", Value::Object{{"entrypoint", "true"}}}});
  };
  const std::string path = "/api/v1/trials/" + one.trial + "/continue";
  const Answer deleted = Post(path, from("11111111"));
  EXPECT_EQ(deleted.status, 404) << deleted.text;
  EXPECT_THAT(deleted.Text("message"), HasSubstr("it is DELETED"));
  EXPECT_EQ(Post(path, from("33333333")).status, 404);
  EXPECT_EQ(Get("/api/v1/experiments").Int("total"), 2) << "none that would wait for ever";
  EXPECT_EQ(Post(path, from("22222222")).status, 201);
}

TEST_F(JoinedMasterTest, ReportsComeInPagesWhateverTheirGroupIsCalled) {
  const Joined run = Join("pages");
  const std::string group(256, 'g');
  for (int i = 1; i <= 7; ++i) {
    Value::Object metrics{{"x", i}};
    if (i % 2 == 1) metrics["odd"] = i;
    EXPECT_EQ(Say(run, "/reports",
                  Value::Object{{"sequence", i},
                                {"group", group},
                                {"steps_completed", i},
                                {"metrics", std::move(metrics)}})
                  .status,
              200);
  }
  const auto pages = [&](const std::string& query) {
    std::string steps;
    for (std::int64_t after = 0;;) {
      const Answer page = Get("/api/v1/trials/" + run.trial + "/metrics?group=" + group + query +
                              "&after=" + std::to_string(after));
      EXPECT_EQ(page.status, 200) << page.text;
      for (const Value& one : *page.body.Find("metrics")->if_list()) {
        steps += std::to_string(one.Find("steps_completed")->AsInt());
      }
      if (*page.body.Find("more") != Value(true)) return steps;
      steps += '|';
      after = page.Int("next");
    }
  };
  EXPECT_EQ(pages("&limit=3"), "123|456|7");
  EXPECT_EQ(pages("&limit=7"), "1234567");
  EXPECT_EQ(pages("&limit=2&name=odd"), "13|57") << "those without it take no place";
}

TEST_F(JoinedMasterTest, LinesOfNoTimeAndNoRankAreKeptAsOfNow) {
  const Joined run = Join("timeless");
  const Value lines = Value::List{Value::Object{{"text", "a"}, {"time", 1e300}},
                                  Value::Object{{"text", "b"}, {"time", -1e300}, {"rank", -5}},
                                  Value::Object{{"text", "c"}, {"rank", std::int64_t{1} << 40}}};
  const double before = static_cast<double>(Clock::System()->WallNanos()) / 1e9;
  ASSERT_EQ(Say(run, "/logs", Value::Object{{"lines", lines}}).status, 200);
  AwaitLog(run.trial, "\"c\"");
  const Answer page = Get("/api/v1/trials/" + run.trial + "/logs");
  for (const Value& line : *page.body.Find("lines")->if_list()) {
    EXPECT_EQ(line.Find("rank")->AsInt(), 0);
    EXPECT_NEAR(line.Find("time")->AsDouble(), before, 100);
  }
}

TEST_F(MasterTest, CodeThatIsGoneIsToldAndWaitedFor) {
  const std::string code = temp_.path() + "/code";
  std::filesystem::create_directories(code);
  const Answer stored = Ask("POST", "/api/v1/code", Value(*PackCode(code)));
  const Answer made = Post("/api/v1/experiments", Value::Object{{"config", "entrypoint: 'true'\n"},
                                                                {"code", stored.Text("code")},
                                                                {"paused", true}});
  ASSERT_EQ(made.status, 201) << made.text;
  const std::string id = made.Text("id");
  const std::string archive = data_ + "/code/" + stored.Text("code") + ".tar.gz";
  std::filesystem::rename(archive, temp_.path() + "/away");
  EXPECT_NE(Post("/api/v1/experiments/" + id + "/activate").status, 200);
  const std::string path = "/api/v1/experiments/" + id;
  EXPECT_THAT(Get(path).Text("message"), HasSubstr("its trials cannot be made: no code "));
  std::filesystem::rename(temp_.path() + "/away", archive);
  EXPECT_EQ(Await(id, "COMPLETED").Text("message"), "");
}

TEST_F(MasterTest, StorageThatCannotBeFreedNowIsFreedLater) {
  const std::string id = Create("entrypoint: 'true'\n");
  const std::string trial = Await(id, "COMPLETED").Text("trial");
  const std::string repository = data_ + "/checkpoints/" + id + "/" + trial;
  const std::string record = repository + "/cairn.json";
  const std::string text = *ReadWhole(record);
  std::ofstream(record) << "{";  // whose it is cannot be read
  EXPECT_EQ(Ask("DELETE", "/api/v1/experiments/" + id).status, 200);
  // Another removal, which goes through, shows that the first one was tried.
  const std::string second = Create("entrypoint: 'true'\n");
  const std::string other = data_ + "/checkpoints/" + second;
  Await(second, "COMPLETED");
  EXPECT_EQ(Ask("DELETE", "/api/v1/experiments/" + second).status, 200);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto await_gone = [&](const std::string& place) {
    while (std::filesystem::exists(place)) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << place;
      Clock::System()->Sleep(std::chrono::milliseconds(20));
    }
  };
  await_gone(other);
  ASSERT_TRUE(std::filesystem::exists(repository));
  std::ofstream(record) << text;
  await_gone(repository);
}

TEST_F(MasterTest, AUrlThatAnswersBitByBitHoldsUpNobody) {
  constexpr int kTests = 20;  // more than there are threads for requests
  Mutex mu;
  CondVar changed;
  std::vector<HttpStream> answers;
  auto url = HttpServer::Start({.listen = "127.0.0.1:0"},
                               {{.method = "POST",
                                 .pattern = "/",
                                 .handler = [&](const ServerRequest&, const HttpReply& reply) {
                                   MutexLock hold(&mu);
                                   answers.push_back(reply.Stream(200, "text/plain"));
                                   answers.back().Write("x");
                                   changed.NotifyAll();
                                 }}});
  ASSERT_TRUE(url.ok());
  const Answer hook = Post("/api/v1/webhooks", Value::Object{{"url", (*url)->url() + "/"}});
  ASSERT_EQ(hook.status, 201) << hook.text;
  auto testers = HttpClient::Open({.connections = kTests, .retry = {.max_attempts = 1}});
  ASSERT_TRUE(testers.ok());
  for (int i = 0; i < kTests; ++i) {
    HttpRequest request{.method = "POST",
                        .url = master_->url() + "/api/v1/webhooks/" + hook.Text("id") + "/test",
                        .headers = {{"Authorization", "Bearer " + token_}}};
    (*testers)->Start({.prepare = [request](int) -> Result<HttpRequest> { return request; },
                       .done = [](const Result<HttpResponse>&) {},
                       .max_attempts = 1});
  }
  {
    MutexLock hold(&mu);
    while (answers.size() < kTests) ASSERT_TRUE(changed.WaitFor(&mu, std::chrono::seconds(60)));
  }
  EXPECT_EQ(Get("/api/v1/experiments").status, 200);
  master_.reset();  // nor do they keep it from ending
}

TEST(SlotsTest, OnlyWhatRunsOnThisMachineHasSlotsOfIt) {
  EXPECT_TRUE(HasSlotsHere({.launcher = "local", .state = LaunchState::kRunning}));
  EXPECT_FALSE(HasSlotsHere({.launcher = "local", .state = LaunchState::kQueued}));
  EXPECT_FALSE(HasSlotsHere({.launcher = "slurm", .state = LaunchState::kRunning}));
  EXPECT_FALSE(HasSlotsHere({.launcher = "ray", .state = LaunchState::kRunning}));
}

TEST_F(MasterTest, FiguresAndCluster) {
  Await(Create("name: a\nentrypoint: 'true'"), "COMPLETED");
  const Answer figures = Get("/metrics");
  EXPECT_THAT(figures.text, HasSubstr("cairn_trials{state=\"COMPLETED\"} 1\n"));
  EXPECT_THAT(figures.text, HasSubstr("# TYPE cairn_events_total counter"));
  const Answer cluster = Get("/api/v1/cluster");
  EXPECT_EQ(cluster.Int("slots"), 2);
  EXPECT_EQ(cluster.Int("used_slots"), 0);
  EXPECT_EQ(Ask("PUT", "/api/v1/services/ps-1",
                Value::Object{{"kind", "paramserver"}, {"facts", Value::Object{{"rows", 3}}}})
                .status,
            200);
  EXPECT_EQ(Get("/api/v1/cluster").body.Find("services")->if_list()->size(), 1u);
  const Answer list = Get("/api/v1/experiments?state=COMPLETED&search=A&sort=name&order=asc");
  EXPECT_EQ(list.Int("total"), 1);
  EXPECT_EQ(Get("/api/v1/storage").Int("bytes"), 0);
}

}  // namespace
}  // namespace cairn::master

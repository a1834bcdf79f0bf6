// The commands that speak with a master, as processes, against a server that answers what the test
// says (docs/openapi.yaml). What a real master does with them is tested in tests/master.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "cli/test_program.h"
#include "format/json.h"
#include "net/test_http_server.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TestHttpReply JsonAnswer(int status, const std::string& body) {
  return Answer(status, body, {{"Content-Type", "application/json"}});
}

TestHttpReply Stream(const std::string& events) {
  TestHttpReply reply = Answer(200, events, {{"Content-Type", "text/event-stream"}});
  return reply;
}

std::string Line(int id, const std::string& text) {
  return "id: " + std::to_string(id) + "\nevent: log\ndata: {\"id\": " + std::to_string(id) +
         ", \"time\": 1.5, \"run_id\": 1, \"rank\": 0, \"text\": \"" + text + "\"}\n\n";
}

const char* const kRunning =
    R"({"id": "7", "name": "mnist", "state": "RUNNING", "owner": "ada", "progress": 0.25,
        "created": 1000.0, "started": 1001.0, "duration": 62.5, "trials": 1, "trial_states":
        {"RUNNING": 1}, "best": {"trial": "12", "metric": "loss", "value": 0.125},
        "checkpoints": 2, "checkpoint_bytes": 2048, "labels": ["paper"], "archived": false})";
const char* const kTrial =
    R"({"id": "12", "experiment": "7", "state": "COMPLETED", "hparams": {"lr": 0.1},
        "progress": 1.0, "run_id": 2, "restarts": 0, "max_restarts": 5, "created": 1000.0,
        "checkpoints": 2, "checkpoint_bytes": 2048, "world_size": 1})";

class MasterCommandsTest : public testing::Test {
 protected:
  /// Answers by "METHOD /path" without the query.
  void On(const std::string& what, std::function<TestHttpReply(const TestHttpRequest&)> reply) {
    MutexLock lock(&mu_);
    replies_[what] = std::move(reply);
  }
  void On(const std::string& what, int status, const std::string& body) {
    On(what, [=](const TestHttpRequest&) { return JsonAnswer(status, body); });
  }
  /// All that was asked, as "METHOD /path?query".
  std::vector<std::string> Asked() {
    MutexLock lock(&mu_);
    return asked_;
  }
  std::string LastHeader(const std::string& name) {
    MutexLock lock(&mu_);
    return std::string(last_.Header(name));
  }
  Value LastBody() {
    MutexLock lock(&mu_);
    auto body = DecodeJson(last_.body);
    return body.ok() ? *body : Value();
  }

  std::function<void()> Environment(const std::string& token = "secret") {
    return [this, token, url = server_.url()] {
      setenv("CAIRN_MASTER", url.c_str(), 1);
      setenv("HOME", directory_.path().c_str(), 1);
      setenv("XDG_CONFIG_HOME", (directory_ / "config").c_str(), 1);
      setenv("XDG_RUNTIME_DIR", (directory_ / "run").c_str(), 1);
      if (token.empty()) {
        unsetenv("CAIRN_TOKEN");
      } else {
        setenv("CAIRN_TOKEN", token.c_str(), 1);
      }
    };
  }
  Finished Cairn(const std::vector<std::string>& words, const std::string& token = "secret") {
    return RunProgram(words, Environment(token));
  }

  TempDirectory directory_;

 private:
  TestHttpReply Handle(const TestHttpRequest& request) {
    std::function<TestHttpReply(const TestHttpRequest&)> reply;
    {
      MutexLock lock(&mu_);
      asked_.push_back(request.method + " " + request.target);
      last_ = request;
      const std::string path = request.target.substr(0, request.target.find('?'));
      const auto found = replies_.find(request.method + " " + path);
      if (found == replies_.end()) {
        return JsonAnswer(404, R"({"code": "not_found", "message": "no such thing here",
                                   "details": {}})");
      }
      reply = found->second;
    }
    return reply(request);
  }

  Mutex mu_;
  std::map<std::string, std::function<TestHttpReply(const TestHttpRequest&)>> replies_
      GUARDED_BY(mu_);
  std::vector<std::string> asked_ GUARDED_BY(mu_);
  TestHttpRequest last_ GUARDED_BY(mu_);

 protected:
  TestHttpServer server_{[this](const TestHttpRequest& request) { return Handle(request); }};
};

TEST_F(MasterCommandsTest, ListIsATableForPeopleAndTheAnswerForPrograms) {
  const std::string page =
      std::string(R"({"experiments": [)") + kRunning + R"(], "total": 3, "limit": 1, "offset": 0})";
  On("GET /api/v1/experiments", 200, page);
  const Finished table = Cairn({"e", "ls", "--state", "RUNNING,PAUSED", "--limit", "1"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("ID  NAME   STATE    PROGRESS  TRIALS  BEST"),
                               HasSubstr(" 7  mnist  RUNNING      25 %       1  loss=0.125"),
                               HasSubstr("1 of 3: more with --offset 1")));
  EXPECT_THAT(Asked(),
              ElementsAre("GET /api/v1/experiments?state=RUNNING%2CPAUSED&limit=1&offset=0"));
  EXPECT_EQ(LastHeader("authorization"), "Bearer secret");
  const Finished json = Cairn({"experiment", "list", "--json"});
  EXPECT_EQ(Json(json), *DecodeJson(page));
}

TEST_F(MasterCommandsTest, ProgressThatNobodyReportedIsNotNothingDone) {
  On("GET /api/v1/experiments", 200,
     R"({"experiments": [{"id": "7", "name": "one", "state": "RUNNING", "progress": 0, "trials": 1},
                         {"id": "8", "name": "many", "state": "RUNNING", "progress": 0, "trials": 9}],
         "total": 2})");
  EXPECT_THAT(Cairn({"e", "ls"}).out, AllOf(HasSubstr("one   RUNNING                 1"),
                                            HasSubstr("many  RUNNING       0 %       9")));
}

TEST_F(MasterCommandsTest, NamesFromOutsideCannotDriveTheTerminal) {
  On("GET /api/v1/experiments", 200,
     R"({"experiments": [{"id": "7", "name": "\u001b[31mred\nnext", "state": "RUNNING"}],
         "total": 1})");
  const Finished table = Cairn({"e", "ls"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("\\x1b[31mred\\x0anext"), Not(HasSubstr("\033"))));
}

TEST_F(MasterCommandsTest, NoMasterIsAnErrorThatSaysWhatToDo) {
  const std::string url = "http://127.0.0.1:1";
  const Finished finished = Cairn({"e", "ls", "--master", url});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("no master answers at http://127.0.0.1:1"),
                                  HasSubstr("cairn master --data-dir"), HasSubstr("CAIRN_MASTER")));
  const Finished json = Cairn({"e", "ls", "--json", "--master", url});
  EXPECT_EQ(json.code, 1);
  EXPECT_THAT(EncodeJson(Json(json)), HasSubstr("no master answers"));
  const Finished nonsense = Cairn({"e", "ls", "--master", "ftp://x"});
  EXPECT_THAT(nonsense.err, HasSubstr("http://HOST:PORT"));
}

TEST_F(MasterCommandsTest, ErrorsOfTheMasterAreToldInItsOwnWords) {
  On("GET /api/v1/experiments/7", 401,
     R"({"code": "unauthenticated", "message": "the token is not known", "details": {}})");
  const Finished unknown = Cairn({"e", "show", "7"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("the token is not known"), HasSubstr("cairn login")));
  On("POST /api/v1/experiments/7/pause", 412,
     R"({"code": "failed_precondition", "message": "it has ended", "details": {}})");
  EXPECT_THAT(Cairn({"e", "pause", "7"}).err, HasSubstr("it has ended"));
  On("GET /api/v1/experiments/7",
     [](const TestHttpRequest&) { return Answer(200, "<html>hello</html>"); });
  EXPECT_THAT(Cairn({"e", "show", "7"}).err, HasSubstr("does not answer as a master does"));
  EXPECT_THAT(Cairn({"e", "show", "no/such"}).err, HasSubstr("no such thing here"));
  EXPECT_EQ(Asked().back(), "GET /api/v1/experiments/no%2Fsuch");
}

TEST_F(MasterCommandsTest, OneThatCannotLeavesTheOthersDone) {
  On("POST /api/v1/experiments/7/pause", 200, kRunning);
  On("POST /api/v1/experiments/8/pause", 412,
     R"({"code": "failed_precondition", "message": "it has ended", "details": {}})");
  On("POST /api/v1/experiments/9/pause", 200, kRunning);
  const Finished finished = Cairn({"e", "pause", "7", "8", "9"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.out, AllOf(HasSubstr("experiment 7 is"), HasSubstr("experiment 9 is")));
  EXPECT_THAT(finished.err, HasSubstr("experiment 8: it has ended"));
}

TEST_F(MasterCommandsTest, WhatTheMasterCannotStartIsStartedByHand) {
  On("POST /api/v1/experiments/7/activate", 200,
     R"({"id": "7", "state": "PAUSED", "config": {"detached": true}})");
  On("POST /api/v1/trials/12/activate", 200,
     R"({"id": "12", "state": "PAUSED", "detached": true})");
  for (const Finished& finished : {Cairn({"e", "activate", "7"}), Cairn({"t", "activate", "12"})}) {
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_THAT(finished.out,
                AllOf(HasSubstr("start its command again"), Not(HasSubstr("activate"))));
  }
}

TEST_F(MasterCommandsTest, BusyMasterIsAskedAgain) {
  auto asked = std::make_shared<std::atomic<int>>(0);
  On("GET /api/v1/experiments/7", [asked](const TestHttpRequest&) {
    if (++*asked == 1) {
      return JsonAnswer(503, R"({"code": "unavailable", "message": "not now", "details": {}})");
    }
    return JsonAnswer(200, kRunning);
  });
  On("GET /api/v1/experiments/7/trials", 200, R"({"trials": [], "total": 0})");
  const Finished finished = Cairn({"e", "show", "7"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("experiment   7  mnist"));
  EXPECT_EQ(*asked, 2);
}

TEST_F(MasterCommandsTest, ShowSaysWhenSomethingStartedAndHowLongItRan) {
  On("GET /api/v1/experiments/7", 200, kRunning);
  On("GET /api/v1/experiments/7/trials", 200, R"({"trials": [], "total": 0})");
  EXPECT_THAT(Cairn({"e", "show", "7"}).out, AllOf(HasSubstr("started      1970-01-01 00:16:41"),
                                                   HasSubstr("ran for      1 min")));
  // It waits for slots: nothing to say of either.
  On("GET /api/v1/trials/12", 200, kTrial);
  const Finished waiting = Cairn({"t", "show", "12"});
  EXPECT_EQ(waiting.code, 0) << waiting.err;
  EXPECT_THAT(waiting.out, Not(AnyOf(HasSubstr("started"), HasSubstr("ran for"))));
}

TEST_F(MasterCommandsTest, ContinueSendsWhatIsToBeDifferent) {
  On("POST /api/v1/experiments/7/continue", 201, kRunning);
  const Finished finished =
      Cairn({"e", "continue", "7", "--new", "--from", "abc", "--config", "hyperparameters.lr=0.5",
             "--config", "hyperparameters.name=two words", "--config", "max_restarts=3"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  Value body = LastBody();
  EXPECT_EQ(*body.Find("new"), Value(true));
  EXPECT_EQ(*body.Find("from"), Value("abc"));
  EXPECT_EQ(EncodeJson(*body.Find("config")),
            R"({"hyperparameters":{"lr":0.5,"name":"two words"},"max_restarts":3})");
  EXPECT_GE(body.Find("request_id")->if_string()->size(), 8u);
  // As in the file.
  ASSERT_EQ(Cairn({"e", "continue", "7", "--new", "--config", "h.a=True", "--config", "h.b=.5",
                   "--config", "h.c=\"True\"", "--config", "h.d=", "--config", "h.e=[1, 2]"})
                .code,
            0);
  EXPECT_EQ(EncodeJson(*LastBody().Find("config")),
            R"({"h":{"a":true,"b":0.5,"c":"True","d":"","e":[1,2]}})");
  EXPECT_THAT(Cairn({"e", "continue", "7", "--config", "a=1"}).err, HasSubstr("--new"));
  EXPECT_THAT(Cairn({"e", "continue", "7", "--new", "--config", "a"}).err, HasSubstr("KEY=VALUE"));
}

#ifdef CAIRN_WITH_MASTER
TEST_F(MasterCommandsTest, CreateSendsTheCodeWithoutWhatIsIgnored) {
  fs::create_directories(directory_ / "code/data");
  std::ofstream(directory_ / "code/train.py") << "print(1)\n";
  std::ofstream(directory_ / "code/data/huge") << std::string(1 << 20, 'x');
  std::ofstream(directory_ / "code/.cairnignore") << "data/\n";
  std::ofstream(directory_ / "config.yaml") << "name: mnist\n";
  auto uploaded = std::make_shared<std::string>();
  On("POST /api/v1/code", [uploaded](const TestHttpRequest& request) {
    *uploaded = request.body;
    EXPECT_EQ(request.Header("content-type"), "application/gzip");
    return JsonAnswer(201, R"({"code": "abcd", "bytes": 10})");
  });
  On("POST /api/v1/experiments", 201, kRunning);
  const Finished finished = Cairn({"e", "create", directory_ / "config.yaml", directory_ / "code",
                                   "--config", "hyperparameters.lr=0.5"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("created experiment 7 (mnist): "),
                                  HasSubstr("/#/experiments/7\n"), HasSubstr("cairn e logs -f 7")));
  EXPECT_EQ(*LastBody().Find("config"), Value("name: mnist\n"));
  EXPECT_EQ(*LastBody().Find("code"), Value("abcd"));
  EXPECT_EQ(EncodeJson(*LastBody().Find("overrides")), R"({"hyperparameters":{"lr":0.5}})");
  EXPECT_TRUE(uploaded->starts_with("\x1f\x8b"));
  EXPECT_LT(uploaded->size(), 1000u);
  EXPECT_THAT(Cairn({"e", "create", directory_ / "none.yaml", directory_ / "code"}).err,
              HasSubstr("none.yaml"));
  On("POST /api/v1/experiments", 400,
     R"({"code": "invalid_config", "message": "the config has a mistake", "details":
         {"problems": ["line 2: there is no \"entrypont\": entrypoint?"]}})");
  const Finished refused = Cairn({"e", "create", directory_ / "config.yaml", directory_ / "code"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("line 2: there is no \"entrypont\""),
                                 HasSubstr("the config has a mistake")));
}
#endif

TEST_F(MasterCommandsTest, CreateSaysWhatBelongsWhere) {
  const fs::path code = directory_ / "model";
  fs::create_directories(code);
  std::ofstream(code / "const.yaml") << "entrypoint: b\n";
  std::ofstream(code / "adaptive.yaml") << "entrypoint: b\n";
  const auto complaint = [&](const std::string& config, const std::string& directory) {
    const Finished made = Cairn({"e", "create", config, directory});
    EXPECT_EQ(made.code, 1) << made.err;
    return made.err;
  };
  EXPECT_THAT(complaint(code, code),
              AllOf(HasSubstr("is a directory where the config belongs"),
                    HasSubstr("cairn e create " + (code / "adaptive.yaml").string()),
                    HasSubstr("(or " + (code / "const.yaml").string() + ")")));
  EXPECT_THAT(complaint(code, code / "const.yaml"),
              HasSubstr("the config comes first, `cairn e create " +
                        (code / "const.yaml").string() + " " + code.string() + "`"));
  EXPECT_THAT(complaint(code / "const.yaml", code / "const.yaml"),
              HasSubstr("is a file, not a directory"));
  EXPECT_THAT(complaint(code / "const.yaml", directory_ / "none"), HasSubstr("is not there"));
}

TEST_F(MasterCommandsTest, AnEmptyConfigAndACheckedOneAreToldApart) {
  fs::create_directories(directory_ / "code");
  std::ofstream(directory_ / "empty.yaml") << "";
  std::ofstream(directory_ / "grid.yaml") << "entrypoint: b\n";
  EXPECT_THAT(Cairn({"e", "create", directory_ / "empty.yaml", directory_ / "code"}).err,
              HasSubstr("is empty: it needs at least an entrypoint"));
  std::ofstream(directory_ / "latin.yaml") << "entrypoint: b\nname: caf\xe9\n";
  EXPECT_THAT(Cairn({"e", "create", directory_ / "latin.yaml", directory_ / "code"}).err,
              HasSubstr("is not UTF-8"));
  On("POST /api/v1/experiments", 200,
     R"({"id": "", "name": "", "trials": 0, "searcher": {"name": "grid", "max_trials": 6}})");
  const Finished checked =
      Cairn({"e", "create", directory_ / "grid.yaml", directory_ / "code", "--validate"});
  EXPECT_THAT(checked.out, HasSubstr("grid.yaml is a config for 6 trials\n")) << checked.err;
}

TEST_F(MasterCommandsTest, MetricsThatAreNotThereAreToldWithThoseThatAre) {
  On("GET /api/v1/trials/12/metrics", 200,
     R"({"metrics": [], "names": [{"group": "training", "name": "loss"}]})");
  EXPECT_THAT(Cairn({"t", "metrics", "12", "--group", "validaton"}).out,
              HasSubstr("no such metrics; trial 12 has reported training/loss"));
}

TEST_F(MasterCommandsTest, AllMetricsAreShownHoweverManyAnswersTheyTake) {
  On("GET /api/v1/trials/12/metrics", [](const TestHttpRequest& request) {
    const bool first = request.target.find("after=0") != std::string::npos;
    return JsonAnswer(200, first ? R"({"metrics": [{"values": {"x": 1}}], "more": true, "next": 9})"
                                 : R"({"metrics": [{"values": {"x": 2}}], "more": false})");
  });
  EXPECT_EQ(Json(Cairn({"t", "metrics", "12", "--json"})),
            *DecodeJson(R"({"metrics": [{"values": {"x": 1}}, {"values": {"x": 2}}]})"));
}

TEST_F(MasterCommandsTest, FollowingGoesOnAfterTheMasterWasAway) {
  On("GET /api/v1/experiments/7", 200, kRunning);
  On("GET /api/v1/experiments/7/trials", 200,
     std::string(R"({"trials": [)") + kTrial + R"(], "total": 1})");
  On("GET /api/v1/trials/12", 200, kTrial);
  auto calls = std::make_shared<std::atomic<int>>(0);
  On("GET /api/v1/trials/12/logs", [this, calls](const TestHttpRequest& request) {
    switch (++*calls) {
      case 1:  // cut in the middle of a line
        return TestHttpReply{
            .bytes =
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: "
                "100000\r\n\r\n" +
                Line(1, "one") + Line(2, "two") + "id: 3\nevent: log\nda",
            .close = true};
      case 2:  // hung up on
        return TestHttpReply{.bytes = "", .close = true};
      default:
        EXPECT_THAT(request.target, HasSubstr("after=2"));
        std::string done = kRunning;
        done.replace(done.find("RUNNING"), 7, "COMPLETED");
        On("GET /api/v1/experiments/7", 200, done);
        return Stream(Line(3, "three") + "event: end\ndata: {\"state\": \"COMPLETED\"}\n\n");
    }
  });
  const Finished finished = Cairn({"e", "logs", "-f", "7"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::StartsWith("one\ntwo\nthree\n"));
  EXPECT_THAT(finished.out, HasSubstr("experiment 7 is COMPLETED"));
  EXPECT_THAT(finished.out, HasSubstr("cairn e continue 7 --new"));
}

TEST_F(MasterCommandsTest, ASearchGoesOnThroughPagesInWhichNothingWasFound) {
  On("GET /api/v1/trials/12", 200, kTrial);
  On("GET /api/v1/trials/12/logs", [](const TestHttpRequest& request) {
    const auto has = [&](const char* part) {
      return request.target.find(part) != std::string::npos;
    };
    EXPECT_TRUE(has("search=needle")) << request.target;
    if (has("after=0&")) {
      return JsonAnswer(200, R"({"lines": [], "more": true, "next": 500, "previous": 1})");
    }
    if (has("after=500&")) {
      return JsonAnswer(200, R"({"lines": [{"id": 700, "text": "needle 700"}], "more": true,
                                 "next": 900, "previous": 501})");
    }
    if (has("after=900&")) {
      return JsonAnswer(200, R"({"lines": [{"id": 950, "text": "needle 950"}], "more": false,
                                 "next": 1000, "previous": 901})");
    }
    if (has("tail=2")) {
      return JsonAnswer(200, R"({"lines": [{"id": 950, "text": "needle 950"}], "more": true,
                                 "next": 1000, "previous": 901})");
    }
    if (has("before=901&")) {
      return JsonAnswer(200, R"({"lines": [], "more": true, "next": 900, "previous": 800})");
    }
    EXPECT_TRUE(has("before=800&")) << request.target;
    return JsonAnswer(200, R"({"lines": [{"id": 700, "text": "needle 700"}], "more": true,
                               "next": 799, "previous": 700})");
  });
  for (const Finished& finished :
       {Cairn({"t", "logs", "12", "--search", "needle"}),
        Cairn({"t", "logs", "12", "--search", "needle", "--tail", "2"})}) {
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(finished.out, "needle 700\nneedle 950\n");
  }
}

TEST_F(MasterCommandsTest, LinesOfALogAreAsATerminalWouldLeaveThem) {
  On("GET /api/v1/trials/12", 200, kTrial);
  On("GET /api/v1/trials/12/logs", 200,
     R"({"lines": [{"id": 1, "text": "\rstep 1\rstep 2\r\u001b[Kstep 3"},
                   {"id": 2, "text": "\u001b[1;31mred\u001b[0m and \u001b]0;title\u0007"},
                   {"id": 3, "text": "of Windows\r"}, {"id": 4, "text": "cut \u001b[3"}],
         "more": false, "next": 4, "previous": 1})");
  const Finished finished = Cairn({"t", "logs", "12"});
  EXPECT_EQ(finished.out, "step 3\nred and \\x1b]0;title\\x07\nof Windows\ncut \\x1b[3\n")
      << finished.err;
  // Programs get them as they were written.
  EXPECT_THAT(Cairn({"t", "logs", "12", "--json"}).out, HasSubstr(R"(\rstep 1\rstep 2\r)"));
}

TEST_F(MasterCommandsTest, WhatGoesOnIsFollowedFromThereOn) {
  std::string done = kRunning;
  done.replace(done.find("RUNNING"), 7, "COMPLETED");
  On("GET /api/v1/experiments/7", 200, done);
  On("GET /api/v1/experiments/7/trials", 200,
     R"({"trials": [{"id": "12", "experiment": "7", "state": "COMPLETED"}], "total": 1})");
  On("GET /api/v1/trials/12", 200, kTrial);
  On("POST /api/v1/experiments/7/continue", 200, kRunning);
  On("GET /api/v1/trials/12/logs", [](const TestHttpRequest& request) {
    if (request.target.find("tail=1") != std::string::npos) {
      return JsonAnswer(200, R"({"lines": [{"id": 41, "text": "before"}], "more": true})");
    }
    EXPECT_THAT(request.target, HasSubstr("after=41"));
    return Stream(Line(42, "now") + "event: end\ndata: {\"state\": \"COMPLETED\"}\n\n");
  });
  const Finished finished = Cairn({"e", "continue", "7", "-f"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::StartsWith("now\n"));
}

TEST_F(MasterCommandsTest, FailedTrainingIsAFailureOfWhoFollowsIt) {
  std::string failed = kRunning;
  failed.replace(failed.find("RUNNING"), 7, "ERROR");
  On("GET /api/v1/experiments/7", 200, failed);
  EXPECT_EQ(Cairn({"e", "wait", "7"}).code, 1);
  On("GET /api/v1/experiments/7", 200, kRunning);
  const Finished late = Cairn({"e", "wait", "7", "--timeout", "0.2"});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("still RUNNING"));
}

TEST_F(MasterCommandsTest, WhoWaitsForTheEndWaitsThroughAPause) {
  const auto in = [](const char* state) {
    return std::string(kRunning).replace(std::string(kRunning).find("RUNNING"), 7, state);
  };
  // Paused, for two looks, and somebody lets it go on: the second pause is told as the first was.
  auto looks = std::make_shared<std::atomic<int>>(0);
  On("GET /api/v1/experiments/7", [=](const TestHttpRequest&) {
    constexpr const char* kStates[] = {"PAUSED", "PAUSED", "RUNNING", "PAUSED"};
    const int look = (*looks)++;
    return JsonAnswer(200, in(look < 4 ? kStates[look] : "COMPLETED"));
  });
  const Finished whole = Cairn({"e", "wait", "7"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.out, "7 COMPLETED\n");
  const std::string note = "experiment 7 is paused; waiting until it goes on";
  const std::size_t first = whole.err.find(note);
  ASSERT_NE(first, std::string::npos) << whole.err;
  const std::size_t second = whole.err.find(note, first + 1);
  ASSERT_NE(second, std::string::npos) << whole.err;
  EXPECT_EQ(whole.err.find(note, second + 1), std::string::npos) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("cairn e activate 7"));

  On("GET /api/v1/experiments/7", 200, in("PAUSED"));
  const Finished late = Cairn({"e", "wait", "7", "--timeout", "0.2"});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("still PAUSED"));
  // Asked for, it is neither a success nor a failure.
  const Finished paused = Cairn({"e", "wait", "7", "--or-paused"});
  EXPECT_EQ(paused.code, 3) << paused.err;
  EXPECT_EQ(paused.out, "7 PAUSED\n");
}

TEST_F(MasterCommandsTest, InterruptDetachesAndTellsHowToComeBack) {
  On("GET /api/v1/experiments/7", 200, kRunning);
  std::string running = kTrial;
  running.replace(running.find("COMPLETED"), 9, "RUNNING");
  On("GET /api/v1/experiments/7/trials", 200, R"({"trials": [)" + running + R"(], "total": 1})");
  On("GET /api/v1/trials/12", 200, running);
  auto answered = std::make_shared<std::atomic<bool>>(false);
  auto release = std::make_shared<std::atomic<bool>>(false);
  On("GET /api/v1/trials/12/logs", [=](const TestHttpRequest&) {
    if (answered->exchange(true)) {
      // Nothing more comes, and the connection stays.
      while (!*release) usleep(1000);
      return TestHttpReply{.bytes = "", .close = true};
    }
    return Stream(Line(1, "one"));
  });
  RunningProgram program({"e", "logs", "-f", "7"}, Environment());
  ASSERT_TRUE(program.WaitForOutput("one\n"));
  program.Signal(SIGINT);
  const Finished finished = program.Wait();
  *release = true;
  EXPECT_EQ(finished.code, 130);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("detached"), HasSubstr("cairn e logs -f 7"),
                                  HasSubstr("cairn e pause 7")));
}

TEST_F(MasterCommandsTest, PolicyIsLaidOverTheOneThatIsThere) {
  On("GET /api/v1/experiments/7/policy", 200,
     R"({"keep_last": 3, "keep_best": 2, "score": "loss", "order": "min", "max_bytes": null})");
  On("POST /api/v1/experiments/7/policy/preview", 200,
     R"({"removals": [{"trial": "12", "id": "abc", "steps_completed": 10, "bytes": 2048,
         "reason": "beyond keep_last 1"}], "bytes": 2048, "kept": 1})");
  const Finished preview = Cairn({"e", "set-policy", "7", "--keep-last", "1", "--keep-best", "none",
                                  "--max-age", "2d", "--max-bytes", "1.5GiB", "--preview"});
  EXPECT_EQ(preview.code, 0) << preview.err;
  EXPECT_THAT(preview.out, AllOf(HasSubstr("beyond keep_last 1"),
                                 HasSubstr("1 checkpoint would go (2.00 KiB), 1 stay")));
  EXPECT_EQ(EncodeJson(LastBody()),
            R"({"keep_last":1,"max_age_seconds":172800.0,"max_bytes":1610612736,"order":"min",)"
            R"("score":"loss"})");
  for (const char* const size : {"2kB", "2KB", "2000"}) {
    Cairn({"e", "set-policy", "7", "--experiment-bytes", size, "--preview"});
    EXPECT_EQ(*LastBody().Find("experiment_bytes"), Value(2000)) << size;
  }
  EXPECT_THAT(Cairn({"e", "set-policy", "7", "--keep-last", "few"}).err, HasSubstr("keep_last"));
  EXPECT_THAT(Cairn({"e", "set-policy", "7"}).out, HasSubstr("keep_best        2"));
  On("GET /api/v1/experiments/7/policy", 200,
     R"({"max_age_seconds": 1209600.0, "max_bytes": 53687091200})");
  EXPECT_EQ(Cairn({"e", "set-policy", "7"}).out,
            "max_age_seconds  1209600\nmax_bytes        50.0 GiB\n");
}

TEST_F(MasterCommandsTest, DeletingAsksFirst) {
  On("GET /api/v1/experiments/7", 200, kRunning);
  On("DELETE /api/v1/experiments/7", 200, "{}");
  const Finished refused = Cairn({"e", "delete", "7"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--yes"));
  for (const std::string& asked : Asked()) EXPECT_THAT(asked, Not(HasSubstr("DELETE")));
  const Finished sure = Cairn({"e", "delete", "7", "--yes", "--keep-checkpoints"});
  EXPECT_EQ(sure.code, 0) << sure.err;
  EXPECT_EQ(Asked().back(), "DELETE /api/v1/experiments/7?keep_checkpoints=true");
}

TEST_F(MasterCommandsTest, LoginIsRememberedForItsOwnerOnly) {
  On("POST /api/v1/auth/login", 200,
     R"({"user": {"username": "ada", "role": "user"}, "token": "session", "expires": 2000000000})");
  On("GET /api/v1/auth/whoami", 200, R"({"username": "ada", "role": "user"})");
  On("POST /api/v1/auth/logout", 200, "{}");
  std::ofstream(directory_ / "password") << "correct horse\n";
  const auto environment = [this] {
    Environment("")();
    if (freopen((directory_ / "password").c_str(), "r", stdin) == nullptr) _exit(126);
  };
  const Finished login = RunProgram({"login", "ada", "--password-stdin"}, environment);
  EXPECT_EQ(login.code, 0) << login.err;
  EXPECT_EQ(*LastBody().Find("password"), Value("correct horse"));
  const std::string file =
      directory_ / ("config/cairn/tokens/local_" + std::to_string(server_.port()));
  struct stat about{};
  ASSERT_EQ(stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(Cairn({"user", "whoami"}, "").code, 0);
  EXPECT_EQ(LastHeader("authorization"), "Bearer session");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_THAT(Cairn({"user", "whoami"}, "").err, HasSubstr("can be read by others"));
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  EXPECT_EQ(Cairn({"logout"}, "").code, 0);
  EXPECT_FALSE(fs::exists(file));
  EXPECT_THAT(Cairn({"login", "ada"}, "").err, HasSubstr("--password-stdin"));
}

TEST_F(MasterCommandsTest, TokenOfALocalMasterIsFound) {
  On("GET /api/v1/auth/whoami", 200, R"({"username": "root", "role": "admin"})");
  fs::create_directories(directory_ / "run/cairn/tokens");
  const std::string file =
      directory_ / ("run/cairn/tokens/local_" + std::to_string(server_.port()));
  std::ofstream(file) << "local secret\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  EXPECT_EQ(Cairn({"user", "whoami"}, "").code, 0);
  EXPECT_EQ(LastHeader("authorization"), "Bearer local secret");
}

TEST_F(MasterCommandsTest, DownloadAppearsWholeOrNotAtAll) {
  On("GET /api/v1/experiments/7/checkpoints", 200,
     R"({"checkpoints": [{"id": "abc", "steps_completed": 40, "bytes": 9}], "total": 1})");
  On("GET /api/v1/checkpoints/abc/download",
     [](const TestHttpRequest&) { return Answer(200, "the bytes"); });
  const std::string out = directory_ / "model.tar";
  const Finished finished = Cairn({"e", "download", "7", "--best", "-o", out});
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::string bytes;
  std::getline(std::ifstream(out), bytes);
  EXPECT_EQ(bytes, "the bytes");
  EXPECT_THAT(Cairn({"e", "download", "7", "-o", out}).err, HasSubstr("is there already"));
  On("GET /api/v1/checkpoints/abc/download", [](const TestHttpRequest&) {
    return TestHttpReply{.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe by",
                         .close = true};
  });
  const std::string cut = directory_ / "cut.tar";
  EXPECT_EQ(Cairn({"e", "download", "7", "-o", cut}).code, 1);
  for (const auto& entry : fs::directory_iterator(directory_.path())) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("cut")));
  }
}

TEST_F(MasterCommandsTest, ADirectoryToDownloadIntoMayEndWithASlash) {
  const std::string source = directory_ / "source";
  fs::create_directories(source);
  std::ofstream(source + "/weights") << "1 2 3";
  const std::string archive = directory_ / "source.tar";
  ASSERT_EQ(std::system(("tar cf " + archive + " -C " + source + " weights").c_str()), 0);
  std::ifstream in(archive, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  On("GET /api/v1/experiments/7/checkpoints", 200,
     R"({"checkpoints": [{"id": "abc", "steps_completed": 40, "bytes": 9}], "total": 1})");
  On("GET /api/v1/checkpoints/abc/download",
     [bytes](const TestHttpRequest&) { return Answer(200, bytes); });
  const std::string out = directory_ / "model";
  fs::create_directories(out + ".partial/mine");  // not the download's
  const Finished finished = Cairn({"e", "download", "7", "-o", out + "/"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(fs::exists(out + ".partial/mine"));
  std::string text;
  std::getline(std::ifstream(out + "/weights"), text);
  EXPECT_EQ(text, "1 2 3");
  EXPECT_THAT(Cairn({"e", "download", "7", "-o", out + "/"}).err, HasSubstr("is there already"));
}

TEST_F(MasterCommandsTest, CodeThatIsPackedTightlyComesBack) {
  const std::string source = directory_ / "source";
  fs::create_directories(source);
  std::ofstream(source + "/train.py") << std::string(100'000, '#');
  const std::string archive = directory_ / "source.tar.gz";
  ASSERT_EQ(std::system(("tar czf " + archive + " -C " + source + " train.py").c_str()), 0);
  std::ifstream in(archive, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  On("GET /api/v1/experiments/7/code",
     [bytes](const TestHttpRequest&) { return Answer(200, bytes); });
  const std::string out = directory_ / "code";
  const Finished finished = Cairn({"e", "download", "7", "--code", "-o", out});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(fs::file_size(out + "/train.py"), 100'000u);
}

TEST_F(MasterCommandsTest, WatchLooksAgainUntilInterrupted) {
  auto looks = std::make_shared<std::atomic<int>>(0);
  On("GET /api/v1/trials", [looks](const TestHttpRequest&) {
    return JsonAnswer(200, R"({"trials": [{"id": ")" + std::to_string(++*looks) +
                               R"(", "state": "RUNNING"}], "total": 1})");
  });
  RunningProgram program({"t", "ls", "--json", "--watch=0.1"}, Environment());
  ASSERT_TRUE(program.WaitForOutput(R"("id":"3")"));
  program.Signal(SIGINT);
  EXPECT_EQ(program.Wait().code, 0);
}

TEST_F(MasterCommandsTest, CompletionKnowsCommandsOptionsAndShortNames) {
  const Finished bash = Cairn({"completion", "bash"});
  ASSERT_EQ(bash.code, 0) << bash.err;
  std::ofstream(directory_ / "completion.bash") << bash.out;
  const auto complete = [&](const std::string& words, int at) {
    const std::string script = "source '" + std::string(directory_ / "completion.bash") +
                               "'; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(at) +
                               "; _cairn; echo \"${COMPREPLY[*]}\" > '" +
                               std::string(directory_ / "words") + "'";
    EXPECT_EQ(std::system(("bash -c \"" +
                           [&] {
                             std::string quoted;
                             for (const char c : script) {
                               if (c == '"' || c == '$' || c == '\\') quoted += '\\';
                               quoted += c;
                             }
                             return quoted;
                           }() +
                           "\"")
                              .c_str()),
              0);
    std::string line;
    std::getline(std::ifstream(directory_ / "words"), line);
    return line;
  };
  EXPECT_EQ(complete("cairn exp", 1), "experiment");
  EXPECT_EQ(complete("cairn e co", 2), "continue");
  EXPECT_EQ(complete("cairn e continue 7 --ne", 4), "--new");
  EXPECT_THAT(complete("cairn e create --", 3),
              AllOf(HasSubstr("--follow"), HasSubstr("--config")));
  EXPECT_THAT(Cairn({"completion", "zsh"}).out, HasSubstr("#compdef cairn"));
  EXPECT_THAT(Cairn({"completion", "fish"}).out,
              HasSubstr("complete -c cairn -n \"__cairn_at 'experiment'\" -a 'create ls list"));
  EXPECT_EQ(Cairn({"completion", "tcsh"}).code, 1);
}

}  // namespace
}  // namespace cairn

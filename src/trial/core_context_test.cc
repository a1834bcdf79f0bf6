#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <cairn/core.h>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "net/test_http_server.h"
#include "trial/test_core.h"

namespace cairn::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

/// Without a trial engine.
class CoreTest : public CoreFixture {
 protected:
  CoreTest() {
    for (const char* variable : {"CAIRN_TRIAL_URL", "CAIRN_TRIAL_ID", "CAIRN_WORLD_SIZE"}) {
      unsetenv(variable);
    }
  }

  std::unique_ptr<Context> Start() {
    auto context = Init({.storage = storage(), .retention = {}});
    EXPECT_TRUE(context.ok()) << context.status().ToString();
    return context.ok() ? std::move(*context) : nullptr;
  }

  static Status Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    return Status::Ok();
  }
};

TEST_F(CoreTest, TheSameCommandAgainBeginsWithTheLastCheckpoint) {
  std::string id;
  {
    auto context = Start();
    ASSERT_NE(context, nullptr);
    EXPECT_FALSE(context->latest_checkpoint().has_value());
    EXPECT_FALSE(context->info().has_value());
    auto stored = context->StorePath(Steps(10), [](const std::string& path) {
      fs::create_directories(path + "/deep");
      return Write(path + "/deep/x", "ten");
    });
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    id = *stored;
    EXPECT_TRUE(context->ReportTrainingMetrics(10, Value::Object{{"loss", 0.5}}).ok());
    EXPECT_TRUE(context->Close().ok());
  }
  auto context = Start();
  ASSERT_NE(context, nullptr);
  ASSERT_TRUE(context->latest_checkpoint().has_value());
  EXPECT_EQ(*context->latest_checkpoint(), id);
  std::string read;
  ASSERT_TRUE(context
                  ->RestorePath(id,
                                [&](const std::string& path) {
                                  read = Read(path + "/deep/x");
                                  return Status::Ok();
                                })
                  .ok());
  EXPECT_EQ(read, "ten");
  EXPECT_EQ(context->GetMetadata(id)->Find("steps_completed")->AsInt(), 10);
}

TEST_F(CoreTest, MetadataWithoutStepsIsRefusedBeforeAnythingIsDone) {
  auto context = Start();
  bool called = false;
  const auto body = [&](const std::string&) {
    called = true;
    return Status::Ok();
  };
  for (const Value& metadata :
       {Value(Value::Object{}), Value(Value::Object{{"steps_completed", -1}}),
        Value(Value::Object{{"steps_completed", "ten"}}), Value(nullptr)}) {
    const auto refused = context->StorePath(metadata, body);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("steps_completed"));
  }
  const std::string nul("x\0y", 3);
  for (const Value& metadata : {Value(Value::Object{{"steps_completed", 1}, {"note", nul}}),
                                Value(Value::Object{{"steps_completed", 1}, {nul, 2}})}) {
    const auto refused = context->StorePath(metadata, body);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("NUL"));
  }
  EXPECT_FALSE(called);
  EXPECT_THAT(*context->List(), IsEmpty());
}

TEST_F(CoreTest, ABodyThatFailsLeavesNothing) {
  auto context = Start();
  std::string where;
  const auto failed = context->StorePath(Steps(1), [&](const std::string& path) {
    where = path;
    EXPECT_TRUE(Write(path + "/half", "x").ok());
    return ResourceExhaustedError("no more");
  });
  EXPECT_EQ(failed.status().code(), Code::kResourceExhausted);
  EXPECT_FALSE(fs::exists(where));
  EXPECT_FALSE(fs::exists(storage() + "/.cairn-staging"));
  EXPECT_THAT(*context->List(), IsEmpty());
}

TEST_F(CoreTest, DamagedFilesAreNoticed) {
  auto context = Start();
  auto id = context->StorePath(Steps(1),
                               [](const std::string& path) { return Write(path + "/x", "good"); });
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(Write((*context->List())[0].path + "/files/x", "evil").ok());
  const Status restored =
      context->RestorePath(*id, [](const std::string&) { return Status::Ok(); });
  EXPECT_EQ(restored.code(), Code::kCorruption) << restored.ToString();
  EXPECT_EQ(context->Download(*id, (directory_ / "out").string()).code(), Code::kCorruption);
}

TEST_F(CoreTest, UploadDownloadAndSelectors) {
  auto context = Start();
  fs::create_directories(directory_ / "mine" / "sub");
  ASSERT_TRUE(Write((directory_ / "mine" / "a.txt").string(), "a").ok());
  ASSERT_TRUE(Write((directory_ / "mine" / "sub" / "b.bin").string(), "b").ok());
  auto id = context->Upload((directory_ / "mine").string(), Steps(3));
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  ASSERT_TRUE(context
                  ->Download(*id, (directory_ / "out").string(),
                             [](const std::string& name) { return name.ends_with(".bin"); })
                  .ok());
  EXPECT_EQ(Read((directory_ / "out" / "sub" / "b.bin").string()), "b");
  EXPECT_FALSE(fs::exists(directory_ / "out" / "a.txt"));
  EXPECT_EQ(context->Upload((directory_ / "none").string(), Steps(4)).status().code(),
            Code::kNotFound);
  ASSERT_TRUE(context->Delete(*id).ok());
  EXPECT_EQ(context->GetMetadata(*id).status().code(), Code::kNotFound);
}

TEST_F(CoreTest, TensorsGoThroughTheEngine) {
  auto context = Start();
  std::vector<float> weights = {1, 2, 3};
  SaveRequest request;
  request.metadata = Steps(7);
  request.tensors = {{.name = "w", .dtype = DType::kF32, .shape = {3}, .data = weights.data()}};
  auto id = context->Save(std::move(request));
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  weights = {0, 0, 0};
  RestoreRequest wanted;
  wanted.into = {{.name = "w", .dtype = DType::kF32, .shape = {3}, .data = weights.data()}};
  const auto restored = context->Restore(std::move(wanted));
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->step, 7);
  EXPECT_EQ((*restored)->info.id, *id);
  EXPECT_THAT(weights, ElementsAre(1, 2, 3));
}

TEST_F(CoreTest, SignalsSetAFlagAndNothingElse) {
  for (const int number : {SIGTERM, SIGUSR1, SIGINT}) {
    auto context = Start();
    EXPECT_FALSE(context->ShouldPreempt());
    raise(number);
    EXPECT_TRUE(context->ShouldPreempt()) << number;
    EXPECT_TRUE(context->Close().ok());
  }
}

TEST_F(CoreTest, AClosedContextStoresAndReportsNothing) {
  auto context = Start();
  const auto nothing = [](const std::string&) { return Status::Ok(); };
  const std::string id = context->StorePath(Steps(10), nothing).value();
  ASSERT_TRUE(context->Close().ok());
  const float weight = 1;
  SaveRequest request;
  request.metadata = Steps(20);
  request.tensors = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &weight}};
  for (const Status& late :
       {context->StorePath(Steps(20), nothing).status(),
        context->Upload(directory_.string(), Steps(20)).status(),
        context->Save(std::move(request)).status(), context->Delete(id),
        context->Restore({}).status(), context->ReportTrainingMetrics(20, Value::Object{{"x", 1}}),
        context->ReportProgress(1), context->SetStatus("late")}) {
    EXPECT_TRUE(late.Is(Code::kFailedPrecondition)) << late.ToString();
    EXPECT_THAT(late.ToString(), HasSubstr("this context is closed"));
  }
  EXPECT_EQ(context->List().value().size(), 1u);
  EXPECT_TRUE(context->RestorePath(id, nothing).ok()) << "reading harms nobody";
}

/// As in Python: its id finds nothing; whoever wants it restores it by its path.
TEST_F(CoreTest, ACheckpointOfAnotherJobIsNoneOfTheTrials) {
  const auto nothing = [](const std::string&) { return Status::Ok(); };
  std::string strange;
  {
    auto other = Init({.storage = (directory_ / "other").string()}).value();
    strange = other->StorePath(Steps(99), nothing).value();
  }
  auto context = Start();
  const std::string own = context->StorePath(Steps(10), nothing).value();
  fs::copy(directory_ / "other" / "checkpoint_000099", fs::path(storage()) / "checkpoint_000099",
           fs::copy_options::recursive);
  const std::vector<CheckpointInfo> listed = context->List().value();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].id, own);
  EXPECT_TRUE(context->RestorePath(strange, nothing).Is(Code::kNotFound));
}

TEST_F(CoreTest, WhatAKilledProcessStagedIsSwept) {
  fs::create_directories(storage() + "/.cairn-staging/core-old");
  ASSERT_TRUE(Write(storage() + "/.cairn-staging/core-old/half", "x").ok());
  auto context = Start();
  EXPECT_FALSE(fs::exists(storage() + "/.cairn-staging"));
}

TEST_F(CoreTest, ReportsAreChecked) {
  auto context = Start();
  EXPECT_EQ(context->ReportProgress(1.5).code(), Code::kInvalidArgument);
  EXPECT_EQ(context->ReportTrainingMetrics(-1, Value::Object{}).code(), Code::kInvalidArgument);
  EXPECT_EQ(context->ReportTrainingMetrics(1, Value(3)).code(), Code::kInvalidArgument);
  EXPECT_EQ(context->ReportMetrics("", 1, Value::Object{}).code(), Code::kInvalidArgument);
  const std::string nul("x\0y", 3);  // what a master would refuse
  for (const std::string& text : {std::string("\xff"), std::string(5000, 'x')}) {
    EXPECT_EQ(context->ReportMetrics(text, 1, Value::Object{}).code(), Code::kInvalidArgument);
    EXPECT_EQ(context->SetStatus(text).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(context->ReportMetrics(nul, 1, Value::Object{}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(context->SetStatus(nul).ok()) << "of a line for people a master replaces them";
  EXPECT_EQ(context->ReportTrainingMetrics(1, Value::Object{{nul, 1}}).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(context->ReportProgress(0.5).ok());
}

TEST_F(CoreTest, AValidationIsTheScoreOfItsCheckpoint) {
  auto context = Start();
  ASSERT_TRUE(
      context->StorePath(Steps(5), [](const std::string& path) { return Write(path + "/x", "x"); })
          .ok());
  ASSERT_TRUE(context->ReportValidationMetrics(5, Value::Object{{"accuracy", 0.75}}).ok());
  EXPECT_EQ((*context->List())[0].metrics.Find("accuracy")->AsDouble(), 0.75);
}

/// As a detached run of an engine that answers over real sockets.
TEST_F(CoreTest, AValidationThatComesFirstIsTheScoreToo) {
  auto context =
      Init({.storage = storage(),
            .retention = {.keep_last = 1, .keep_best = 1, .score = "loss", .maximize = false}})
          .value();
  const std::vector<double> losses = {5, 1, 4, 3};
  for (int step = 1; step <= 4; ++step) {
    const double loss = losses[static_cast<std::size_t>(step - 1)];
    ASSERT_TRUE(context->ReportValidationMetrics(step, Value::Object{{"loss", loss}}).ok());
    ASSERT_TRUE(context
                    ->StorePath(Steps(step),
                                [](const std::string& path) { return Write(path + "/x", "x"); })
                    .ok());
  }
  ASSERT_TRUE(context->Close().ok());  // retention runs behind the last save
  const auto reader = CheckpointManager::Open({.directory = storage(), .read_only = true}).value();
  const auto kept = reader->List().value();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].step, 2);
  EXPECT_EQ(kept[0].metrics.Find("loss")->AsDouble(), 1);
  EXPECT_EQ(kept[1].step, 4);
}

class DetachedCoreTest : public CoreTest {
 protected:
  DetachedCoreTest() : server_([this](const TestHttpRequest& request) { return Serve(request); }) {
    setenv("CAIRN_TRIAL_URL", server_.url().c_str(), 1);
    setenv("CAIRN_TRIAL_ID", "5", 1);
    setenv("CAIRN_RUN_ID", "1", 1);
  }
  ~DetachedCoreTest() override {
    released_ = true;
    for (const char* name : {"CAIRN_TRIAL_URL", "CAIRN_TRIAL_ID", "CAIRN_RUN_ID"}) unsetenv(name);
  }

  TestHttpReply Serve(const TestHttpRequest& request) {
    if (request.target.find("/preemption?") != std::string::npos) {
      const bool known = request.target.find("seen=2") != std::string::npos;
      if (known) told_ = true;
      while ((known || !preempt_) && !released_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return Answer(200, R"({"preempt":true,"reason":"pause","version":2})");
    }
    if (request.method == "GET") {
      return Answer(200, R"({"run_id":1,"detached":true,"repository":")" + storage() + "\"}");
    }
    MutexLock lock(&mu_);
    if (request.target.ends_with("/exit")) exits_.push_back(request.body);
    return Answer(200, "{}");
  }

  std::vector<std::string> Exits() {
    MutexLock lock(&mu_);
    return exits_;
  }

  Mutex mu_;
  std::vector<std::string> exits_ GUARDED_BY(mu_);
  std::atomic<bool> preempt_ = false;
  std::atomic<bool> told_ = false;  // the client knows of the preemption, and asks again
  std::atomic<bool> released_ = false;
  TestHttpServer server_;
};

TEST_F(DetachedCoreTest, ARunThatEndedWellSaysSo) {
  auto context = Start();
  ASSERT_NE(context, nullptr);
  EXPECT_TRUE(context->Close().ok());
  EXPECT_THAT(Exits(), ElementsAre(HasSubstr("\"code\":0")));
}

TEST_F(DetachedCoreTest, ARunStoppedByASignalIsNotComplete) {
  auto context = Start();
  ASSERT_NE(context, nullptr);
  raise(SIGTERM);
  EXPECT_TRUE(context->ShouldPreempt());
  EXPECT_EQ(context->Close().code(), Code::kCancelled);
  EXPECT_THAT(Exits(), ElementsAre(HasSubstr("\"code\":143")));
}

TEST_F(DetachedCoreTest, APreemptionThatNobodyAcknowledgedDoesNotExcuseASignal) {
  auto context = Start();
  ASSERT_NE(context, nullptr);
  raise(SIGTERM);
  EXPECT_TRUE(context->ShouldPreempt());
  preempt_ = true;
  while (!told_) std::this_thread::yield();
  EXPECT_EQ(context->Close().code(), Code::kCancelled);
  EXPECT_THAT(Exits(), ElementsAre(HasSubstr("\"code\":143")));
}

TEST_F(DetachedCoreTest, AnAcknowledgedPreemptionEndsWell) {
  preempt_ = true;
  auto context = Start();
  ASSERT_NE(context, nullptr);
  while (!context->ShouldPreempt()) std::this_thread::yield();
  raise(SIGTERM);
  EXPECT_TRUE(context->Close().ok());
  EXPECT_THAT(Exits(), ElementsAre(HasSubstr("\"code\":0")));
}

/// Started by hand beside a real engine.
class JoiningCoreTest : public CoreTest {
 protected:
  EngineToJoin engine_{storage()};
};

TEST_F(JoiningCoreTest, ItIsARunAndTheSameTrialWhenItIsStartedAgain) {
  std::string id;
  std::string scored;
  {
    auto context = Init().value();
    ASSERT_TRUE(context->info().has_value());
    EXPECT_EQ(context->info()->trial.resume_mode, "fresh");
    id = context->info()->trial.trial_id;
    ASSERT_TRUE(context->ReportTrainingMetrics(1, Value::Object{{"loss", 0.5}}).ok());
    const auto body = [](const std::string& path) {
      std::ofstream(path + "/x") << "x";
      return Status::Ok();
    };
    scored = context->StorePath(Value::Object{{"steps_completed", 1}}, body, {.awaits_score = true})
                 .value();
    const std::string plain =
        context->StorePath(Value::Object{{"steps_completed", 2}}, body).value();
    const TrialView view = engine_->Get(id).value();
    EXPECT_TRUE(view.record.Find(scored)->awaits_score);
    EXPECT_FALSE(view.record.Find(plain)->awaits_score);
    // A score rule does not take it before its validation came.
    const RetentionPolicy best{.keep_best = 1, .score = "accuracy"};
    EXPECT_TRUE(engine_->PreviewRetention(id, best).value().empty());
    ASSERT_TRUE(context->ReportValidationMetrics(1, Value::Object{{"accuracy", 0.1}}).ok());
    EXPECT_EQ(engine_->Get(id).value().record.Find(scored)->metrics.Find("accuracy")->AsDouble(),
              0.1);
    EXPECT_TRUE(context->Close().ok());
  }
  EXPECT_EQ(engine_->Get(id).value().state, TrialState::kCompleted);
  auto context = Init().value();
  EXPECT_EQ(context->info()->trial.trial_id, id);
  EXPECT_EQ(context->info()->trial.run_id, 2u);
  EXPECT_EQ(context->info()->trial.resume_mode, "resume");
  EXPECT_TRUE(context->latest_checkpoint().has_value());
  EXPECT_TRUE(context->Close().ok());
  context = Init({.external_id = "another"}).value();
  EXPECT_NE(context->info()->trial.trial_id, id);
  EXPECT_TRUE(context->Close().ok());
}

TEST_F(JoiningCoreTest, WhatItWritesGoesToTheEngineAsWell) {
  const auto sees = [&](auto matcher) { return testing::Value(engine_.lines(), matcher); };
  {
    auto context = Init().value();
    std::cout << "a line " << 1 << std::endl;
    while (!sees(testing::Contains("stdout: a line 1"))) std::this_thread::yield();
    std::cerr << "ERROR of " << "mine\n";
    std::clog << "not ended";
    std::cout << "10 %\r20 %\r30 %\n";
    EXPECT_TRUE(context->Close().ok());
  }
  std::cout << "nobody's\n";
  EXPECT_THAT(engine_.lines(),
              testing::UnorderedElementsAre("stdout: a line 1", "stderr: ERROR of mine",
                                            "stderr: not ended", "stdout: 30 %"));
  auto context = Init({.send_output = false}).value();
  std::cout << "mine alone\n";
  EXPECT_TRUE(context->Close().ok());
  EXPECT_EQ(engine_.lines().size(), 4u);
}

TEST_F(JoiningCoreTest, ContextsEndInAnyOrderAndTheStreamsAreGivenBack) {
  std::streambuf* const own = std::cout.rdbuf();
  auto first = Init({.external_id = "first"}).value();
  auto second = Init({.external_id = "second"}).value();
  std::cout << "both\n";
  EXPECT_TRUE(first->Close().ok());
  std::cout << "one\n";
  EXPECT_TRUE(second->Close().ok());
  EXPECT_EQ(std::cout.rdbuf(), own);
  EXPECT_THAT(engine_.lines(),
              testing::UnorderedElementsAre("stdout: both", "stdout: both", "stdout: one"));
}

/// The engine's disk is away: the script waits in its call, however often the engine has to say
/// that it is to come again, and what it reported counts once.
TEST_F(CoreTest, AReportWaitsForTheEnginesStorageAndCountsOnce) {
  std::vector<std::string> said;  // by the thread that writes the log, which ends with the engine
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.find("the event log") != line.npos) said.emplace_back(line);
  });
  {
    EngineToJoin engine(storage(), std::chrono::milliseconds(50));
    auto context = Init().value();
    const std::string id = context->info()->trial.trial_id;
    engine.log()->Fail(UnavailableError("the disk is gone"));
    const std::uint64_t before = engine.log()->appends();
    auto reported = std::async(std::launch::async, [&] {
      return context->ReportTrainingMetrics(1, Value::Object{{"loss", 0.5}});
    });
    while (engine.log()->appends() < before + 5) {
      ASSERT_EQ(reported.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    }
    engine.log()->Fail(Status::Ok());
    EXPECT_TRUE(reported.get().ok());
    EXPECT_TRUE(context->ReportTrainingMetrics(2, Value::Object{{"loss", 0.4}}).ok());
    EXPECT_EQ(engine->Get(id).value().record.reports.size(), 2u);
    EXPECT_TRUE(context->Close().ok());
  }
  SetLogSink(nullptr);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_THAT(said[0], HasSubstr("cannot be written, trying again: Unavailable: the disk is gone"));
  EXPECT_THAT(said[1], HasSubstr("is written again, after"));
}

TEST_F(JoiningCoreTest, WhoHasTheWrongTokenIsToldSo) {
  setenv("CAIRN_JOIN_TOKEN", "wrong", 1);
  EXPECT_EQ(Init().status().code(), Code::kPermissionDenied);
}

TEST(ClusterInfoTest, ComesFromTheVariablesOfTheRun) {
  setenv("CAIRN_TRIAL_URL", "unix:/x", 1);
  setenv("CAIRN_TRIAL_ID", "12", 1);
  setenv("CAIRN_EXPERIMENT_ID", "exp-a", 1);
  setenv("CAIRN_RUN_ID", "3", 1);
  setenv("CAIRN_HPARAMS", R"({"lr":0.1})", 1);
  setenv("CAIRN_LATEST_CHECKPOINT", "abc", 1);
  setenv("CAIRN_RESUME_MODE", "continue", 1);
  const auto info = GetClusterInfo();
  ASSERT_TRUE(info.ok() && info->has_value());
  EXPECT_EQ((*info)->trial.trial_id, "12");
  EXPECT_EQ((*info)->trial.run_id, 3u);
  EXPECT_EQ((*info)->trial.hparams.Find("lr")->AsDouble(), 0.1);
  EXPECT_EQ((*info)->trial.resume_mode, "continue");
  EXPECT_EQ((*info)->latest_checkpoint, "abc");
  EXPECT_EQ((*info)->trial.trial_seed, 1166166508u) << "as in Python";
  setenv("CAIRN_TRIAL_SEED", "77", 1);
  EXPECT_EQ((*GetClusterInfo())->trial.trial_seed, 77u);
  setenv("CAIRN_TRIAL_SEED", "2147483648", 1);
  EXPECT_EQ(GetClusterInfo().status().code(), Code::kInvalidArgument);
  unsetenv("CAIRN_TRIAL_SEED");
  setenv("CAIRN_RUN_ID", "three", 1);
  EXPECT_EQ(GetClusterInfo().status().code(), Code::kInvalidArgument);
  for (const char* name :
       {"CAIRN_TRIAL_URL", "CAIRN_TRIAL_ID", "CAIRN_EXPERIMENT_ID", "CAIRN_RUN_ID", "CAIRN_HPARAMS",
        "CAIRN_LATEST_CHECKPOINT", "CAIRN_RESUME_MODE"}) {
    unsetenv(name);
  }
  EXPECT_FALSE(GetClusterInfo()->has_value());
}

}  // namespace
}  // namespace cairn::core

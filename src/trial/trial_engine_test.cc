#include "trial/trial_engine.h"

#include <gtest/gtest.h>

#include <future>
#include <span>
#include <string>
#include <vector>

#include "storage/local/local_store.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/sim_fs.h"
#include "trial/test_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using RunKey = TrialEngine::RunKey;

TEST_F(TrialEngineTest, ARunIsStartedWithItsEnvironmentAndCompletes) {
  Open();
  TrialConfig config = Config();
  config.hparams = Value::Object{{"lr", 0.5}};
  config.limits = {
      .address_space_bytes = 1 << 30, .open_files = 99, .nice = 3, .wall_time = seconds(90)};
  const std::string id = engine_->Create(config).value();
  EXPECT_EQ(id, "1");
  const LaunchSpec spec = launcher_.WaitFor("1.1");
  EXPECT_EQ(spec.env.at("CAIRN_TRIAL_URL"), "http://127.0.0.1:1");
  EXPECT_EQ(spec.env.at("CAIRN_HPARAMS"), R"({"lr":0.5})");
  EXPECT_EQ(spec.env.at("CAIRN_RUN_ID"), "1");
  EXPECT_EQ(spec.env.at("CAIRN_LATEST_CHECKPOINT"), "");
  EXPECT_EQ(spec.env.at("CAIRN_RESUME_MODE"), "fresh");
  const TrialConfig recorded = TrialConfigFromValue(ToValue(config)).value();
  for (const LaunchLimits& limits : {spec.limits, recorded.limits}) {
    EXPECT_EQ(limits.address_space_bytes, 1u << 30);
    EXPECT_EQ(limits.open_files, 99u);
    EXPECT_EQ(limits.nice, 3);
    EXPECT_EQ(limits.wall_time, seconds(90));
  }
  EXPECT_TRUE(engine_->Authenticate({"1", 1}, spec.env.at("CAIRN_RUN_TOKEN")).ok());
  EXPECT_TRUE(engine_->Authenticate({"1", 1}, "wrong").Is(Code::kPermissionDenied));
  EXPECT_TRUE(engine_->Authenticate({"1", 2}, "x").Is(Code::kNotFound));
  EXPECT_TRUE(engine_->Authenticate({"7", 1}, "x").Is(Code::kNotFound));
  Ready({"1", 1});
  EXPECT_EQ(State("1"), TrialState::kRunning);
  launcher_.End("1.1", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kCompleted);
}

TEST_F(TrialEngineTest, ReportsAreUniqueByRunAndSequence) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  EXPECT_EQ(*Report(key, 1, 10, Value::Object{{"x", 1}}).Find("duplicate"), Value(false));
  EXPECT_EQ(*Report(key, 1, 10, Value::Object{{"x", 1}}).Find("duplicate"), Value(true));
  Status status;
  Report(key, 3, 30, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kFailedPrecondition));
  Report(key, 2, 20, Value::Object{{"x", "NaN"}});
  for (const Value& bad :
       {Value(Value::Object{}), Value(Value::Object{{"sequence", "1"}}), Value(3)}) {
    Call([&](auto done) { engine_->Report(key, bad, done); }, &status);
    EXPECT_TRUE(status.Is(Code::kInvalidArgument)) << status.ToString();
  }
  EXPECT_EQ(engine_->Get("1").value().record.reports.size(), 2u);
  Restart();
  EXPECT_EQ(engine_->Get("1").value().record.reports.size(), 2u);
  EXPECT_EQ(*Report(key, 2, 20, Value::Object{}).Find("duplicate"), Value(true));
}

TEST_F(TrialEngineTest, AFailedRunIsRestartedFromItsLatestCheckpointAndStaleMetricsAreArchived) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({"1", 1});
  Report({"1", 1}, 1, 10, Value::Object{{"x", 10}});
  Save({"1", 1}, "c10", 10);
  Report({"1", 1}, 2, 20, Value::Object{{"x", 20}});
  launcher_.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9});
  const LaunchSpec spec = launcher_.WaitFor("1.2");
  EXPECT_EQ(spec.env.at("CAIRN_LATEST_CHECKPOINT"), "c10");
  EXPECT_EQ(spec.env.at("CAIRN_RESUME_MODE"), "resume");
  const TrialRecord record = engine_->Get("1").value().record;
  EXPECT_FALSE(record.reports[0].archived);
  EXPECT_TRUE(record.reports[1].archived);
  EXPECT_EQ(record.core.restarts, 1u);
  // The process of the first run, still alive somewhere, is not heard any more.
  Status status;
  Report({"1", 1}, 3, 30, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
  Call([&](auto done) { engine_->AcknowledgePreemption({"1", 1}, done); }, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
  Report({"1", 2}, 1, 20, Value::Object{{"x", 20}});
  for (int run = 2; run <= 3; ++run) {
    launcher_.WaitFor("1." + std::to_string(run));
    launcher_.End("1." + std::to_string(run), {.code = 1});
  }
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kError);
}

TEST_F(TrialEngineTest, WhatARunThatDiedLeftIsTidiedUpBeforeTheNext) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({"1", 1});
  Save({"1", 1}, "c10", 10);
  launcher_.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9});
  launcher_.WaitFor("1.2");
  ASSERT_EQ(repositories_.tidied().size(), 1U);
  EXPECT_EQ(repositories_.tidied()[0].second, 1U) << "in the name of the run that died";
  Ready({"1", 2});
  launcher_.End("1.2", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  EXPECT_EQ(repositories_.tidied().size(), 1U) << "one that ended well leaves nothing";
}

TEST_F(TrialEngineTest, AStepThatALaterRunReportsAgainCountsOnce) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({"1", 1});
  Report({"1", 1}, 1, 50, Value::Object{{"loss", 0.5}}, nullptr, "validation");
  Report({"1", 1}, 2, 100, Value::Object{{"loss", 0.2}}, nullptr, "validation");
  Report({"1", 1}, 3, 100, Value::Object{{"loss", 0.3}}, nullptr, "training");
  Save({"1", 1}, "c100", 100);
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  // It goes on where it ended: nothing is left to train, but the script validates at its end.
  ASSERT_TRUE(engine_->Activate("1", "").ok());
  launcher_.WaitFor("1.2");
  Ready({"1", 2});
  Report({"1", 2}, 1, 100, Value::Object{{"loss", 0.25}}, nullptr, "validation");
  Report({"1", 2}, 2, 100, Value::Object{{"accuracy", 0.9}}, nullptr, "validation");
  launcher_.End("1.2", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  const TrialRecord record = engine_->Get("1").value().record;
  ASSERT_EQ(record.reports.size(), 5u);
  EXPECT_FALSE(record.reports[0].archived) << "another step";
  EXPECT_TRUE(record.reports[1].archived);
  EXPECT_FALSE(record.reports[2].archived) << "another group";
  EXPECT_FALSE(record.reports[3].archived);
  EXPECT_FALSE(record.reports[4].archived) << "one run may say several things of a step";
  // The run looked at the state that the checkpoint holds.
  EXPECT_EQ(*record.Find("c100")->metrics.Find("loss"), Value(0.25));
  EXPECT_EQ(*record.Find("c100")->metrics.Find("accuracy"), Value(0.9));
}

TEST_F(TrialEngineTest, PauseIsToldAcknowledgedAndResumed) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Ready(key);
  Save(key, "c30", 30);
  std::promise<Value> told;
  engine_->WaitPreemption(key, 0, seconds(100),
                          [&](Result<Value> answer) { told.set_value(answer.value()); });
  Status status;
  Call([&](auto done) { engine_->AcknowledgePreemption(key, done); }, &status);
  EXPECT_TRUE(status.Is(Code::kFailedPrecondition));
  ASSERT_TRUE(engine_->Pause("1").ok());
  const Value answer = told.get_future().get();
  EXPECT_EQ(*answer.Find("preempt"), Value(true));
  EXPECT_EQ(*answer.Find("reason"), Value("pause"));
  EXPECT_GT(answer.Find("deadline_seconds")->AsDouble(), 500);
  const TrialView view = engine_->Get("1").value();
  EXPECT_EQ(view.state, TrialState::kPausing);
  EXPECT_EQ(view.resumes_from_step, 30);
  // A poll that has seen this version waits; without one it is told at once.
  const Value again = Call([&](auto done) { engine_->WaitPreemption(key, 0, seconds(100), done); });
  EXPECT_EQ(*again.Find("version"), *answer.Find("version"));
  const Value later = Call([&](auto done) {
    engine_->WaitPreemption(key, static_cast<std::uint64_t>(answer.Find("version")->AsInt()),
                            milliseconds(20), done);
  });
  EXPECT_EQ(*later.Find("preempt"), Value(true));
  Call([&](auto done) { engine_->AcknowledgePreemption(key, done); });
  launcher_.End("1.1", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kPaused);
  ASSERT_TRUE(engine_->Activate("1").ok());
  EXPECT_EQ(launcher_.WaitFor("1.2").env.at("CAIRN_LATEST_CHECKPOINT"), "c30");
  EXPECT_EQ(engine_->Get("1").value().record.core.restarts, 0u);
}

TEST_F(TrialEngineTest, AScriptThatNeverAsksIsEndedAtItsDeadlineAndThatIsNoRestart) {
  Open();
  TrialConfig config = Config();
  config.preemption_timeout = milliseconds(30);
  config.kill_grace = milliseconds(777);
  engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  ASSERT_TRUE(engine_->Pause("1").ok());
  EXPECT_EQ(launcher_.WaitForStop("1.1"), milliseconds(777));
  launcher_.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9, .stopped = true});
  const TrialView view = engine_->WaitForRest("1", seconds(20)).value();
  EXPECT_EQ(view.state, TrialState::kPaused);
  EXPECT_EQ(view.record.core.restarts, 0u);
}

TEST_F(TrialEngineTest, APauseBeforeTheProcessIsThereTakesItOutOfTheQueue) {
  launcher_.hold_queue = true;
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  for (int i = 0; i < 5000 && engine_->Get("1").value().state != TrialState::kQueued; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(engine_->Get("1").value().state, TrialState::kQueued);
  ASSERT_TRUE(engine_->Pause("1").ok());
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kPaused);
}

TEST_F(TrialEngineTest, KillAndCancel) {
  launcher_.ends_when_stopped = true;
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  ASSERT_TRUE(engine_->Kill("1").ok());
  EXPECT_EQ(launcher_.WaitForStop("1.1"), milliseconds(0));
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kCanceled);
  EXPECT_TRUE(engine_->Pause("1").Is(Code::kFailedPrecondition));
  ASSERT_TRUE(engine_->Activate("1").ok());
  launcher_.WaitFor("1.2");
  ASSERT_TRUE(engine_->Cancel("1").ok());
  EXPECT_EQ(State("1"), TrialState::kStopping);
  Call([&](auto done) { engine_->AcknowledgePreemption({"1", 2}, done); });
  launcher_.End("1.2", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kCanceled);
}

TEST_F(TrialEngineTest, ContinuesFromAnyCheckpointAndAsANewTrial) {
  Open();
  TrialConfig config = Config();
  config.hparams = Value::Object{{"lr", 1}, {"n", 2}};
  engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  Save({"1", 1}, "c10", 10);
  Save({"1", 1}, "c20", 20);
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  EXPECT_TRUE(engine_->Activate("1", "nothing").Is(Code::kNotFound));
  ASSERT_TRUE(engine_->Activate("1", "c10").ok());
  EXPECT_EQ(launcher_.WaitFor("1.2").env.at("CAIRN_LATEST_CHECKPOINT"), "c10");
  // It dies before it has saved: still from the chosen one, not from the newest.
  launcher_.End("1.2", {.code = 1});
  EXPECT_EQ(launcher_.WaitFor("1.3").env.at("CAIRN_LATEST_CHECKPOINT"), "c10");
  Save({"1", 3}, "c15", 15);
  launcher_.End("1.3", {.code = 1});
  EXPECT_EQ(launcher_.WaitFor("1.4").env.at("CAIRN_LATEST_CHECKPOINT"), "c15");

  const std::string fresh =
      engine_->ContinueAsNew("1", "c20", Value::Object{{"hparams", Value::Object{{"lr", 9}}}})
          .value();
  EXPECT_EQ(fresh, "2");
  const LaunchSpec spec = launcher_.WaitFor("2.1");
  EXPECT_EQ(spec.env.at("CAIRN_RESUME_MODE"), "continue");
  EXPECT_EQ(spec.env.at("CAIRN_LATEST_CHECKPOINT"), "c20");
  EXPECT_EQ(spec.env.at("CAIRN_HPARAMS"), R"({"lr":9,"n":2})");
  const Value info = Call([&](auto done) { engine_->Describe({"2", 1}, done); });
  EXPECT_EQ(*info.Find("latest_checkpoint/repository"), Value("/s/e/1"));
  EXPECT_EQ(*info.Find("repository"), Value("/s/e/2"));
}

TEST_F(TrialEngineTest, AContinuedTrialThatDiesBeforeItsFirstSaveReportsNothingTwice) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Save({"1", 1}, "c100", 100);
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  engine_->ContinueAsNew("1", "c100", Value::Object{}).value();
  launcher_.WaitFor("2.1");
  Ready({"2", 1});
  Report({"2", 1}, 1, 10, Value::Object{{"x", 110}});
  launcher_.End("2.1", {.kind = ExitKind::kSignaled, .signal = 9});
  EXPECT_EQ(launcher_.WaitFor("2.2").env.at("CAIRN_LATEST_CHECKPOINT"), "c100");
  EXPECT_TRUE(engine_->Get("2").value().record.reports[0].archived);
}

TEST_F(TrialEngineTest, ATrialWaitsForStorageThatIsNotMounted) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({"1", 1});
  Save({"1", 1}, "c10", 10);
  repositories_.Fail(NotFoundError("/s/e/1: No such file or directory"));
  launcher_.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9});
  repositories_.WaitForLists(3);  // at the start, at the end, and before the next start
  EXPECT_EQ(State("1"), TrialState::kQueued);
  EXPECT_EQ(engine_->Get("1").value().record.Find("c10")->state, CheckpointState::kCompleted);
  repositories_.Fail(Status::Ok());
  const LaunchSpec spec = launcher_.WaitFor("1.2");
  EXPECT_EQ(spec.env.at("CAIRN_LATEST_CHECKPOINT"), "c10");
  EXPECT_EQ(spec.env.at("CAIRN_RESUME_MODE"), "resume");
}

TEST_F(TrialEngineTest, WhoWaitsForSlotsIsQueuedAndToldWhenThatBeginsAndEnds) {
  Mutex mu;
  std::vector<TrialState> told;
  launcher_.hold_queue = true;
  on_wait_ = [&](const std::string& trial) {
    const TrialState state = engine_->Summary(trial).value().state;
    MutexLock hold(&mu);
    told.push_back(state);
  };
  Open();
  const auto told_of = [&](std::size_t count) {
    const auto now = [&] {
      MutexLock hold(&mu);
      return told;
    };
    for (int i = 0; i < 20'000 && now().size() < count; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return now();
  };
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  EXPECT_EQ(told_of(1), std::vector{TrialState::kQueued});
  Restart();
  EXPECT_EQ(told_of(2), (std::vector{TrialState::kQueued, TrialState::kQueued}));
  EXPECT_EQ(engine_->Summary("1").value().state, TrialState::kQueued);
  launcher_.Begin("1.1");
  EXPECT_EQ(told_of(3).back(), TrialState::kStarting);
}

TEST_F(TrialEngineTest, CheckpointsThatWereCommittedButNotReportedAreFound) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Call([&](auto done) {
    engine_->StartCheckpoint({"1", 1}, Value::Object{{"registration", "r"}, {"steps_completed", 5}},
                             done);
  });
  repositories_.Commit("/s/e/1", {.id = "c5", .steps = 5});
  launcher_.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9});
  EXPECT_EQ(launcher_.WaitFor("1.2").env.at("CAIRN_LATEST_CHECKPOINT"), "c5");
  const TrialRecord record = engine_->Get("1").value().record;
  EXPECT_EQ(record.Find("r")->state, CheckpointState::kError);
  EXPECT_EQ(record.Find("c5")->state, CheckpointState::kCompleted);
}

TEST_F(TrialEngineTest, RegistrationsAreCompletedOnceAndAbandonedOnesAreErrors) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Save(key, "c1", 1);
  Status status;
  Call([&](auto done) {
    engine_->CompleteCheckpoint(key, "r-c1", Value::Object{{"id", "c1"}, {"steps_completed", 1}},
                                done);
  });
  Call(
      [&](auto done) {
        engine_->CompleteCheckpoint(key, "r-c1",
                                    Value::Object{{"id", "other"}, {"steps_completed", 1}}, done);
      },
      &status);
  EXPECT_TRUE(status.Is(Code::kAlreadyExists));
  Call(
      [&](auto done) {
        engine_->CompleteCheckpoint(key, "unknown",
                                    Value::Object{{"id", "x"}, {"steps_completed", 1}}, done);
      },
      &status);
  EXPECT_TRUE(status.Is(Code::kNotFound));
  Call([&](auto done) {
    engine_->StartCheckpoint(key, Value::Object{{"registration", "r2"}, {"steps_completed", 2}},
                             done);
  });
  Call([&](auto done) {
    engine_->AbandonCheckpoint(key, "r2", Value::Object{{"reason", "a rank died"}}, done);
  });
  const Value one = Call([&](auto done) { engine_->GetCheckpoint(key, "r2", done); });
  EXPECT_EQ(*one.Find("state"), Value("ERROR"));
  EXPECT_EQ(Call([&](auto done) { engine_->ListCheckpoints(key, done); })
                .Find("checkpoints")
                ->if_list()
                ->size(),
            2u);
}

TEST_F(TrialEngineTest, RetentionIsTheLivingRunsAndAfterwardsTheEngines) {
  Open();
  TrialConfig config = Config();
  config.retention = {.keep_last = 1};
  engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Save(key, "c1", 1);
  Save(key, "c2", 2);
  const Value beat = Call([&](auto done) { engine_->Heartbeat(key, done); });
  EXPECT_EQ(*beat.Find("remove"), Value(Value::List{"c1"}));
  Call([&](auto done) { engine_->CheckpointDeleted(key, "c1", done); });
  EXPECT_EQ(*Call([&](auto done) { engine_->Heartbeat(key, done); }).Find("remove"),
            Value(Value::List{}));
  EXPECT_TRUE(repositories_.removed().empty());
  Save(key, "c3", 3);
  EXPECT_EQ(engine_->PreviewRetention("1", {.keep_last = 2}).value().size(), 0u);
  EXPECT_EQ(engine_->PreviewRetention("1", {.keep_last = 1}).value().size(), 1u);
  ASSERT_TRUE(engine_->Pin("1", "c2", true).ok());
  EXPECT_EQ(engine_->PreviewRetention("1", {.keep_last = 1}).value().size(), 0u);
  ASSERT_TRUE(engine_->Pin("1", "c2", false).ok());
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  repositories_.WaitForRemoved(1);
  EXPECT_EQ(repositories_.removed().front(), "c2");
}

class RemovalsOfTheDead : public TrialEngineTest {
 protected:
  /// A trial that has ended, with c1, c2 and c3.
  void MakeEnded() {
    Open();
    engine_->Create(Config()).value();
    launcher_.WaitFor("1.1");
    for (const int step : {1, 2, 3}) Save({"1", 1}, "c" + std::to_string(step), step);
    launcher_.End("1.1", {.code = 0});
    engine_->WaitForRest("1", seconds(20)).value();
  }
  CheckpointRecord Known(const std::string& id) {
    return *engine_->Get("1").value().record.Find(id);
  }
  /// Those that are on record as there, once that is `count` of them.
  std::vector<std::string> Left(std::size_t count) {
    std::vector<std::string> left;
    for (int i = 0; i < 10'000; ++i) {
      left.clear();
      for (const CheckpointRecord& one : engine_->Get("1").value().record.checkpoints) {
        if (one.state == CheckpointState::kCompleted) left.push_back(one.id);
      }
      if (left.size() == count) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return left;
  }
};

TEST_F(RemovalsOfTheDead, ThatAUserAskedForAreFinished) {
  MakeEnded();
  ASSERT_TRUE(engine_->RemoveCheckpoints("1", {"c1", "c3"}, "removed by ada").ok());
  Crash();
  // Killed when the files were gone, and before it could say so.
  std::vector<Event> events = log_.events();
  while (events.back().kind == EventKind::kCheckpointDeleted) events.pop_back();
  ASSERT_LT(events.size(), log_.events().size());
  log_.Cut(events.size());
  Open();
  EXPECT_EQ(Left(1), (std::vector<std::string>{"c2"}));
}

TEST_F(RemovalsOfTheDead, ThatRulesAskForAreFinished) {
  MakeEnded();
  Crash();
  const Event rules{.seq = log_.events().back().seq + 1,
                    .trial = "1",
                    .kind = EventKind::kRetentionChanged,
                    .body = Value::Object{{"retention", ToValue(RetentionPolicy{.keep_last = 1})}}};
  ASSERT_TRUE(log_.Append(std::span(&rules, 1)).ok());
  Open();
  EXPECT_EQ(Left(1), (std::vector<std::string>{"c3"}));
}

TEST_F(RemovalsOfTheDead, ARemovalThatIsRefusedIsNotMadeUpForLater) {
  MakeEnded();
  repositories_.SetRun("/s/e/1", 9);  // another one has it
  EXPECT_FALSE(engine_->RemoveCheckpoints("1", {"c1"}, "removed by ada").ok());
  repositories_.SetRun("/s/e/1", 1);
  Restart();
  EXPECT_EQ(engine_->PreviewRetention("1", {}).value(), std::vector<Removal>{});
  EXPECT_EQ(Left(3).size(), 3u);
}

TEST_F(RemovalsOfTheDead, WhoeverPinsOneMeanwhileKeepsHisPin) {
  MakeEnded();
  repositories_.Hold("/s/e/1");
  auto removed = std::async(std::launch::async, [&] {
    return engine_->RemoveCheckpoints("1", {"c1"}, "removed by ada").status();
  });
  while (Known("c1").unwanted.empty()) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_TRUE(engine_->Pin("1", "c1", true).ok());
  repositories_.Release();
  EXPECT_TRUE(removed.get().Is(Code::kFailedPrecondition));
  EXPECT_TRUE(Known("c1").pinned);
  EXPECT_EQ(Known("c1").unwanted, "");
}

TEST_F(RemovalsOfTheDead, OneOfSeveralThatIsKeptIsNotRemovedLater) {
  MakeEnded();
  ASSERT_TRUE(repositories_.Pin("/s/e/1", "c2", true).ok());  // not through the engine
  const auto removed = engine_->RemoveCheckpoints("1", {"c1", "c2"}, "removed by ada");
  EXPECT_EQ(removed.value().gone, (std::vector<std::string>{"c1"}));
  ASSERT_TRUE(repositories_.Pin("/s/e/1", "c2", false).ok());
  Restart();
  EXPECT_EQ(engine_->PreviewRetention("1", {}).value(), std::vector<Removal>{});
  EXPECT_EQ(Left(2), (std::vector<std::string>{"c2", "c3"}));
}

TEST_F(RemovalsOfTheDead, ARemovalThatTheLogDoesNotTakeInTimeIsNotMadeUpForLater) {
  answer_timeout_ = seconds(10);
  MakeEnded();
  log_.Fail(UnavailableError("full"));
  auto removed = std::async(std::launch::async, [&] {
    return engine_->RemoveCheckpoints("1", {"c1"}, "removed by ada").status();
  });
  while (removed.wait_for(milliseconds(1)) != std::future_status::ready) {
    clock_.Advance(answer_timeout_);
  }
  EXPECT_FALSE(removed.get().ok());
  log_.Fail(Status::Ok());
  ASSERT_TRUE(engine_->SetRetention("1", {}).ok());
  EXPECT_EQ(engine_->PreviewRetention("1", {}).value(), std::vector<Removal>{});
  EXPECT_TRUE(repositories_.removed().empty());
}

TEST_F(TrialEngineTest, WhatAUserRemovesFromALivingRunIsLeftToTheRun) {
  Open();
  engine_->Create(Config()).value();  // by its rules all stay
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  for (const int step : {1, 2, 3, 4, 5}) Save(key, "c" + std::to_string(step), step);
  const auto told = [&] {
    return *Call([&](auto done) { engine_->Heartbeat(key, done); }).Find("remove");
  };
  const TrialEngine::Removed removed =
      engine_->RemoveCheckpoints("1", {"c1", "c2", "c3"}, "removed by ada").value();
  EXPECT_TRUE(removed.gone.empty());
  EXPECT_EQ(removed.left_to_run, (std::vector<std::string>{"c1", "c2", "c3"}));
  EXPECT_EQ(told(), Value(Value::List{"c1", "c2", "c3"}));
  // Pinned, it stays after all, and is not removed while it is.
  ASSERT_TRUE(engine_->Pin("1", "c2", true).ok());
  EXPECT_EQ(told(), Value(Value::List{"c1", "c3"}));
  EXPECT_TRUE(engine_->RemoveCheckpoints("1", {"c2"}, "x").status().Is(Code::kFailedPrecondition));
  ASSERT_TRUE(engine_->Pin("1", "c2", false).ok());
  EXPECT_EQ(told(), Value(Value::List{"c1", "c3"}));
  Call([&](auto done) { engine_->CheckpointDeleted(key, "c1", done); });
  EXPECT_EQ(engine_->Get("1").value().record.Find("c1")->reason, "removed by ada");
  // What was taken over survives the engine, also as a summary; what the run did not get to is
  // removed after its end.
  Restart();
  const std::vector<Removal> left{{"1", "c3", "removed by ada"}};
  EXPECT_EQ(engine_->PreviewRetention("1", {}).value(), left);
  ASSERT_TRUE(engine_->Compact().ok());
  Restart();
  EXPECT_EQ(engine_->PreviewRetention("1", {}).value(), left);
  Save(key, "c6", 6);
  EXPECT_EQ(told(), Value(Value::List{"c3"}));
  EXPECT_TRUE(repositories_.removed().empty());
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  repositories_.WaitForRemoved(1);
  EXPECT_EQ(repositories_.removed(), std::vector<std::string>{"c3"});
}

TEST_F(TrialEngineTest, AValidationScoresItsCheckpoint) {
  Open();
  TrialConfig config = Config();
  config.retention = {.keep_best = 1, .score = "loss", .maximize = false};
  engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Save(key, "c1", 1, {{"awaits_score", true}});
  Save(key, "c2", 2, {{"metrics", Value::Object{{"loss", 0.5}}}});
  Save(key, "c3", 3, {{"metrics", Value::Object{{"loss", 0.9}}}});
  // c1 waits for its score, c2 is the best known, c3 the latest.
  EXPECT_EQ(*Call([&](auto done) { engine_->Heartbeat(key, done); }).Find("remove"),
            Value(Value::List{}));
  Report(key, 1, 1, Value::Object{{"loss", 0.7}}, nullptr, "validation");
  EXPECT_EQ(*Call([&](auto done) { engine_->Heartbeat(key, done); }).Find("remove"),
            Value(Value::List{"c1"}));
}

TEST_F(TrialEngineTest, RulesThatLookAtTheClockOrAtOtherTrialsAreAppliedWithoutBeingAsked) {
  retention_interval_ = milliseconds(20);
  Open();
  TrialConfig config = Config();
  config.retention = {.experiment_best = 1, .score = "loss", .maximize = false};
  engine_->Create(config).value();
  engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  launcher_.WaitFor("2.1");
  Save({"1", 1}, "a1", 1, {{"metrics", Value::Object{{"loss", 0.5}}}});
  Save({"1", 1}, "a2", 2, {{"metrics", Value::Object{{"loss", 0.9}}}});
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  EXPECT_TRUE(repositories_.removed().empty());  // the best and the latest
  Save({"2", 1}, "b1", 1, {{"metrics", Value::Object{{"loss", 0.1}}}});
  repositories_.WaitForRemoved(1);
  EXPECT_EQ(repositories_.removed(), std::vector<std::string>{"a1"});
  // And with time.
  ASSERT_TRUE(engine_->SetRetention("2", {.max_age = milliseconds(50)}).ok());
  Save({"2", 1}, "b2", 2);
  for (int i = 0; i < 5000; ++i) {
    const Value beat = Call([&](auto done) { engine_->Heartbeat({"2", 1}, done); });
    if (*beat.Find("remove") == Value(Value::List{"b1"})) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
  FAIL() << "b1 is old and stays";
}

TEST_F(TrialEngineTest, AReopenedEngineFindsItsRunsAgain) {
  Open();
  for (int i = 0; i < 4; ++i) engine_->Create(Config()).value();
  for (int i = 1; i <= 4; ++i) launcher_.WaitFor(std::to_string(i) + ".1");
  Ready({"1", 1});
  ASSERT_TRUE(engine_->Pause("3").ok());
  Crash();
  launcher_.End("2.1", {.code = 0});  // nobody hears it
  Open();
  EXPECT_EQ(engine_->WaitForRest("2", seconds(20)).value().state, TrialState::kCompleted);
  EXPECT_EQ(State("1"), TrialState::kRunning);
  EXPECT_EQ(State("3"), TrialState::kPausing);
  EXPECT_EQ(State("4"), TrialState::kStarting);
  Report({"1", 1}, 1, 1, Value::Object{});
  launcher_.End("1.1", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest("1", seconds(20)).value().state, TrialState::kCompleted);
  EXPECT_EQ(launcher_.running(), 2u);
}

/// The engine dies after each durable event of a whole life in turn; opened again it comes to the
/// same end, and no run was started twice.
TEST_F(TrialEngineTest, WhereverItIsCutTheEngineComesToTheSameEnd) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({"1", 1});
  Report({"1", 1}, 1, 10, Value::Object{{"x", 1}});
  Save({"1", 1}, "c10", 10);
  ASSERT_TRUE(engine_->Pause("1").ok());
  Call([&](auto done) { engine_->AcknowledgePreemption({"1", 1}, done); });
  launcher_.End("1.1", {.code = 0});
  engine_->WaitForRest("1", seconds(20)).value();
  Crash();
  const std::vector<Event> whole = log_.events();
  for (std::size_t cut = 1; cut <= whole.size(); ++cut) {
    SCOPED_TRACE(cut);
    MemoryEventLog log;
    ASSERT_TRUE(log.Append(std::span(whole).first(cut)).ok());
    FakeLauncher launcher;
    std::unique_ptr<TrialEngine> engine;
    TrialRecords records;
    for (std::size_t i = 0; i < cut; ++i) ASSERT_TRUE(records.Apply(whole[i]).ok());
    const TrialCore core = records.Find("1")->core;
    // The process of a run that had been submitted ended meanwhile, acknowledged or killed.
    if (core.run == 1) {
      ASSERT_TRUE(launcher.Submit({.id = "1.1"}).ok());
      launcher.End("1.1", {.kind = ExitKind::kSignaled, .signal = 9});
    }
    launcher.listener = [&](const LaunchInfo& info) { engine->OnLaunch(info); };
    engine = TrialEngine::Open({.log = &log, .launcher = &launcher, .repositories = &repositories_})
                 .value();
    ASSERT_TRUE(engine->Start().ok());
    const bool pausing = core.state == TrialState::kPausing || core.state == TrialState::kPaused;
    if (pausing) {
      EXPECT_EQ(engine->WaitForRest("1", seconds(20)).value().state, TrialState::kPaused);
    } else {
      const std::string next = "1." + std::to_string(core.run + 1);
      launcher.WaitFor(next);
      EXPECT_EQ(launcher.running(), 1u);
      launcher.End(next, {.code = 0});
      EXPECT_EQ(engine->WaitForRest("1", seconds(20)).value().state, TrialState::kCompleted);
    }
    launcher.listener = nullptr;
    engine.reset();
  }
}

TEST_F(TrialEngineTest, WithoutItsStorageRequestsWaitThenGoThroughOrFailClearly) {
  Open();
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Report(key, 1, 1, Value::Object{});
  log_.Fail(UnavailableError("the disk is gone"));
  Status status;
  // Before the first write has failed there is nothing to say but that it takes long.
  do status = ReportInVain(key, 2, 2);
  while (status.message().find("takes too long") != std::string_view::npos);
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  EXPECT_NE(status.message().find("the disk is gone"), std::string_view::npos);
  // Each try waits with the ones before; what it is told is what the last write said.
  log_.Fail(ResourceExhaustedError("no space"));
  do status = ReportInVain(key, 2, 2);
  while (status.Is(Code::kUnavailable));
  EXPECT_TRUE(status.Is(Code::kResourceExhausted)) << status.ToString();
  log_.Fail(Status::Ok());
  Value answer;
  do answer = Report(key, 2, 2, Value::Object{}, &status);
  while (!status.ok());
  EXPECT_EQ(*answer.Find("duplicate"), Value(true));
  EXPECT_EQ(engine_->Get("1").value().record.reports.size(), 2u);
  Restart();
  EXPECT_EQ(engine_->Get("1").value().record.reports.size(), 2u);
}

/// The same with a journal on a disk that is away, for all operations, and comes back.
TEST_F(TrialEngineTest, ADiskThatComesBackTakesWhatWaited) {
  SimFs disk;
  FaultyFs fs(&disk);
  auto store = LocalStore::Open({.root = "/j", .fs = &fs}).value();
  auto journal = JournalEventLog::Open({.store = store.get(), .prefix = "log"}).value();
  const auto open = [&](EventLog* log) {
    engine_ = TrialEngine::Open({.log = log,
                                 .launcher = &launcher_,
                                 .repositories = &repositories_,
                                 .clock = &clock_,
                                 .answer_timeout = answer_timeout_})
                  .value();
    launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
    ASSERT_TRUE(engine_->Start().ok());
  };
  open(journal.get());
  engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  const RunKey key{"1", 1};
  Report(key, 1, 1, Value::Object{});
  fs.Arm({.failure = FsFailure::kIoError, .trigger = {.at = 0, .from_then_on = true}});
  Status status;
  for (int i = 0; i < 3; ++i) {
    status = ReportInVain(key, 2, 2);
    EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  }
  fs.Disarm();
  // A client repeats until it is answered.
  do Report(key, 2, 2, Value::Object{}, &status);
  while (!status.ok());
  Report(key, 3, 3, Value::Object{});
  Crash();
  journal.reset();
  // The power fails right then: what was acknowledged is there.
  auto after = SimFs::FromCrash(*disk.Snapshot(), CrashMode::kForget, 0);
  auto again = LocalStore::Open({.root = "/j", .fs = after.get()}).value();
  journal = JournalEventLog::Open({.store = again.get(), .prefix = "log"}).value();
  open(journal.get());
  EXPECT_EQ(engine_->Get("1").value().record.reports.size(), 3u);
  Crash();
}

TEST_F(TrialEngineTest, AnotherEngineOnTheLogEndsThisOne) {
  Open();
  log_.Fail(AbortedError("another engine"));
  EXPECT_TRUE(engine_->Create(Config()).status().Is(Code::kUnavailable));
  EXPECT_TRUE(engine_->Create(Config()).status().Is(Code::kUnavailable));
}

TEST_F(TrialEngineTest, AProcessStartedByHandJoinsIsLostAndJoinsAgain) {
  Open();
  Status status;
  Call([&](auto done) { engine_->Join("wrong", Value::Object{{"external_id", "mine"}}, done); },
       &status);
  EXPECT_TRUE(status.Is(Code::kPermissionDenied));
  const Value joined = Call([&](auto done) {
    engine_->Join("let me in",
                  Value::Object{{"external_id", "mine"}, {"hparams", Value::Object{{"a", 1}}}},
                  done);
  });
  const std::string id = *joined.Find("trial_id")->if_string();
  const RunKey key{id, 1};
  EXPECT_TRUE(engine_->Authenticate(key, *joined.Find("token")->if_string()).ok());
  Ready(key);
  Report(key, 1, 1, Value::Object{});
  EXPECT_EQ(State(id), TrialState::kRunning);
  clock_.Advance(std::chrono::hours(1));  // silent for too long
  WaitState(id, TrialState::kPaused);
  Report(key, 2, 2, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
  const Value again = Call(
      [&](auto done) { engine_->Join("let me in", Value::Object{{"external_id", "mine"}}, done); });
  EXPECT_EQ(*again.Find("trial_id"), Value(id));
  EXPECT_EQ(again.Find("run_id")->AsInt(), 2);
  const Value ended =
      Call([&](auto done) { engine_->Exit({id, 2}, Value::Object{{"code", 0}}, done); });
  EXPECT_EQ(*ended.Find("state"), Value("COMPLETED"));
}

TEST_F(TrialEngineTest, AKilledProcessThatWasStartedByHandIsNotHeardAnyMore) {
  Open();
  const Value joined = Call(
      [&](auto done) { engine_->Join("let me in", Value::Object{{"external_id", "mine"}}, done); });
  const std::string id = *joined.Find("trial_id")->if_string();
  Ready({id, 1});
  ASSERT_TRUE(engine_->Kill(id).ok());
  EXPECT_EQ(engine_->WaitForRest(id, seconds(20)).value().state, TrialState::kCanceled);
  Status status;
  Report({id, 1}, 1, 1, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
}

TEST_F(TrialEngineTest, HigherPrioritiesFirstAndNotMoreThanAllowed) {
  TrialEngineOptions options{
      .log = &log_, .launcher = &launcher_, .repositories = &repositories_, .max_live_runs = 1};
  engine_ = TrialEngine::Open(options).value();
  for (int priority : {0, 5, 1}) {
    TrialConfig config = Config();
    config.priority = priority;
    engine_->Create(config).value();
  }
  launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
  ASSERT_TRUE(engine_->Start().ok());
  for (const char* id : {"2.1", "3.1", "1.1"}) {
    launcher_.WaitFor(id);
    EXPECT_EQ(launcher_.running(), 1u);
    launcher_.End(id, {.code = 0});
  }
}

TEST_F(TrialEngineTest, BadConfigsAreRefusedAndLeaveNothing) {
  Open();
  EXPECT_TRUE(engine_->Create({.storage = "/s"}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(engine_->Create({.experiment = "../x", .argv = {"a"}, .storage = "/s"})
                  .status()
                  .Is(Code::kInvalidArgument));
  EXPECT_TRUE(engine_->Create(Config(), "../x").status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(engine_->Create(Config(), "x").ok());
  EXPECT_TRUE(engine_->Create(Config(), "x").status().Is(Code::kAlreadyExists));
  EXPECT_EQ(engine_->List().size(), 1u);
}

}  // namespace
}  // namespace cairn

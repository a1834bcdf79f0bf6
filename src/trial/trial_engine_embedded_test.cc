// An engine whose user writes down his own steps as events too (the tuner): he does not wait for
// the log, and processes start while it is being synced. They are told nothing before that.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "trial/test_engine.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

class EmbeddedTrialEngine : public TrialEngineTest {
 protected:
  EmbeddedTrialEngine() {
    users_wait_ = false;
    submit_early_ = true;
  }
  static TrialConfig Bound() {
    TrialConfig config = Config();
    config.outlive_engine = false;
    return config;
  }
  /// Until the log takes events again.
  void LogFails() { log_.Fail(UnavailableError("not now")); }
  void LogWorks() { log_.Fail(Status::Ok()); }
};

TEST_F(EmbeddedTrialEngine, ARunIsThereBeforeItsStartIsDurableAndIsToldNothing) {
  Open();
  LogFails();
  const std::string id = engine_->Create(Bound()).value();
  launcher_.WaitFor("1.1");
  EXPECT_TRUE(log_.events().empty());
  std::promise<Status> described;
  std::atomic<bool> answered = false;
  engine_->Ready({id, 1}, Value::Object{{"rank", 0}}, [](const Result<Value>&) {});
  engine_->Describe({id, 1}, [&](const Result<Value>& answer) {
    answered = true;
    described.set_value(answer.status());
  });
  EXPECT_FALSE(answered);
  LogWorks();
  EXPECT_TRUE(described.get_future().get().ok());
  const std::vector<Event> events = log_.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0].kind, EventKind::kTrialCreated);
  EXPECT_EQ(events[1].kind, EventKind::kRunStarted);
  EXPECT_EQ(events[2].kind, EventKind::kRunReady);
}

TEST_F(EmbeddedTrialEngine, ARunThatOutlivesTheEngineWaitsUntilItsStartIsDurable) {
  Open();
  LogFails();
  engine_->Create(Config()).value();
  repositories_.WaitForLists(1);
  // The next one passes by it, and is asked for later.
  engine_->Create(Bound()).value();
  launcher_.WaitFor("2.1");
  EXPECT_TRUE(launcher_.Get("1.1").status().Is(Code::kNotFound));
  LogWorks();
  launcher_.WaitFor("1.1");
}

TEST_F(EmbeddedTrialEngine, AStartThatWasLostWithTheEngineNeverHappened) {
  Open();
  LogFails();
  const std::string id = engine_->Create(Bound()).value();
  const std::string token = launcher_.WaitFor("1.1").env.at("CAIRN_RUN_TOKEN");
  Crash();
  LogWorks();
  Open();
  EXPECT_TRUE(engine_->Get(id).status().Is(Code::kNotFound));
  EXPECT_TRUE(engine_->Authenticate({id, 1}, token).Is(Code::kNotFound));
}

TEST_F(EmbeddedTrialEngine, WhatIsRecordedIsToldInOrderBeforeItIsDurable) {
  std::vector<EventKind> told;
  Mutex mu;
  on_recorded_ = [&](const Event& event) {
    MutexLock hold(&mu);
    told.push_back(event.kind);
  };
  Open();
  LogFails();
  const std::string id = engine_->Create(Bound()).value();
  launcher_.WaitFor("1.1");
  ASSERT_TRUE(engine_->Pause(id).ok());
  ASSERT_TRUE(engine_->Note(id, Value::Object{{"what", "mine"}}).ok());
  EXPECT_TRUE(log_.events().empty());
  {
    MutexLock hold(&mu);
    EXPECT_EQ(told, (std::vector{EventKind::kTrialCreated, EventKind::kRunStarted,
                                 EventKind::kPauseRequested, EventKind::kNote}));
  }
  LogWorks();
  ASSERT_TRUE(engine_->Flush().ok());
  EXPECT_EQ(log_.events().size(), 4u);
  Crash();  // before `told` is gone
}

TEST_F(EmbeddedTrialEngine, EventsThatGatherAreAppendedAtOnce) {
  Open();
  ASSERT_TRUE(engine_->Flush().ok());
  const std::uint64_t before = log_.appends();
  {
    const TrialEngine::Together together(engine_.get());
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(engine_->Note("", Value::Object{{"what", i}}).ok());
      std::this_thread::yield();
    }
    const TrialEngine::Together inner(engine_.get());
    EXPECT_EQ(log_.appends(), before);
  }
  ASSERT_TRUE(engine_->Flush().ok());
  EXPECT_EQ(log_.appends(), before + 1);
  EXPECT_EQ(log_.events().size(), 5u);
}

TEST_F(EmbeddedTrialEngine, TroubleWithTheLogIsTold) {
  Open();
  ASSERT_TRUE(engine_->Note("", Value::Object{{"what", "a"}}).ok());
  ASSERT_TRUE(engine_->Flush().ok());
  EXPECT_TRUE(engine_->LogTrouble().ok());
  LogFails();
  ASSERT_TRUE(engine_->Note("", Value::Object{{"what", "b"}}).ok());
  while (engine_->LogTrouble().ok()) std::this_thread::yield();
  EXPECT_TRUE(engine_->LogTrouble().Is(Code::kUnavailable));
  LogWorks();
  ASSERT_TRUE(engine_->Flush().ok());
  EXPECT_TRUE(engine_->LogTrouble().ok());
}

TEST_F(EmbeddedTrialEngine, ASignalIsForTheLivingRun) {
  Open();
  const std::string id = engine_->Create(Bound()).value();
  launcher_.WaitFor("1.1");
  EXPECT_TRUE(engine_->Signal(id, 12).ok());
  EXPECT_EQ(launcher_.signals(), (std::vector<std::pair<std::string, int>>{{"1.1", 12}}));
  launcher_.End("1.1", {.code = 0});
  WaitState(id, TrialState::kCompleted);
  EXPECT_TRUE(engine_->Signal(id, 12).Is(Code::kFailedPrecondition));
  EXPECT_TRUE(engine_->Signal("none", 12).Is(Code::kNotFound));
}

}  // namespace
}  // namespace cairn

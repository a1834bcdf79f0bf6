// Corners in which an engine once said, kept or did the wrong thing.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "trial/test_engine.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

class TrialEngineCorners : public TrialEngineTest {
 protected:
  RunKey Join(const std::string& name) {
    const Value joined = Call(
        [&](auto done) { engine_->Join("let me in", Value::Object{{"external_id", name}}, done); });
    return {*joined.Find("trial_id")->if_string(),
            static_cast<std::uint64_t>(joined.Find("run_id")->AsInt())};
  }
  Value Exit(const RunKey& key, Status* status = nullptr) {
    return Call([&](auto done) { engine_->Exit(key, Value::Object{{"code", 0}}, done); }, status);
  }
};

TEST_F(TrialEngineCorners, AnEngineThatLostItsLogTellsNoRunThatItWasReplaced) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  const std::string token = launcher_.WaitFor("1.1").env.at("CAIRN_RUN_TOKEN");
  Ready({id, 1});
  Status polled;
  std::promise<Status> poll;
  engine_->WaitPreemption({id, 1}, 0, seconds(100),
                          [&](const Result<Value>& answer) { poll.set_value(answer.status()); });
  log_.Fail(AbortedError("another engine"));
  Status status;
  Report({id, 1}, 1, 1, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  // What it believes now is not known to anybody else.
  launcher_.End("1.1", {.code = 1});
  Report({id, 1}, 2, 2, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  Report({id, 7}, 1, 1, Value::Object{}, &status);
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  EXPECT_TRUE(engine_->Authenticate({id, 1}, token).Is(Code::kUnavailable));
  EXPECT_TRUE(poll.get_future().get().Is(Code::kUnavailable));
}

TEST_F(TrialEngineCorners, ExitIsAnsweredTheSameAgainAfterALostAnswer) {
  Open();
  const RunKey key = Join("mine");
  Ready(key);
  EXPECT_EQ(*Exit(key).Find("state"), Value("COMPLETED"));
  EXPECT_EQ(*Exit(key).Find("state"), Value("COMPLETED"));
  Restart();
  EXPECT_EQ(*Exit(key).Find("state"), Value("COMPLETED"));
  EXPECT_EQ(engine_->Get(key.trial).value().record.core.restarts, 0u);
  // A newer run is another matter.
  const RunKey next = Join("mine");
  EXPECT_EQ(next.run, 2u);
  Status status;
  Exit(key, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
}

TEST_F(TrialEngineCorners, ExitOfARunThatWasGivenUpIsRefused) {
  Open();
  const RunKey key = Join("mine");
  Ready(key);
  clock_.Advance(std::chrono::hours(1));
  WaitState(key.trial, TrialState::kPaused);
  Status status;
  Exit(key, &status);
  EXPECT_TRUE(status.Is(Code::kAborted));
}

TEST_F(TrialEngineCorners, ARunThatHasJustBegunTakesOnePlaceAndNotTwo) {
  engine_ = TrialEngine::Open({.log = &log_,
                               .launcher = &launcher_,
                               .repositories = &repositories_,
                               .max_live_runs = 2,
                               .users_wait = false,
                               .submit_early = true})
                .value();
  launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
  ASSERT_TRUE(engine_->Start().ok());
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::string> ids = {"a" + std::to_string(round), "b" + std::to_string(round)};
    // The second is made in the moment in which the first begins, in some of the rounds.
    for (const std::string& id : ids) engine_->Create(Config(), id).value();
    for (int i = 0; i < 60'000 && launcher_.running() < 2; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_EQ(launcher_.running(), 2u) << "round " << round;
    for (const std::string& id : ids) launcher_.End(id + ".1", {.code = 0});
    for (const std::string& id : ids) WaitState(id, TrialState::kCompleted);
  }
}

TEST_F(TrialEngineCorners, APinAfterTheOrderToRemoveHoldsOrIsRefused) {
  Open();
  TrialConfig config = Config();
  config.retention = {.keep_last = 1};
  const std::string id = engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  Ready({id, 1});
  Save({id, 1}, "c1", 1);
  Save({id, 1}, "c2", 2);
  Save({id, 1}, "c3", 3);  // the run was told to remove c1 and c2, and has not yet
  ASSERT_TRUE(engine_->Pin(id, "c1", true).ok());
  EXPECT_TRUE(repositories_.RemoveAsRun("/s/e/1", "c1").Is(Code::kFailedPrecondition));
  ASSERT_TRUE(repositories_.RemoveAsRun("/s/e/1", "c2").ok());
  EXPECT_TRUE(engine_->Pin(id, "c2", true).Is(Code::kNotFound));
  EXPECT_TRUE(engine_->Get(id).value().record.Find("c1")->pinned);
  EXPECT_FALSE(engine_->Get(id).value().record.Find("c2")->pinned);
  ASSERT_TRUE(engine_->Pin(id, "c1", false).ok());
  EXPECT_TRUE(repositories_.RemoveAsRun("/s/e/1", "c1").ok());
  Call([&](auto done) { engine_->CheckpointDeleted({id, 1}, "c1", done); });
  EXPECT_TRUE(engine_->Pin(id, "c1", true).Is(Code::kFailedPrecondition));
  EXPECT_TRUE(engine_->Pin(id, "none", true).Is(Code::kNotFound));
}

TEST_F(TrialEngineCorners, ADamagedCheckpointIsPassedOverAtTheNextStart) {
  Open();
  TrialConfig config = Config();
  config.max_restarts = 5;
  const std::string id = engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  Ready({id, 1});
  Save({id, 1}, "c1", 1);
  Save({id, 1}, "c2", 2);
  launcher_.End("1.1", {.code = 1});
  launcher_.WaitFor("1.2");
  EXPECT_EQ(engine_->Get(id).value().record.start->id, "c2");
  repositories_.Damage("/s/e/1", "c2", "files/x: the bytes differ from their checksum");
  launcher_.End("1.2", {.code = 1});  // it could not restore it, and said so in a note
  launcher_.WaitFor("1.3");
  const TrialRecord record = engine_->Get(id).value().record;
  EXPECT_EQ(record.start->id, "c1");
  EXPECT_EQ(record.Find("c2")->state, CheckpointState::kError);
  EXPECT_NE(record.Find("c2")->reason.find("damaged: files/x"), std::string::npos);
  Crash();
  Open();
  EXPECT_EQ(engine_->Get(id).value().record.Find("c2")->state, CheckpointState::kError);
  repositories_.Damage("/s/e/1", "c2", "");  // a good copy was put back
  launcher_.End("1.3", {.code = 1});
  launcher_.WaitFor("1.4");
  EXPECT_EQ(engine_->Get(id).value().record.start->id, "c2");
}

TEST_F(TrialEngineCorners, StorageThatDoesNotAnswerHoldsUpItsOwnTrialsOnly) {
  Open();
  TrialConfig slow = Config();
  slow.storage = "/slow";
  for (int i = 1; i <= 20; ++i) {
    repositories_.Hold("/slow/e/" + std::to_string(i));
    engine_->Create(slow).value();
  }
  const std::string id = engine_->Create(Config()).value();
  EXPECT_EQ(id, "21");
  launcher_.WaitFor("21.1");
  Ready({id, 1});
  launcher_.End("21.1", {.code = 0});
  EXPECT_EQ(engine_->WaitForRest(id, seconds(20)).value().state, TrialState::kCompleted);
  repositories_.Release();
  for (int i = 1; i <= 20; ++i) launcher_.WaitFor(std::to_string(i) + ".1");
}

TEST_F(TrialEngineCorners, AskingAgainGivesNoMoreTime) {
  Open();
  TrialConfig config = Config();
  config.preemption_timeout = milliseconds(300);
  const std::string id = engine_->Create(config).value();
  launcher_.WaitFor("1.1");
  Ready({id, 1});
  ASSERT_TRUE(engine_->Pause(id).ok());
  const auto begin = std::chrono::steady_clock::now();
  std::jthread asks([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      engine_->Pause(id).IgnoreError("it may have ended");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  launcher_.WaitForStop("1.1");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
  asks = {};
  EXPECT_EQ(engine_->Get(id).value().record.deadline_ms, 300);
}

TEST_F(TrialEngineCorners, TimesWithoutEndAreLongAndNotOver) {
  Open();
  TrialConfig config = Config();
  config.preemption_timeout = config.kill_grace = milliseconds::max();
  const std::string id = engine_->Create(config).value();
  EXPECT_GT(launcher_.WaitFor("1.1").grace, std::chrono::hours(24 * 365));
  Ready({id, 1});
  ASSERT_TRUE(engine_->Pause(id).ok());
  const TrialView asked = engine_->Get(id).value();
  EXPECT_EQ(asked.state, TrialState::kPausing);
  EXPECT_GT(asked.preemption.deadline_seconds, 1e9);
  Restart();
  EXPECT_GT(engine_->Get(id).value().preemption.deadline_seconds, 1e9);
  EXPECT_FALSE(engine_->Get(id).value().record.core.signalled);
}

TEST_F(TrialEngineCorners, AStopThatTheLauncherCouldNotDoIsAskedForAgain) {
  launcher_.fail_stops = 2;
  launcher_.ends_when_stopped = true;
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({id, 1});
  ASSERT_TRUE(engine_->Kill(id).ok());
  EXPECT_EQ(engine_->WaitForRest(id, seconds(30)).value().state, TrialState::kCanceled);
  EXPECT_EQ(launcher_.fail_stops, 0);
}

TEST_F(TrialEngineCorners, APlaceThatIsNotTakenGoesToTheNext) {
  TrialEngineOptions options{
      .log = &log_, .launcher = &launcher_, .repositories = &repositories_, .max_live_runs = 1};
  engine_ = TrialEngine::Open(options).value();
  launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
  ASSERT_TRUE(engine_->Start().ok());
  repositories_.Hold("/s/e/1");
  engine_->Create(Config()).value();
  repositories_.WaitForLists(1);  // it has the only place
  engine_->Create(Config()).value();
  ASSERT_TRUE(engine_->Pause("1").ok());
  repositories_.Release();
  launcher_.WaitFor("2.1");
}

TEST_F(TrialEngineCorners, ATrialWithoutItsStorageTakesNoPlace) {
  TrialEngineOptions options{
      .log = &log_, .launcher = &launcher_, .repositories = &repositories_, .max_live_runs = 1};
  engine_ = TrialEngine::Open(options).value();
  launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
  ASSERT_TRUE(engine_->Start().ok());
  repositories_.FailFor("/s/e/1", UnavailableError("not mounted"));
  engine_->Create(Config()).value();
  engine_->Create(Config()).value();
  launcher_.WaitFor("2.1");
  repositories_.FailFor("/s/e/1", Status::Ok());
  launcher_.End("2.1", {.code = 0});
  launcher_.WaitFor("1.1");
}

/// What the engine says of storage, line by line.
class StorageLines {
 public:
  StorageLines() {
    SetLogSink([this](LogLevel, std::string_view line) {
      if (line.find("its storage") == line.npos) return;
      MutexLock hold(&mu_);
      lines_.emplace_back(line);
      changed_.NotifyAll();
    });
  }
  ~StorageLines() { SetLogSink(nullptr); }
  std::vector<std::string> WaitFor(std::size_t count) {
    MutexLock hold(&mu_);
    while (lines_.size() < count) changed_.Wait(&mu_);
    return lines_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ GUARDED_BY(mu_);
};

TEST_F(TrialEngineCorners, AWaitForStorageIsToldWhenItBeginsNowAndThenAndWhenItIsOver) {
  SettableClock clock;
  StorageLines lines;
  TrialEngineOptions options{
      .log = &log_, .launcher = &launcher_, .repositories = &repositories_, .clock = &clock};
  engine_ = TrialEngine::Open(options).value();
  launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
  ASSERT_TRUE(engine_->Start().ok());
  repositories_.FailFor("/s/e/1", UnavailableError("not mounted"));
  engine_->Create(Config()).value();
  EXPECT_EQ(lines.WaitFor(1)[0], "trial 1 waits for its storage: Unavailable: not mounted");
  repositories_.WaitForLists(3);
  EXPECT_EQ(lines.WaitFor(1).size(), 1u) << "not each look is told";
  clock.Advance(std::chrono::minutes(1));
  EXPECT_TRUE(lines.WaitFor(2)[1].starts_with("trial 1 has been waiting for its storage for "));
  repositories_.FailFor("/s/e/1", UnavailableError("no permission"));
  EXPECT_TRUE(lines.WaitFor(3)[2].ends_with(" s: Unavailable: no permission")) << "another reason";
  repositories_.FailFor("/s/e/1", Status::Ok());
  launcher_.WaitFor("1.1");
  const std::vector<std::string> said = lines.WaitFor(4);
  EXPECT_EQ(said.size(), 4u);
  EXPECT_TRUE(said[3].starts_with("trial 1: its storage is back after ")) << said[3];
  Crash();  // before the clock goes
}

}  // namespace
}  // namespace cairn

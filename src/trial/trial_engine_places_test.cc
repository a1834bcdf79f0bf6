// Where trials keep their checkpoints, when others write to the same storage and when the record or
// the directory it lies in has moved.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trial/test_engine.h"

namespace cairn {
namespace {

class TrialEnginePlaces : public TrialEngineTest {
 protected:
  TrialEnginePlaces() { shared_storage_ = true; }

  std::string JobOf(const std::string& trial) { return engine_->Get(trial).value().record.job; }
  std::string PlaceOf(const std::string& trial) { return engine_->Get(trial).value().repository; }
  std::string Launch(const std::string& trial, int run) {
    return trial + "." + JobOf(trial).substr(0, 8) + "." + std::to_string(run);
  }
  /// As a run that the engine knows: what it commits is under its repository.
  void Commit(const std::string& trial, const std::string& id, int steps) {
    repositories_.Commit(
        PlaceOf(trial),
        {.id = id, .steps = steps, .metadata = Value::Object{{"steps_completed", steps}}});
  }
};

TEST_F(TrialEnginePlaces, AnothersRepositoryIsLeftAloneAndAFreeDirectoryTaken) {
  repositories_.SetJob("/s/e/1", "a stranger's");
  repositories_.Commit("/s/e/1", {.id = "strange", .steps = 99});
  Open();
  const std::string id = engine_->Create(Config()).value();
  const std::string free = "/s/e-" + JobOf(id).substr(0, 8) + "/1";
  const LaunchSpec run = launcher_.WaitFor(Launch(id, 1));
  EXPECT_EQ(run.env.at("CAIRN_RESUME_MODE"), "fresh");
  EXPECT_EQ(PlaceOf(id), free);
  EXPECT_TRUE(engine_->Get(id).value().record.checkpoints.empty());
  Ready({id, 1});
  const Value described = Call([&](auto done) { engine_->Describe({id, 1}, done); });
  EXPECT_EQ(*described.Find("repository"), Value(free));
  EXPECT_EQ(*described.Find("job"), Value(JobOf(id)));
  Commit(id, "own", 5);
  launcher_.End(Launch(id, 1), {.code = 1});
  // It goes on there, also after a restart.
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 2)).env.at("CAIRN_LATEST_CHECKPOINT"), "own");
  Restart();
  EXPECT_EQ(PlaceOf(id), free);
  EXPECT_EQ(repositories_.Job("/s/e/1").value(), "a stranger's");
}

TEST_F(TrialEnginePlaces, AFreeRepositoryIsClaimedBeforeItsFirstRun) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor(Launch(id, 1));
  EXPECT_EQ(PlaceOf(id), "/s/e/1");
  EXPECT_EQ(repositories_.Job("/s/e/1").value(), JobOf(id));
}

TEST_F(TrialEnginePlaces, ARecordThatWasLostLeavesItsRunsAndCheckpointsToNobody) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  const std::string old = Launch(id, 1);
  launcher_.WaitFor(old);
  Ready({id, 1});
  Save({id, 1}, "lost", 7);
  Crash();
  log_.Cut(0);  // an empty record; the run lives
  Open();
  ASSERT_EQ(engine_->Create(Config()).value(), id);
  EXPECT_NE(Launch(id, 1), old);
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 1)).env.at("CAIRN_LATEST_CHECKPOINT"), "");
  EXPECT_NE(PlaceOf(id), "/s/e/1");
  EXPECT_FALSE(engine_->RunOfLaunch(old).has_value());
  EXPECT_EQ(engine_->RunOfLaunch(Launch(id, 1))->trial, id);
  // The old run's end is not this one's.
  launcher_.End(old, {.code = 0});
  Ready({id, 1});
  EXPECT_EQ(State(id), TrialState::kRunning);
}

TEST_F(TrialEnginePlaces, AnOldBackupFindsWhatItsOwnTrialDidLater) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor(Launch(id, 1));
  Ready({id, 1});
  Save({id, 1}, "later", 7);
  Crash();
  // The backup has the trial, and nothing of what it did. Its first run lives, and is another's
  // now: the next one fences it off.
  const std::vector<Event> events = log_.events();
  std::size_t created = 0;
  while (events[created].kind != EventKind::kTrialCreated) ++created;
  log_.Cut(created + 1);
  Open();
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 2)).env.at("CAIRN_LATEST_CHECKPOINT"), "later");
  EXPECT_EQ(PlaceOf(id), "/s/e/1");
  EXPECT_EQ(engine_->Get(id).value().record.core.restarts, 0u);
}

TEST_F(TrialEnginePlaces, RunsOfALostRecordHaveNumbersThatAreNotGivenAgain) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor(Launch(id, 1));
  Ready({id, 1});
  Save({id, 1}, "c1", 3);
  Save({id, 1}, "c2", 6);
  launcher_.End(Launch(id, 1), {.code = 0});
  WaitState(id, TrialState::kCompleted);
  // After the backup it went on twice.
  repositories_.SetRun("/s/e/1", 3);
  Restart();
  EXPECT_EQ(engine_->RemoveCheckpoints(id, {"c1"}, "a user").value().gone.size(), 1u);
  EXPECT_EQ(engine_->Get(id).value().record.core.run, 3u);
  repositories_.SetRun("/s/e/1", 5);
  ASSERT_TRUE(engine_->Activate(id).ok());
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 6)).env.at("CAIRN_LATEST_CHECKPOINT"), "c2");
}

TEST_F(TrialEnginePlaces, ATrialFromBeforeKeepsTheRepositoryThatItRanIn) {
  shared_storage_ = false;
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor("1.1");
  Ready({id, 1});
  Save({id, 1}, "c1", 3);
  repositories_.SetJob("/s/e/1", "made by its first run");
  Crash();
  shared_storage_ = true;
  Open();  // its run lives, under the name that it had
  launcher_.End("1.1", {.code = 1});
  for (int i = 0; i < 60000 && JobOf(id).empty(); ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(JobOf(id), "made by its first run");
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 2)).env.at("CAIRN_LATEST_CHECKPOINT"), "c1");
  EXPECT_EQ(PlaceOf(id), "/s/e/1");
}

TEST_F(TrialEnginePlaces, AnotherJobWhereItsCheckpointsWereIsWaitedOutAndSaid) {
  Open();
  const std::string id = engine_->Create(Config()).value();
  launcher_.WaitFor(Launch(id, 1));
  Ready({id, 1});
  Save({id, 1}, "c1", 3);
  const std::string job = JobOf(id);
  repositories_.SetJob("/s/e/1", "a stranger's");
  launcher_.End(Launch(id, 1), {.code = 1});
  for (int i = 0; i < 60000 && engine_->Get(id).value().waits_for.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const TrialView view = engine_->Get(id).value();
  EXPECT_NE(view.waits_for.find("/s/e/1 belongs to another job (a stranger's)"), std::string::npos)
      << view.waits_for;
  EXPECT_EQ(view.record.Find("c1")->state, CheckpointState::kCompleted);
  EXPECT_FALSE(engine_->RemoveCheckpoints(id, {"c1"}, "a user").ok());
  repositories_.SetJob("/s/e/1", job);
  EXPECT_EQ(launcher_.WaitFor(Launch(id, 2)).env.at("CAIRN_LATEST_CHECKPOINT"), "c1");
  EXPECT_EQ(engine_->Get(id).value().waits_for, "");
}

TEST_F(TrialEnginePlaces, AProcessThatJoinsIsToldAFreeDirectoryAndItsJob) {
  repositories_.SetJob("/s/default/1", "a stranger's");
  Open();
  const Value joined = Call(
      [&](auto done) { engine_->Join("let me in", Value::Object{{"external_id", "mine"}}, done); });
  const std::string job = JobOf("1");
  EXPECT_EQ(*joined.Find("job"), Value(job));
  EXPECT_EQ(*joined.Find("repository"), Value("/s/default-" + job.substr(0, 8) + "/1"));
  // Storage of another machine is not ours to write to.
  EXPECT_TRUE(
      repositories_.Job("/s/default-" + job.substr(0, 8) + "/1").status().Is(Code::kNotFound));
}

TEST_F(TrialEnginePlaces, PlacesInTheDataDirectoryAreWhereThatIsNow) {
  data_directory_ = "/old";
  Open();
  TrialConfig config = Config();
  config.storage = InDataDirectory("checkpoints");
  config.cwd = InDataDirectory("work/e");
  const std::string id = engine_->Create(config).value();
  const LaunchSpec run = launcher_.WaitFor(Launch(id, 1));
  EXPECT_EQ(run.cwd, "/old/work/e");
  EXPECT_EQ(run.env.at("CAIRN_STORAGE"), "/old/checkpoints");
  Ready({id, 1});
  Commit(id, "c1", 3);
  launcher_.End(Launch(id, 1), {.code = 0});
  WaitState(id, TrialState::kCompleted);
  const std::string child = engine_->ContinueAsNew(id, "", Value()).value();
  launcher_.WaitFor(Launch(child, 1));
  Ready({child, 1});
  Crash();
  // Moved with all that is in it.
  data_directory_ = "/new";
  repositories_.Move("/old", "/new");
  Open();
  EXPECT_EQ(PlaceOf(id), "/new/checkpoints/e/1");
  const Value described = Call([&](auto done) { engine_->Describe({child, 1}, done); });
  EXPECT_EQ(*described.Find("latest_checkpoint/repository"), Value("/new/checkpoints/e/1"));
  ASSERT_TRUE(engine_->Activate(id).ok());
  const LaunchSpec again = launcher_.WaitFor(Launch(id, 2));
  EXPECT_EQ(again.cwd, "/new/work/e");
  EXPECT_EQ(again.env.at("CAIRN_RESUME_MODE"), "resume");
  EXPECT_EQ(again.env.at("CAIRN_LATEST_CHECKPOINT"), "c1");
}

}  // namespace
}  // namespace cairn

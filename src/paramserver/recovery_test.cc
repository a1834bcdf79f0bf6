#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "paramserver/job_fixture.h"

// Recovery log and partial: nobody goes back. Real kills are in tests/cluster.

namespace cairn::ps {
namespace {

class RecoveryTest : public JobTest {
 protected:
  void Clear() {
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
  Learned Undisturbed(std::int64_t steps) {
    recovery_ = Recovery::kExact;
    StartServers(2);
    Learned learned = Train(steps);
    Clear();
    recovery_ = Recovery::kLog;
    return learned;
  }
  /// Trains, and loses those servers when trainer 0 begins that step.
  Learned TrainAndLose(std::int64_t steps, std::int64_t at, const std::vector<int>& victims) {
    int begun = 0;
    bool lost = false;
    Learned learned = Train(steps, [&](std::int64_t step) {
      ++begun;
      if (step != at || lost) return;
      lost = true;
      for (const int victim : victims) Lose(victim);
      for (const int victim : victims) StartServer(victim, 2);
    });
    EXPECT_EQ(begun, steps) << "no step is repeated";
    EXPECT_EQ(rollbacks_, 0u);
    return learned;
  }
};

TEST_F(RecoveryTest, ALogBringsALostServerToWhereItWas) {
  const Learned undisturbed = Undisturbed(20);
  incremental_steps_.reset();  // a checkpoint of step 14 would leave nothing to replay
  std::int64_t replayed = 0;
  for (const std::vector<int>& victims : {std::vector{0}, {1}, {0, 1}}) {
    StartServers(2);
    EXPECT_TRUE(TrainAndLose(20, 14, victims) == undisturbed) << victims.size();
    replayed += StatusOf(victims[0]).Find("replayed_records")->AsInt();
    Clear();
  }
  EXPECT_GT(replayed, 0);
}

TEST_F(RecoveryTest, ALogIsEnoughBeforeTheFirstCheckpoint) {
  const Learned undisturbed = Undisturbed(8);
  full_steps_.reset();
  incremental_steps_.reset();
  StartServers(2);
  EXPECT_TRUE(TrainAndLose(8, 5, {0, 1}) == undisturbed);
}

TEST_F(RecoveryTest, AWholeJobGoesOnWhereItsLogsEnd) {
  const Learned undisturbed = Undisturbed(20);
  StartServers(2);
  (void)Train(13);
  servers_.clear();
  StartServers(2);
  EXPECT_EQ(Connect(-1).value()->step(), 13);
  EXPECT_TRUE(Train(20) == undisturbed);
}

TEST_F(RecoveryTest, AJobThatWasOverWaitsForAllOfItsTrainers) {
  const Learned undisturbed = Undisturbed(6);
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    StartServers(2);
    (void)Train(5);
    if (restarted) {
      servers_.clear();
      StartServers(2);
    }
    auto first = Connect(0).value();
    TestModel model;
    ASSERT_TRUE(model.Declare(first.get()).ok());
    ASSERT_EQ(first->step(), 5);
    ASSERT_TRUE(model.Step(5).ok());
    // It asks for the end of the step before the other trainer is there.
    std::jthread end([&] { EXPECT_TRUE(first->EndStep("at 6").ok()); });
    auto second = Connect(1).value();
    TestModel other;
    ASSERT_TRUE(other.Declare(second.get()).ok());
    EXPECT_EQ(second->step(), 5);
    const Status trained = other.TrainTo(6);
    EXPECT_TRUE(trained.ok()) << trained.ToString();
    end.join();
    EXPECT_TRUE(other.Learned().value() == undisturbed);
    first = nullptr;
    second = nullptr;
    Clear();
  }
}

TEST_F(RecoveryTest, ATrainerThatWasLostGoesOnAfterItsLastStep) {
  const Learned undisturbed = Undisturbed(20);
  StartServers(2);
  Learned learned;
  {
    std::jthread other([&] {
      {
        auto client = Connect(1).value();
        TestModel model;
        ASSERT_TRUE(model.Declare(client.get()).ok());
        ASSERT_TRUE(model.TrainTo(12).ok());
        ASSERT_TRUE(model.Step(12).ok());  // all pushed, and not ended
      }
      auto client = Connect(1).value();
      EXPECT_EQ(client->step(), 12);
      TestModel model;
      ASSERT_TRUE(model.Declare(client.get()).ok());
      const Status trained = model.TrainTo(20);
      ASSERT_TRUE(trained.ok()) << trained.ToString();
      ASSERT_TRUE(client->Barrier().ok());
    });
    auto client = Connect(0).value();
    TestModel model;
    ASSERT_TRUE(model.Declare(client.get()).ok());
    ASSERT_TRUE(model.TrainTo(20).ok());
    EXPECT_EQ(client->rollbacks(), 0u);
    learned = model.Learned().value();
    ASSERT_TRUE(client->Barrier().ok());
  }
  EXPECT_TRUE(learned == undisturbed);
}

TEST_F(RecoveryTest, NoAsyncPushIsLostOrDoubled) {
  mode_ = Mode::kAsync;
  recovery_ = Recovery::kLog;
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0).value();
  Counts counts;
  ASSERT_TRUE(counts.Declare(client.get()).ok());
  const auto reborn = [&] {
    client = Connect(0).value();
    counts = {};
    return counts.Declare(client.get());
  };
  std::int64_t pushes = 0;
  while (client->step() < 24) {
    const std::int64_t step = client->step();
    ASSERT_TRUE(counts.Push().ok());
    if (step % 5 == 1) {
      Lose(static_cast<int>(step % 2));
      StartServer(static_cast<int>(step % 2), 2);
    }
    // The trainer's process is lost between two pushes of a step, and does the step again.
    if (step % 7 == 3 && pushes == step * 2) {
      ++pushes;
      ASSERT_TRUE(reborn().ok());
      ASSERT_EQ(client->step(), step);
      continue;
    }
    ASSERT_TRUE(counts.Push().ok());
    const Status ended = client->EndStep("");
    ASSERT_TRUE(ended.ok()) << ended.ToString();
    pushes = client->step() * 2;
    ASSERT_EQ(counts.Count(), pushes) << step;
  }
  EXPECT_EQ(client->rollbacks(), 0u);
}

TEST_F(RecoveryTest, ALogThatIsGoneIsAnErrorAndNotSilence) {
  recovery_ = Recovery::kLog;
  trainers_ = 1;
  StartServers(1);
  (void)Train(12);
  AwaitSaves();
  servers_.clear();
  std::filesystem::remove_all(directory_ + "/log");
  StartServers(1);
  const Status ended = servers_[0]->Wait();
  EXPECT_EQ(ended.code(), Code::kFailedPrecondition) << ended.ToString();
  EXPECT_NE(ended.message().find("--recovery exact"), ended.message().npos) << ended.ToString();
  servers_.clear();
  recovery_ = Recovery::kExact;  // as it says
  StartServers(1);
  EXPECT_GT(Connect(0).value()->step(), 0);
}

TEST_F(RecoveryTest, AnotherNumberOfServersGoesBackToTheCheckpoint) {
  const Learned undisturbed = Undisturbed(20);
  StartServers(2);
  (void)Train(15);
  AwaitSaves();
  servers_.clear();
  StartServers(3);
  const std::int64_t step = Connect(-1).value()->step();
  EXPECT_GT(step, 0);
  EXPECT_LE(step, 15);
  EXPECT_TRUE(Train(20) == undisturbed);
}

TEST_F(RecoveryTest, ALogIsTrimmedWhenCheckpointsCoverIt) {
  recovery_ = Recovery::kLog;
  trainers_ = 1;
  full_steps_ = 2;
  incremental_steps_.reset();
  StartServers(1);
  auto client = Connect(0).value();
  RemoteTable* table = client->Table({.name = "t", .dim = 1024}).value();
  std::vector<std::int64_t> ids(4096);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i % 16);
  const std::vector<float> rows(ids.size() * 1024, 0.5F);  // 16 MiB a push
  for (int step = 0; step < 24; ++step) {
    AwaitSaves();
    ASSERT_TRUE(table->ApplyGradients(ids, rows).ok());
    ASSERT_TRUE(client->EndStep("").ok());
  }
  AwaitSaves();
  std::uint64_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_ + "/log")) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  EXPECT_LT(bytes, std::uint64_t{280} << 20);  // of 384 MiB
  client = nullptr;
  servers_.clear();
  StartServers(1);
  EXPECT_EQ(Connect(0).value()->step(), 24);
}

TEST_F(RecoveryTest, LogsThatNoCheckpointNeedsAreRemoved) {
  recovery_ = Recovery::kLog;
  paced_ = true;
  incremental_steps_.reset();
  const auto logs = [this] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ + "/log")) {
      if (!entry.is_directory() || entry.path().parent_path().filename() == "log") continue;
      found.push_back(std::filesystem::relative(entry.path(), directory_ + "/log").string());
    }
    std::ranges::sort(found);
    return found;
  };
  StartServers(3);
  (void)Train(15);
  AwaitSaves();
  servers_.clear();
  ASSERT_EQ(logs().size(), 3u);
  const std::vector<std::string> before = logs();
  StartServers(2);
  ASSERT_TRUE(Connect(-1).ok());
  EXPECT_EQ(logs().size(), 5u) << "until two checkpoints are saved, the old ones are needed";
  (void)Train(40);
  AwaitSaves();
  ASSERT_GE(StatusOf(0).Find("saves")->AsInt(), 2);
  const std::vector<std::string> after = logs();
  ASSERT_EQ(after.size(), 2u);
  for (const std::string& log : after) {
    EXPECT_EQ(std::ranges::count(before, log), 0) << log;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/log/ps_2"));
  // And the others are enough.
  const Learned learned = Train(40);
  for (const int server : {0, 1}) Lose(server);
  for (const int server : {0, 1}) StartServer(server, 2);
  EXPECT_TRUE(Train(40) == learned);
}

TEST_F(RecoveryTest, PartialLosesWhatTheServerHadAndSaysHowMuch) {
  recovery_ = Recovery::kPartial;
  incremental_steps_.reset();  // a checkpoint that waits for the one before it may be of step 14
  for (const auto& [mode, trainers] :
       {std::pair{Mode::kSync, 2}, {Mode::kAsync, 1}, {Mode::kAsync, 2}}) {
    SCOPED_TRACE(trainers);
    mode_ = mode;
    trainers_ = trainers;
    StartServers(2);
    (void)TrainAndLose(30, 14, {1});
    // Two asynchronous trainers may have made a checkpoint in the moment before the loss.
    EXPECT_GE(StatusOf(1).Find("lost_changes")->AsInt(),
              mode == Mode::kAsync && trainers == 2 ? 0 : 1);
    EXPECT_EQ(StatusOf(0).Find("lost_changes")->AsInt(), 0);
    EXPECT_EQ(StatusOf(1).Find("global_step")->AsInt(), mode == Mode::kSync ? 30 : 30 * trainers);
    EXPECT_NE(servers_[1]->MetricsText().find("cairn_ps_lost_changes_total "), std::string::npos);
    AwaitSaves();
    EXPECT_GT(StatusOf(0).Find("saves")->AsInt(), 0) << "checkpoints go on";
    Clear();
  }
}

TEST_F(RecoveryTest, PartialSurvivesServerAndTrainerAtOnce) {
  recovery_ = Recovery::kPartial;
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0).value();
  TestModel model;
  ASSERT_TRUE(model.Declare(client.get()).ok());
  ASSERT_TRUE(model.TrainTo(12).ok());
  client = nullptr;
  Lose(0);
  StartServer(0, 2);
  client = Connect(0).value();
  EXPECT_EQ(client->step(), 12);
  EXPECT_EQ(client->state(), "at 12");
  TestModel again;
  ASSERT_TRUE(again.Declare(client.get()).ok());
  const Status trained = again.TrainTo(20);
  EXPECT_TRUE(trained.ok()) << trained.ToString();
}

}  // namespace
}  // namespace cairn::ps

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include <cairn/checkpoint_manager.h>

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
  /// Trainer 1 leaves after `early` steps; trainer 0 goes on to `steps` by itself, and is lost then
  /// unless it `leaves`. What was learned in the end.
  Learned TrainUnevenly(std::int64_t early, std::int64_t steps,
                        const std::function<void(std::int64_t)>& before = {}, bool leaves = true) {
    std::jthread other([&] {
      auto client = Connect(1).value();
      TestModel model;
      ASSERT_TRUE(model.Declare(client.get()).ok());
      const Status trained = model.TrainTo(early);
      ASSERT_TRUE(trained.ok()) << trained.ToString();
      const Status left = client->Close();
      ASSERT_TRUE(left.ok()) << left.ToString();
    });
    auto client = Connect(0).value();
    TestModel model;
    EXPECT_TRUE(model.Declare(client.get()).ok());
    const Status trained = model.TrainTo(steps, [&](std::int64_t step) {
      // Step `early` may end before trainer 1 has left all servers, not the one after it.
      if (step == early + 1) other = {};
      AwaitSaves();
      if (before) before(step);
    });
    EXPECT_TRUE(trained.ok()) << trained.ToString();
    rollbacks_ += client->rollbacks();
    Learned learned = model.Learned().value();
    if (leaves) {
      EXPECT_TRUE(client->Close().ok());
    }
    return learned;
  }
  static Learned CountsOf(Learned learned) {
    std::erase_if(learned, [](const auto& each) { return !each.first.starts_with("counts/"); });
    for (auto& [name, row] : learned) row.resize(TestModel::kDim);  // not the step of the change
    return learned;
  }
};

constexpr std::array kEachRecovery{Recovery::kExact, Recovery::kPartial, Recovery::kLog};

TEST_F(RecoveryTest, WhoLeftEarlyIsNotWaitedForWhenAServerIsLost) {
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    mode_ = mode;
    recovery_ = Recovery::kExact;
    StartServers(2);
    const Learned undisturbed = TrainUnevenly(5, 20);
    Clear();
    for (const Recovery recovery : kEachRecovery) {
      for (const int victim : {0, 1}) {
        SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << ", recovery "
                                        << static_cast<int>(recovery) << ", server " << victim);
        recovery_ = recovery;
        rollbacks_ = 0;
        StartServers(2);
        bool lost = false;
        const Learned learned = TrainUnevenly(5, 20, [&](std::int64_t step) {
          if (step != 14 || std::exchange(lost, true)) return;
          Lose(victim);
          StartServer(victim, 2);
        });
        EXPECT_EQ(rollbacks_, recovery == Recovery::kExact ? 1u : 0u);
        if (recovery != Recovery::kPartial) {
          EXPECT_TRUE(CountsOf(learned) == CountsOf(undisturbed));
          EXPECT_TRUE(mode == Mode::kAsync || learned == undisturbed);
        }
        Clear();
      }
    }
  }
}

TEST_F(RecoveryTest, WhoLeftEarlyIsNotWaitedForWhenAllIsLost) {
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    mode_ = mode;
    recovery_ = Recovery::kExact;
    StartServers(2);
    const Learned undisturbed = TrainUnevenly(5, 20);
    Clear();
    for (const Recovery recovery : kEachRecovery) {
      SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << ", recovery "
                                      << static_cast<int>(recovery));
      recovery_ = recovery;
      StartServers(2);
      (void)TrainUnevenly(5, 13, {}, false);
      AwaitSaves();
      servers_.clear();
      StartServers(2);
      // The same command again: trainer 1 comes too, sees that it is done, and leaves.
      const Learned learned = TrainUnevenly(5, 20);
      EXPECT_TRUE(CountsOf(learned) == CountsOf(undisturbed));
      EXPECT_TRUE(mode == Mode::kAsync || learned == undisturbed);
      Clear();
    }
  }
}

TEST_F(RecoveryTest, AServerThatLostSightOfALeavingIsToldByTheOthers) {
  recovery_ = Recovery::kPartial;
  full_steps_.reset();
  incremental_steps_.reset();
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    for (const int victim : {0, 1}) {
      SCOPED_TRACE(testing::Message()
                   << "mode " << static_cast<int>(mode) << ", server " << victim);
      mode_ = mode;
      StartServers(2);
      auto leaves = Connect(1).value();
      auto stays = Connect(0).value();
      Counts mine;
      Counts others;
      ASSERT_TRUE(others.Declare(leaves.get()).ok());
      ASSERT_TRUE(mine.Declare(stays.get()).ok());
      const auto step = [&](Client* client, Counts* counts) {
        ASSERT_TRUE(counts->Push().ok());
        const Status ended = client->EndStep("");
        ASSERT_TRUE(ended.ok()) << ended.ToString();
      };
      // One checkpoint, then trainer 1 leaves: none knows of it.
      ASSERT_TRUE(stays->RequestSave(true).ok());
      std::atomic<bool> saved = false;
      std::atomic<bool> left = false;
      std::jthread other([&] {
        while (!saved) step(leaves.get(), &others);
        EXPECT_TRUE(leaves->Close().ok());
        left = true;
      });
      while (!left) {
        step(stays.get(), &mine);
        saved = StatusOf(victim).Find("saves")->AsInt() > 0;
      }
      Lose(victim);
      StartServer(victim, 2);
      // Sync: each end of a step waits for all that are there; async: each cut does.
      ASSERT_TRUE(stays->RequestSave(true).ok());
      const std::int64_t last = stays->step() + 6;
      while (stays->step() < last) step(stays.get(), &mine);
      AwaitSaves();
      EXPECT_EQ(StatusOf(0).Find("saves")->AsInt(), 1);  // of this generation
      stays = nullptr;
      Clear();
    }
  }
}

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

TEST_F(RecoveryTest, ACheckpointInTheMiddleOfAnAsyncStepKnowsWhatItHas) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  for (const Recovery recovery : {Recovery::kExact, Recovery::kLog}) {
    SCOPED_TRACE(static_cast<int>(recovery));
    recovery_ = recovery;
    StartServers(2);
    {
      auto client = Connect(0).value();
      Counts counts;
      ASSERT_TRUE(counts.Declare(client.get()).ok());
      ASSERT_TRUE(counts.Push().ok());
      ASSERT_TRUE(client->RequestSave(true).ok());
      ASSERT_TRUE(client->EndStep("").ok());
      ASSERT_TRUE(counts.Push().ok());  // of the next step, in which the process is lost
    }
    (void)Connect(0).value();  // carries the marker before it does that step again, and is lost too
    AwaitSaves();
    ASSERT_EQ(StatusOf(0).Find("saved_step")->AsInt(), 1);
    servers_.clear();
    StartServers(2);
    auto client = Connect(0).value();
    EXPECT_EQ(client->step(), 1);
    Counts counts;
    ASSERT_TRUE(counts.Declare(client.get()).ok());
    for (int step = 1; step < 4; ++step) {
      ASSERT_TRUE(counts.Push().ok());
      ASSERT_TRUE(client->EndStep("").ok());
      EXPECT_EQ(counts.Count(), step + 1) << "each once";
    }
    client = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
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

TEST_F(RecoveryTest, RestartsPutNoCheckpointOff) {
  trainers_ = 1;
  paced_ = true;
  full_steps_ = 10;
  for (const Recovery recovery : {Recovery::kExact, Recovery::kPartial, Recovery::kLog}) {
    SCOPED_TRACE(static_cast<int>(recovery));
    recovery_ = recovery;
    // With increments a restart of exact goes on behind the newest of them; the others begin with a
    // full one then, and have to reach it.
    incremental_steps_.reset();
    if (recovery == Recovery::kExact) incremental_steps_ = 3;
    StartServers(2);
    for (std::int64_t steps = 6; steps <= 30; steps += 6) {
      (void)Train(steps);
      AwaitSaves();
      if (recovery == Recovery::kPartial) {
        Lose(1);
        StartServer(1, 2);
        continue;
      }
      servers_.clear();
      StartServers(2);
    }
    servers_.clear();
    auto manager = CheckpointManager::Open({.directory = directory_, .read_only = true}).value();
    int full = 0;
    for (const CheckpointInfo& info : manager->List().value()) full += info.kind == "full" ? 1 : 0;
    EXPECT_GE(full, 2);
    manager = nullptr;
    Clear();
  }
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

TEST_F(RecoveryTest, PartialLosesNoPushButThoseThatItCounts) {
  recovery_ = Recovery::kPartial;
  mode_ = Mode::kAsync;
  trainers_ = 1;
  full_steps_.reset();  // but for one: what a server loses is all since then
  incremental_steps_.reset();
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    StartServers(2);
    auto client = Connect(0).value();
    Counts counts;
    ASSERT_TRUE(counts.Declare(client.get()).ok());
    ASSERT_TRUE(client->RequestSave(true).ok());
    std::atomic<std::int64_t> pushes = 0;
    std::atomic<bool> enough = false;
    // All the while: the other server leaves its generation in the middle of pushes.
    std::jthread training([&] {
      while (!enough) {
        const Status pushed = counts.Push();
        ASSERT_TRUE(pushed.ok()) << pushed.ToString();
        ++pushes;
        const Status ended = client->EndStep("");
        ASSERT_TRUE(ended.ok()) << ended.ToString();
      }
    });
    const auto goes_on = [&](std::int64_t more) {
      const std::int64_t last = pushes + more;
      while (pushes < last && !HasFailure()) std::this_thread::yield();
    };
    while (StatusOf(0).Find("saves")->AsInt() == 0 && !HasFailure()) std::this_thread::yield();
    for (int losses = 0; losses < 4; ++losses) {
      goes_on(10);
      Lose(victim);
      StartServer(victim, 2);
    }
    goes_on(10);
    enough = true;
    training.join();
    ASSERT_FALSE(HasFailure());
    const std::int64_t lost = StatusOf(victim).Find("lost_changes")->AsInt();
    EXPECT_GE(lost, 40);
    EXPECT_EQ(StatusOf(1 - victim).Find("lost_changes")->AsInt(), 0);
    EXPECT_EQ(counts.CountAt(1 - victim, 2), pushes) << "each once";
    EXPECT_EQ(counts.CountAt(victim, 2), pushes - lost) << "all others once";
    EXPECT_EQ(client->rollbacks(), 0u);
    client = nullptr;
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

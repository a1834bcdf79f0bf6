#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <cairn/transfer.h>

#include "train/test_training.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using SeveralTrainersTest = TrainerTest;

/// Runs `body(trainer_id)` for two trainers at once.
void InTwoTrainers(const std::function<void(int)>& body) {
  std::jthread first(body, 0);
  std::jthread second(body, 1);
}

TEST_F(SeveralTrainersTest, TwoTrainersCommitEachCheckpointTogether) {
  for (const std::int64_t epochs : {1, 2}) {  // the second time they resume
    InTwoTrainers([&](int id) {
      Training training;
      training.random.seed(static_cast<std::uint64_t>(id));
      TrainerOptions options = Options(&training);
      options.trainer_id = id;
      options.num_trainers = 2;
      auto trainer = OpenWith(options, &training);
      ASSERT_NE(trainer, nullptr);
      EXPECT_EQ(trainer->global_step(), (epochs - 1) * kSteps);
      NumberReader reader(kSteps, true);
      auto result = Run(trainer.get(), &training, epochs, &reader);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->steps_run, kSteps);
    });
  }
  EXPECT_THAT(Checkpoints(),
              ElementsAre(std::pair("checkpoint_5", 36), std::pair("checkpoint_6", 46),
                          std::pair("checkpoint_7", 50)));
  EXPECT_EQ(Text("checkpoint_7/trainer_0/step_id"), "24");
  EXPECT_EQ(Text("checkpoint_7/trainer_1/step_id"), "24");
  EXPECT_NE(Text("checkpoint_7/trainer_0/state.json"), Text("checkpoint_7/trainer_1/state.json"));
  auto model = store_->List("checkpoint_7/__model__");
  ASSERT_TRUE(model.ok());
  for (const ObjectInfo& object : model->objects) {
    EXPECT_THAT(object.name, testing::Not(HasSubstr("trainer_1"))) << "trainer 0 saves the model";
  }
}

TEST_F(SeveralTrainersTest, TrainersSaveAlikeThoughOnlyOneHasAHandler) {
  InTwoTrainers([&](int id) {
    Training training;
    TrainerOptions options = Options(&training, {.step_interval = 24});  // also the last step
    options.trainer_id = id;
    options.num_trainers = 2;
    auto trainer = OpenWith(options, &training);
    ASSERT_NE(trainer, nullptr);
    NumberReader reader(kSteps, true);
    EventHandler handler;
    if (id == 0) handler = [](const TrainerEvent&) {};
    auto result = Run(trainer.get(), &training, 1, &reader, handler);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->checkpoint->step, kSteps);
  });
}

TEST_F(SeveralTrainersTest, AnotherNumberOfTrainersIsRefusedUnlessAskedFor) {
  {
    Training training;
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  InTwoTrainers([&](int id) {
    Training training;
    TrainerOptions options = Options(&training);
    options.trainer_id = id;
    options.num_trainers = 2;
    auto trainer = OpenTrainer(options, Env());
    EXPECT_EQ(trainer.status().code(), Code::kFailedPrecondition);
    EXPECT_THAT(trainer.status().ToString(), HasSubstr("saved by 1 trainers, and there are 2"));
  });
  InTwoTrainers([&](int id) {
    Training training;
    TrainerOptions options = Options(&training);
    options.trainer_id = id;
    options.num_trainers = 2;
    options.strict = false;
    auto trainer = OpenTrainer(options, Env());
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    EXPECT_EQ((*trainer)->global_step(), kSteps);
    EXPECT_NE(training.weights[0], 1.0);
  });
}

TEST_F(SeveralTrainersTest, TwoTrainersEndAfterTheSameStepOnSigterm) {
  std::atomic<int> steps_made = 0;
  std::int64_t ended[2] = {-1, -1};
  InTwoTrainers([&](int id) {
    Training training;
    TrainerOptions options = Options(&training, {.step_interval = 100'000});
    options.trainer_id = id;
    options.num_trainers = 2;
    auto trainer = OpenTrainer(options, Env());
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    NumberReader reader(1'000'000'000, true);
    auto result = (*trainer)->Train(1, reader, [&](std::int64_t batch) {
      // As an exchange of gradients: no step ends before both are in it.
      steps_made.fetch_add(1);
      while (steps_made.load() < 2 * (batch + 1)) std::this_thread::yield();
      if (id == 1 && batch == 20) raise(SIGTERM);
    });
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->outcome, TrainOutcome::kTerminated);
    ended[id] = result->global_step;
  });
  EXPECT_GT(ended[0], 20);
  EXPECT_EQ(ended[0], ended[1]);
  EXPECT_EQ(Checkpoints().back().second, ended[0]);
}

TEST_F(SeveralTrainersTest, DirectoriesThatAreNotSharedAreNamedAsTheCause) {
  InTwoTrainers([&](int id) {
    Training training;
    TrainerOptions options = Options(&training, {.join_deadline = std::chrono::milliseconds(100)});
    options.trainer_id = id;
    options.num_trainers = 2;
    Environment env = Env();
    env.store = MemoryStore::Open({.object_store = false}).value();  // of its own
    auto trainer = OpenTrainer(options, env);
    EXPECT_EQ(trainer.status().code(), Code::kDeadlineExceeded);
    EXPECT_THAT(trainer.status().ToString(),
                testing::AllOf(HasSubstr("shared"), HasSubstr("private_parts"),
                               HasSubstr("private=True"), HasSubstr("cairn checkpoint merge")));
  });
  EXPECT_EQ(CheckpointConfig().join_deadline, std::chrono::seconds(30));
}

TEST_F(SeveralTrainersTest, PrivatePartsAreCommittedAloneAndResumedOnlyWhenMerged) {
  Training training;
  TrainerOptions options = Options(&training);
  options.trainer_id = 1;
  options.num_trainers = 2;
  options.private_parts = true;
  {
    auto trainer = OpenWith(options, &training);
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  EXPECT_EQ(Text("checkpoint_3/trainer_1/step_id"), "24");
  auto trainer = OpenTrainer(options, Env());
  EXPECT_EQ(trainer.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(trainer.status().ToString(), HasSubstr("cairn checkpoint merge"));
}

TEST(PrivateTrainerTest, CopiesOfTheMergedDirectoryAreResumedByAll) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "cairn-trainer-XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  const auto run = [&](const std::string& prefix, int id, std::int64_t epochs, std::int64_t resumed,
                       Training* training) {
    training->random.seed(static_cast<std::uint64_t>(id));
    TrainerOptions options;
    options.model = training->Variables();
    options.checkpoint_config = {
        {.checkpoint_dir = (root / (prefix + std::to_string(id))).string()}};
    options.trainer_id = id;
    options.num_trainers = 2;
    options.private_parts = true;
    auto trainer = Trainer::Open(options);
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    EXPECT_EQ((*trainer)->global_step(), resumed);
    ASSERT_TRUE((*trainer)->AddRandomEngine("random", &training->random).ok());
    NumberReader reader(kSteps, true);
    auto result =
        (*trainer)->Train(epochs, reader, [&](std::int64_t batch) { training->Step(batch); });
    ASSERT_TRUE(result.ok()) << result.status().ToString();
  };
  for (const int id : {0, 1}) {
    Training first;
    run("part_", id, 1, 0, &first);
  }
  auto merged = MergeCheckpoints({.parts = {(root / "part_0").string(), (root / "part_1").string()},
                                  .target = (root / "merged").string()});
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  for (const int id : {0, 1}) {
    fs::copy(root / "merged", root / ("copy_" + std::to_string(id)), fs::copy_options::recursive);
    Training second;
    run("copy_", id, 2, kSteps, &second);
    // Trainer 0's variables, and each one's own generator.
    Training expected;
    run("undisturbed_of_" + std::to_string(id) + "_", 0, 1, 0, &expected);
    if (id == 1) {
      Training own;
      run("own_", 1, 1, 0, &own);
      expected.random = own.random;
    }
    for (std::int64_t step = 0; step < kSteps; ++step) expected.Step(100 + step);
    EXPECT_TRUE(second.SameState(expected)) << "trainer " << id;
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace cairn

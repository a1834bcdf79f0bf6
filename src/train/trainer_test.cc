#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "storage/sim/faulty_store.h"
#include "train/test_training.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Stops the trainer after a step.
EventHandler StopAfter(Trainer* trainer, std::int64_t epoch, std::int64_t step) {
  return [=](const TrainerEvent& event) {
    const auto* end = std::get_if<EndStepEvent>(&event);
    if (end != nullptr && end->epoch == epoch && end->step == step) trainer->Stop();
  };
}

TEST_F(TrainerTest, SavesAfterTheStepsThatTheIntervalsNameAndAtTheEnd) {
  Training training;
  auto trainer = Open(&training, {.max_num_checkpoints = std::nullopt, .epoch_interval = 2});
  NumberReader reader(kSteps, true);
  auto result = Run(trainer.get(), &training, 3, &reader);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->outcome, TrainOutcome::kCompleted);
  EXPECT_EQ(result->steps_run, 75);
  EXPECT_EQ(result->checkpoint->step, 75);
  EXPECT_THAT(Checkpoints(),
              ElementsAre(std::pair("checkpoint_0", 1), std::pair("checkpoint_1", 11),
                          std::pair("checkpoint_2", 21), std::pair("checkpoint_3", 51),
                          std::pair("checkpoint_4", 61), std::pair("checkpoint_5", 71),
                          std::pair("checkpoint_6", 75)));
  EXPECT_EQ(Text("checkpoint_0/trainer_0/epoch_id"), "0");
  EXPECT_EQ(Text("checkpoint_0/trainer_0/step_id"), "0");
  EXPECT_EQ(Text("checkpoint_4/trainer_0/epoch_id"), "2");
  EXPECT_EQ(Text("checkpoint_4/trainer_0/step_id"), "10");
  EXPECT_THAT(Text("checkpoint_4/trainer_0/state.json"), HasSubstr("\"random\""));
}

TEST_F(TrainerTest, KeepsTheNewestOnly) {
  Training training;
  auto trainer = Open(&training, {.max_num_checkpoints = 2, .step_interval = 1});
  NumberReader reader(kSteps, true);
  ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  EXPECT_THAT(Checkpoints(),
              ElementsAre(std::pair("checkpoint_23", 24), std::pair("checkpoint_24", 25)));
}

TEST_F(TrainerTest, TheLastStepIsNotSavedTwice) {
  Training training;
  auto trainer = Open(&training, {.step_interval = 24});  // steps 0 and 24
  NumberReader reader(kSteps, true);
  ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  EXPECT_THAT(Checkpoints(),
              ElementsAre(std::pair("checkpoint_0", 1), std::pair("checkpoint_1", 25)));
}

TEST_F(TrainerTest, WhatAHandlerChangesAtTheEndOfTheLastEpochIsSaved) {
  const auto double_at_the_end = [](Training* training) {
    return [training](const TrainerEvent& event) {
      if (!std::holds_alternative<EndEpochEvent>(event)) return;
      for (double& weight : training->weights) weight *= 2;
    };
  };
  Training training;
  {
    auto trainer = Open(&training, {.step_interval = 24});
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader, double_at_the_end(&training)).ok());
  }
  Training again;
  auto trainer = Open(&again);
  NumberReader reader(kSteps, true);
  auto result = Run(trainer.get(), &again, 1, &reader, double_at_the_end(&again));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, TrainOutcome::kAlreadyComplete);
  EXPECT_TRUE(again.SameState(training));
}

TEST_F(TrainerTest, EventsComeInOrder) {
  Training training;
  auto trainer = Trainer::Open({.model = training.Variables()});
  NumberReader reader(2, true);
  std::string seen;
  auto handler = [&](const TrainerEvent& event) {
    if (const auto* e = std::get_if<BeginEpochEvent>(&event)) {
      seen += "[" + std::to_string(e->epoch);
    } else if (const auto* s = std::get_if<BeginStepEvent>(&event)) {
      seen += " " + std::to_string(s->epoch) + "." + std::to_string(s->step);
    } else if (const auto* d = std::get_if<EndStepEvent>(&event)) {
      seen += d->metrics.is_double() ? "+" : "?";
    } else {
      seen += "]";
    }
  };
  ASSERT_TRUE(Run(trainer->get(), &training, 2, &reader, handler).ok());
  EXPECT_EQ(seen, "[0 0.0+ 0.1+][1 1.0+ 1.1+]");
}

class ResumeTest : public TrainerTest, public testing::WithParamInterface<bool> {};

TEST_P(ResumeTest, GoesOnWithTheNextStepWhereverItWasStopped) {
  const Training expected = Undisturbed(2);
  // Step 0, inside, an epoch's last step, and the first of the next.
  for (const std::int64_t stop : {0, 7, 24, 25, 40}) {
    store_ = MemoryStore::Open({.object_store = false}).value();
    LogCapture log;
    {
      Training training;
      auto trainer = Open(&training, {.step_interval = 1000});
      NumberReader reader(kSteps, GetParam());
      auto result = Run(trainer.get(), &training, 2, &reader,
                        StopAfter(trainer.get(), stop / kSteps, stop % kSteps));
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->outcome, TrainOutcome::kStopped);
      EXPECT_EQ(result->global_step, stop + 1);
      EXPECT_EQ(result->checkpoint->step, stop + 1);
    }
    Training training;
    training.weights.assign(50, -1);
    training.random.seed(999);
    auto trainer = Open(&training);
    ASSERT_TRUE(trainer->resumed().has_value());
    EXPECT_EQ(trainer->global_step(), stop + 1);
    NumberReader reader(kSteps, GetParam());
    auto result = Run(trainer.get(), &training, 2, &reader);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->outcome, TrainOutcome::kCompleted);
    EXPECT_TRUE(training.SameState(expected)) << "stopped after step " << stop;
    EXPECT_EQ(training.batches,
              std::vector(expected.batches.begin() + stop + 1, expected.batches.end()));
    const auto left = 2 * kSteps - stop - 1;
    const auto replayed = GetParam() ? 0 : (stop % kSteps) + 1;
    EXPECT_EQ(reader.read, left + replayed);
    EXPECT_EQ(log.Count("cannot seek"), GetParam() ? 0 : 1);
  }
}

TEST_P(ResumeTest, ACompletedTrainingIsNotRepeatedAndMoreEpochsGoOn) {
  {
    Training training;
    auto trainer = Open(&training);
    NumberReader reader(kSteps, GetParam());
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  const auto before = Checkpoints();
  {
    LogCapture log;
    Training training;
    auto trainer = Open(&training);
    NumberReader reader(kSteps, GetParam());
    auto result = Run(trainer.get(), &training, 1, &reader);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outcome, TrainOutcome::kAlreadyComplete);
    EXPECT_EQ(result->steps_run, 0);
    EXPECT_EQ(reader.read, 0);
    EXPECT_TRUE(training.SameState(Undisturbed(1)));
    EXPECT_EQ(log.Count("nothing to do"), 1);
    EXPECT_EQ(Checkpoints(), before);
  }
  Training training;
  auto trainer = Open(&training);
  NumberReader reader(kSteps, GetParam());
  auto result = Run(trainer.get(), &training, 2, &reader);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->steps_run, kSteps);
  EXPECT_TRUE(training.SameState(Undisturbed(2)));
}

TEST_P(ResumeTest, OneTrainerGoesOnAfterStopInTheSameProcess) {
  Training training;
  auto trainer = Open(&training);
  NumberReader reader(kSteps, GetParam());
  ASSERT_TRUE(Run(trainer.get(), &training, 2, &reader, StopAfter(trainer.get(), 0, 11)).ok());
  auto result = Run(trainer.get(), &training, 2, &reader);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->steps_run, 2 * kSteps - 12);
  EXPECT_TRUE(training.SameState(Undisturbed(2)));
}

/// A Training whose epochs begin with a handler: it changes the variables and a number of the
/// program's, and draws what the steps of the epoch read.
struct BegunTraining : Training {
  double rate = 1;   // registered
  double noise = 0;  // in memory alone
  std::vector<std::int64_t> begun_at;

  EventHandler Handler(Trainer* trainer, std::int64_t stop = -1) {
    return [=, this](const TrainerEvent& event) {
      if (const auto* begin = std::get_if<BeginEpochEvent>(&event)) {
        begun_at.push_back(begin->step);
        rate *= 0.5;
        for (double& weight : weights) weight *= 0.5;
        noise = static_cast<double>(random() >> 40) * 1e-8;
      } else if (std::holds_alternative<EndStepEvent>(event) && trainer->global_step() == stop) {
        trainer->Stop();
      }
    };
  }
  double BegunStep(std::int64_t batch) {
    weights[0] += rate * noise;
    return Step(batch);
  }
};

class BeginEpochTest : public ResumeTest {
 protected:
  std::unique_ptr<Trainer> OpenBegun(BegunTraining* training) {
    auto trainer = Open(training, {.step_interval = 1000});
    EXPECT_TRUE(trainer->AddNumber("rate", &training->rate).ok());
    return trainer;
  }
  Result<TrainResult> RunBegun(Trainer* trainer, BegunTraining* training, std::int64_t stop = -1) {
    NumberReader reader(kSteps, GetParam());
    return trainer->Train(
        3, reader, [&](std::int64_t batch) { return training->BegunStep(batch); },
        training->Handler(trainer, stop));
  }
};

TEST_P(BeginEpochTest, AHandlerMayChangeTheStateAndMakeWhatAnEpochNeeds) {
  BegunTraining expected;
  ASSERT_TRUE(RunBegun(OpenBegun(&expected).get(), &expected).ok());
  for (const bool same_process : {false, true}) {
    for (const std::int64_t stop : {1, 7, 25, 26, 60}) {
      store_ = MemoryStore::Open({.object_store = false}).value();
      auto training = std::make_unique<BegunTraining>();
      auto trainer = OpenBegun(training.get());
      ASSERT_TRUE(RunBegun(trainer.get(), training.get(), stop).ok());
      if (!same_process) {
        trainer.reset();
        training = std::make_unique<BegunTraining>();
        trainer = OpenBegun(training.get());
      }
      training->begun_at.clear();
      training->noise = -1;
      auto result = RunBegun(trainer.get(), training.get());
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(training->SameState(expected)) << "stopped after " << stop << " steps";
      EXPECT_EQ(training->rate, expected.rate);
      EXPECT_EQ(training->begun_at.front(), (stop - 1) % kSteps + 1);
    }
  }
}

TEST_P(BeginEpochTest, WhatTheProgramChangedAfterOpenStays) {
  {
    BegunTraining first;
    auto trainer = OpenBegun(&first);
    ASSERT_TRUE(RunBegun(trainer.get(), &first, 7).ok());
  }
  BegunTraining training;
  auto trainer = OpenBegun(&training);
  training.slots.assign(50, 1e9);
  ASSERT_TRUE(RunBegun(trainer.get(), &training, 8).ok());
  EXPECT_GT(training.slots[0], 1e8);
}

INSTANTIATE_TEST_SUITE_P(Readers, BeginEpochTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Seekable" : "ReadAnew"; });

/// Reads numbers in an order that it draws from a generator at the beginning of an epoch.
class DrawingReader final : public Reader<std::int64_t> {
 public:
  explicit DrawingReader(std::mt19937_64* random) : random_(random) {}
  Status Begin(std::int64_t) override {
    at_ = 0;
    first_ = static_cast<std::int64_t>((*random_)() % 1000);
    return Status::Ok();
  }
  Result<std::optional<std::int64_t>> Next() override {
    if (at_ == kSteps) return std::optional<std::int64_t>();
    return std::optional(first_ + at_++);
  }

 private:
  std::mt19937_64* const random_;
  std::int64_t first_ = 0;
  std::int64_t at_ = 0;
};

TEST_F(TrainerTest, AReaderMayDrawFromARegisteredGenerator) {
  const auto run = [&](Training* training, std::int64_t stop) {
    auto trainer = Open(training, {.step_interval = 1000});
    DrawingReader reader(&training->random);
    auto result = trainer->Train(
        3, reader, [&](std::int64_t batch) { return training->Step(batch); },
        [&](const TrainerEvent& event) {
          // After a step, or (25) at the end of an epoch.
          const bool at_end = std::holds_alternative<EndEpochEvent>(event);
          const bool after_step = std::holds_alternative<EndStepEvent>(event);
          if (trainer->global_step() == stop && (stop == kSteps ? at_end : after_step)) {
            trainer->Stop();
          }
        });
    EXPECT_TRUE(result.ok()) << result.status().ToString();
  };
  Training expected;
  run(&expected, -1);
  for (const std::int64_t stop : {3, 25, 30, 50, 51}) {
    store_ = MemoryStore::Open({.object_store = false}).value();
    Training first;
    run(&first, stop);
    Training second;
    run(&second, -1);
    std::vector<std::int64_t> batches = first.batches;
    batches.insert(batches.end(), second.batches.begin(), second.batches.end());
    EXPECT_EQ(batches, expected.batches) << "stopped after " << stop << " steps";
    EXPECT_TRUE(second.SameState(expected)) << "stopped after " << stop << " steps";
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, ResumeTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Seekable" : "ReadAnew"; });

TEST_F(TrainerTest, AStopAtTheEndOfEveryEpochTrainsOneEpochARun) {
  for (std::int64_t run = 1; run <= 3; ++run) {
    Training training;
    auto trainer = Open(&training, {.step_interval = 24});
    NumberReader reader(kSteps, true);
    auto result = Run(trainer.get(), &training, 4, &reader, [&](const TrainerEvent& event) {
      if (std::holds_alternative<EndEpochEvent>(event)) trainer->Stop();
    });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outcome, TrainOutcome::kStopped);
    EXPECT_EQ(result->global_step, run * kSteps);
  }
}

TEST_F(TrainerTest, SigtermEndsAfterTheStepSavedAndGivesTheSignalBack) {
  struct sigaction before = {};
  sigaction(SIGTERM, nullptr, &before);
  Training training;
  auto trainer = Open(&training, {.step_interval = 1000});
  NumberReader reader(kSteps, true);
  auto result = trainer->Train(1, reader, [&](std::int64_t batch) {
    if (batch == 5) raise(SIGTERM);
    return training.Step(batch);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, TrainOutcome::kTerminated);
  EXPECT_EQ(result->step, 5);
  EXPECT_EQ(result->checkpoint->step, 6);
  struct sigaction after = {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  EXPECT_EQ(Checkpoints().back().second, 6);
}

TEST_F(TrainerTest, SigtermAtTheEndOfAnEpochEndsThere) {
  Training training;
  auto trainer = Open(&training);
  NumberReader reader(kSteps, true);
  auto result = Run(trainer.get(), &training, 3, &reader, [](const TrainerEvent& event) {
    if (std::holds_alternative<EndEpochEvent>(event)) raise(SIGTERM);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, TrainOutcome::kTerminated);
  EXPECT_EQ(result->global_step, kSteps);
  trainer.reset();
  Training again;
  trainer = Open(&again);
  ASSERT_TRUE(Run(trainer.get(), &again, 3, &reader).ok());
  EXPECT_TRUE(again.SameState(Undisturbed(3)));
}

TEST_F(TrainerTest, SigtermIsLeftAloneWhenAskedTo) {
  Training training;
  auto trainer = Open(&training, {.handle_sigterm = false});
  NumberReader reader(kSteps, true);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before = {};
  sigaction(SIGTERM, &ignore, &before);
  auto result = trainer->Train(1, reader, [&](std::int64_t batch) {
    if (batch == 5) raise(SIGTERM);
    return training.Step(batch);
  });
  sigaction(SIGTERM, &before, nullptr);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, TrainOutcome::kCompleted);
}

TEST_F(TrainerTest, SavesAlsoWhenTheTimeHasCome) {
  ManualClock clock;
  Training training;
  Environment env = Env();
  env.clock = &clock;
  auto trainer = OpenTrainer(
      Options(&training,
              {.max_num_checkpoints = std::nullopt, .step_interval = 1000, .save_seconds = 60}),
      env);
  ASSERT_TRUE(trainer.ok());
  NumberReader reader(kSteps, true);
  auto result = (*trainer)->Train(1, reader, [&](std::int64_t batch) {
    clock.Advance(std::chrono::seconds(batch == 0 ? 1 : 21));
    return training.Step(batch);
  });
  ASSERT_TRUE(result.ok());
  std::vector<std::int64_t> steps;
  for (const auto& [name, step] : Checkpoints()) steps.push_back(step);
  EXPECT_THAT(steps, ElementsAre(1, 4, 7, 10, 13, 16, 19, 22, 25));
}

TEST_F(TrainerTest, AFailedBackgroundSaveSurfaces) {
  LogCapture log;
  Training training;
  FaultyStore faulty(store_.get());
  Environment env = Env();
  env.store = std::shared_ptr<Store>(&faulty, [](Store*) {});
  auto trainer = OpenTrainer(Options(&training, {.step_interval = 1}), env);
  ASSERT_TRUE(trainer.ok());
  NumberReader reader(kSteps, true);
  auto result = (*trainer)->Train(1, reader, [&](std::int64_t batch) {
    if (batch == 5) {
      faulty.Arm({.status = ResourceExhaustedError("no space left"),
                  .trigger = {.kind = StoreOp::Kind::kCreate, .from_then_on = true}});
    }
    return training.Step(batch);
  });
  EXPECT_EQ(result.status().code(), Code::kResourceExhausted) << result.status().ToString();
  EXPECT_THAT(result.status().ToString(), HasSubstr("no space left"));
  EXPECT_LE(training.batches.size(), 8u) << "reported late";
  auto refused = (*trainer)->Train(1, reader, [&](std::int64_t batch) { training.Step(batch); });
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  faulty.Disarm();
  trainer->reset();
  Training again;
  auto resumed = Open(&again);
  EXPECT_GE(resumed->global_step(), 4);  // the save of 5 was in flight
  EXPECT_EQ(log.Count("failed too"), 0) << "said twice";
}

TEST_F(TrainerTest, AFailedStepIsNamedAndTheNextProcessRepeatsIt) {
  Training training;
  {
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    auto result = trainer->Train(1, reader, [&](std::int64_t batch) -> Result<Value> {
      if (batch == 13) return InternalError("loss is NaN");
      return Value(training.Step(batch));
    });
    EXPECT_EQ(result.status().ToString(), "Internal: epoch 0 step 13: loss is NaN");
  }
  Training again;
  auto trainer = Open(&again);
  NumberReader reader(kSteps, true);
  ASSERT_TRUE(Run(trainer.get(), &again, 1, &reader).ok());
  EXPECT_TRUE(again.SameState(Undisturbed(1)));
}

TEST_F(TrainerTest, StopsFromAnotherThread) {
  Training training;
  auto trainer = Open(&training);
  NumberReader reader(1'000'000'000, true);
  std::atomic<bool> begun = false;
  std::jthread other([&] {
    begun.wait(false);
    trainer->Stop();
  });
  auto result = trainer->Train(1, reader, [&](std::int64_t batch) {
    begun = true;
    begun.notify_all();
    return training.Step(batch);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, TrainOutcome::kStopped);
  EXPECT_EQ(result->checkpoint->step, result->global_step);
}

TEST_F(TrainerTest, AnExceptionOfTheProgramPassesThroughAndLeavesTheCheckpoints) {
  struct sigaction before = {};
  sigaction(SIGTERM, nullptr, &before);
  {
    Training training;
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    const auto step = [&](std::int64_t batch) {
      if (batch == 13) throw std::runtime_error("out of coffee");
      training.Step(batch);
    };
    EXPECT_THROW(trainer->Train(1, reader, step).status().IgnoreError("it throws"),
                 std::runtime_error);
    EXPECT_EQ(trainer->Train(1, reader, step).status().code(), Code::kFailedPrecondition);
  }
  struct sigaction after = {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  Training again;
  auto trainer = Open(&again);
  EXPECT_EQ(trainer->global_step(), 11);
}

TEST_F(TrainerTest, SaysOnceWhenSavingHoldsTheTrainingUp) {
  ManualClock clock;
  FaultyStore slow(store_.get());
  Environment env = Env();
  env.clock = &clock;
  env.store = std::shared_ptr<Store>(&slow, [](Store*) {});
  Training training;
  auto trainer = OpenTrainer(Options(&training, {.step_interval = 1}), env);
  ASSERT_TRUE(trainer.ok());
  slow.SetDelay(&clock, [](StoreOp::Kind kind) {
    return std::chrono::milliseconds(kind == StoreOp::Kind::kFreeBytes ? 250 : 0);
  });
  LogCapture log;
  NumberReader reader(kSteps, true);
  auto result = (*trainer)->Train(1, reader, [&](std::int64_t batch) {
    clock.Advance(std::chrono::milliseconds(750));
    return training.Step(batch);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(log.Count("held the training up"), 1);
  EXPECT_THAT(log.First(), HasSubstr("0.75 s of 3.00 s (25.0 %, 3 saves)"));
  EXPECT_THAT(log.First(), HasSubstr("step_interval=7 "));  // 19 * 0.25 s / 0.75 s
  EXPECT_DOUBLE_EQ(result->stall_seconds, 6.25);
}

TEST_F(TrainerTest, WrongOptionsAreRefused) {
  Training training;
  const auto message = [&](TrainerOptions options) {
    auto trainer = OpenTrainer(std::move(options), Env());
    EXPECT_EQ(trainer.status().code(), Code::kInvalidArgument);
    return std::string(trainer.status().message());
  };
  EXPECT_THAT(message(Options(&training, {.max_num_checkpoints = 0})),
              HasSubstr("max_num_checkpoints"));
  EXPECT_THAT(message(Options(&training, {.epoch_interval = 0})), HasSubstr("epoch_interval"));
  EXPECT_THAT(message(Options(&training, {.step_interval = -1})), HasSubstr("step_interval"));
  EXPECT_THAT(message(Options(&training, {.save_seconds = 0})), HasSubstr("save_seconds"));
  TrainerOptions several = Options(&training, {.save_seconds = 10});
  several.num_trainers = 2;
  EXPECT_THAT(message(several), HasSubstr("save_seconds is for a single trainer"));
  TrainerOptions outside = Options(&training);
  outside.trainer_id = 1;
  EXPECT_THAT(message(outside), HasSubstr("trainer_id 1"));
  TrainerOptions twice = Options(&training);
  twice.model.push_back(twice.model.front());
  EXPECT_THAT(message(twice), HasSubstr("two variables are called \"weights\""));
  TrainerOptions nowhere = Options(&training);
  nowhere.checkpoint_config->checkpoint_dir = "";
  EXPECT_THAT(message(nowhere), HasSubstr("checkpoint_dir"));
}

TEST_F(TrainerTest, ACheckpointOfAnotherModelIsRefusedWithTheNames) {
  Training training;
  {
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  TrainerOptions other = Options(&training);
  other.model[0].shape = {10, 5};
  other.model[1].name = "momentum";
  auto trainer = OpenTrainer(other, Env());
  EXPECT_EQ(trainer.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(trainer.status().ToString(),
              testing::AllOf(HasSubstr("momentum"), HasSubstr("slots"),
                             HasSubstr("weights: stored F64 [50], wanted F64 [10,5]")));
}

TEST_F(TrainerTest, ADirectoryOfAnotherJobIsRefused) {
  Training training;
  TrainerOptions options = Options(&training);
  options.job = "mine";
  OpenWith(options, &training)->Close().IgnoreError("nothing was saved");
  options.job = "yours";
  auto trainer = OpenTrainer(options, Env());
  EXPECT_EQ(trainer.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(trainer.status().ToString(), HasSubstr("belongs to the job \"mine\""));
}

TEST_F(TrainerTest, OtherRegisteredStateIsRefusedByName) {
  Training training;
  {
    auto trainer = Open(&training);
    NumberReader reader(kSteps, true);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader).ok());
  }
  auto trainer = OpenTrainer(Options(&training), Env());
  int counter = 0;
  ASSERT_TRUE((*trainer)->AddNumber("counter", &counter).ok());
  EXPECT_EQ((*trainer)->AddNumber("counter", &counter).code(), Code::kAlreadyExists);
  NumberReader reader(kSteps, true);
  auto result = Run(trainer->get(), &training, 2, &reader);
  EXPECT_EQ(result.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(reader.begun + reader.read, 0);
  EXPECT_THAT(result.status().ToString(), HasSubstr("\"random\" is stored, not registered"));
  EXPECT_THAT(result.status().ToString(), HasSubstr("\"counter\" is registered, not stored"));
}

TEST_F(TrainerTest, AnEpochWithoutBatchesIsAnError) {
  Training training;
  auto trainer = Open(&training);
  NumberReader reader(0, true);
  auto result = Run(trainer.get(), &training, 1, &reader);
  EXPECT_THAT(result.status().ToString(), HasSubstr("gave no batch in epoch 0"));
}

TEST_F(TrainerTest, AReaderThatBecameShorterIsAnError) {
  Training training;
  {
    auto trainer = Open(&training);
    NumberReader reader(kSteps, false);
    ASSERT_TRUE(Run(trainer.get(), &training, 1, &reader, StopAfter(trainer.get(), 0, 11)).ok());
  }
  auto trainer = Open(&training);
  NumberReader reader(5, false);
  auto result = Run(trainer.get(), &training, 1, &reader);
  EXPECT_THAT(result.status().ToString(), HasSubstr("ended after 5 batches"));
}

}  // namespace
}  // namespace cairn

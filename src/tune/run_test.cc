#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <cairn/tune.h>

#include "base/status_macros.h"
#include "tune/run_worker.h"
#include "tune/value_members.h"

// Workers are this program started again: one function trains for all tests, and the config says
// for which.

namespace cairn::tune {
namespace {

Status WriteX(const std::string& at) {
  std::ofstream(at + "/x") << 1;
  return Status::Ok();
}

Status TrainScored(Trial& trial) {
  if (!trial.Report(Value::Object{{"loss", 1}, {"points", "many"}}, WriteX)
           .Is(Code::kInvalidArgument)) {
    return InternalError("it was not refused");
  }
  return trial.Report(Value::Object{{"loss", 1}, {"points", 3}}, WriteX);
}

Status Train(Trial& trial) {
  if (trial.config().Find("scored") != nullptr) return TrainScored(trial);
  if (const Value* loss = trial.config().Find("loss")) {
    if (loss->is_string()) throw std::runtime_error("thrown");
    return trial.Report(Value::Object{{"loss", *loss}, {"done", true}}).Is(Code::kCancelled)
               ? Status::Ok()
               : InternalError("it was not done");
  }
  const Trial::Save save = WriteX;
  RETURN_IF_ERROR(trial.Report(Value::Object{{"loss", 1}}));
  for (const Value& refused :
       {Value(Value::Object{{"x", 1}}), Value(Value::Object{{"loss", "text"}})}) {
    if (!trial.Report(refused, save).Is(Code::kInvalidArgument)) {
      return InternalError("it was not refused");
    }
  }
  const auto full = [](const std::string&) { return ResourceExhaustedError("no space"); };
  if (!trial.Report(Value::Object{{"loss", 9}}, full).Is(Code::kResourceExhausted)) {
    return InternalError("what could not be saved was taken");
  }
  RETURN_IF_ERROR(trial.Report(Value::Object{{"loss", 2}}));
  return trial.Report(Value::Object{{"loss", 3}}, save);
}

TEST(TuneRun, ARefusedReportCountsForNothing) {
  const std::string directory = testing::TempDir() + "cairn_tune_run_" + std::to_string(getpid());
  const auto results = tune::Run({.directory = directory, .metric = "loss"}, Train);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 1u);
  const TrialResult& result = results->front();
  EXPECT_EQ(result.status, "TERMINATED") << result.error;
  ASSERT_EQ(result.results.size(), 3u);
  for (std::int64_t i = 0; i < 3; ++i) {
    const Value& report = result.results[static_cast<std::size_t>(i)];
    EXPECT_EQ(report.Find("training_iteration")->AsInt(), i + 1);
    EXPECT_EQ(report.Find("loss")->AsInt(), i + 1);
  }
  EXPECT_EQ(result.checkpoint, "checkpoint_000003");
  for (const char* gone : {"checkpoint_000001", "checkpoint_000002"}) {
    EXPECT_FALSE(std::filesystem::exists(directory + "/" + result.trial + "/" + gone)) << gone;
  }
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, AStopByDoneNeedsNoReportThatSaysIt) {
  const std::string directory = testing::TempDir() + "cairn_tune_done_" + std::to_string(getpid());
  const auto run = [&](const char* name, Value space) {
    return tune::Run(
        {.directory = directory + name,
         .space = std::move(space),
         .stop = Value::Object{{"name", "bounds"}, {"bounds", Value::Object{{"done", true}}}},
         .score = "points"},
        Train);
  };
  const auto silent = run("/silent", Value::Object{{"scored", 1}});
  ASSERT_TRUE(silent.ok()) << silent.status().ToString();
  EXPECT_EQ(silent->front().status, "TERMINATED") << silent->front().error;
  EXPECT_EQ(*silent->front().results.back().Find("done"), Value(false));
  const auto says = run("/says", Value::Object{{"loss", 1}});
  ASSERT_TRUE(says.ok()) << says.status().ToString();
  EXPECT_EQ(says->front().status, "TERMINATED") << says->front().error;
  EXPECT_EQ(*says->front().results.back().Find("done"), Value(true));
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, AScoreThatIsNoNumberIsRefused) {
  const std::string directory = testing::TempDir() + "cairn_tune_score_" + std::to_string(getpid());
  const auto results = tune::Run({.directory = directory,
                                  .space = Value::Object{{"scored", 1}},
                                  .num_to_keep = 1,
                                  .score = "points"},
                                 Train);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 1u);
  EXPECT_EQ(results->front().status, "TERMINATED") << results->front().error;
  EXPECT_EQ(results->front().results.size(), 1u);
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, AnotherSeedOrSchedulerIsRefused) {
  const std::string directory = testing::TempDir() + "cairn_tune_other_" + std::to_string(getpid());
  const Value scored = Value::Object{{"scored", 1}};
  const auto run = [&](std::uint64_t seed, Value scheduler) {
    return tune::Run({.directory = directory,
                      .space = scored,
                      .seed = seed,
                      .metric = "loss",
                      .scheduler = std::move(scheduler),
                      .score = "points"},
                     Train)
        .status();
  };
  ASSERT_TRUE(run(1, Value()).ok());
  EXPECT_TRUE(run(1, Value()).ok());
  const Status seed = run(2, Value());
  EXPECT_TRUE(seed.Is(Code::kInvalidArgument));
  EXPECT_NE(seed.message().find("another seed (2 instead of 1)"), std::string_view::npos)
      << seed.ToString();
  const Status scheduler =
      run(1, Value::Object{{"name", "asha"}, {"metric", "loss"}, {"mode", "min"}});
  EXPECT_TRUE(scheduler.Is(Code::kInvalidArgument));
  EXPECT_NE(scheduler.message().find("another scheduler"), std::string_view::npos);
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, AUrlStagesNothingInTheWorkingDirectory) {
  const std::string directory = testing::TempDir() + "cairn_tune_url_" + std::to_string(getpid());
  const auto results = tune::Run({.directory = "file://" + directory,
                                  .space = Value::Object{{"scored", 1}},
                                  .score = "points"},
                                 Train);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  const TrialResult& result = results->front();
  EXPECT_EQ(result.status, "TERMINATED") << result.error;
  EXPECT_EQ(result.checkpoint, "checkpoint_000001");
  EXPECT_TRUE(std::filesystem::exists(directory + "/" + result.trial + "/checkpoint_000001"));
  EXPECT_FALSE(std::filesystem::exists("file:"));
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, PointsComeFirstAndNewsAreTold) {
  const std::string directory = testing::TempDir() + "cairn_tune_news_" + std::to_string(getpid());
  std::vector<std::string> told;
  const Value space =
      Value::Object{{"loss", Value::Object{{"__domain__", "uniform"}, {"lower", 1}, {"upper", 2}}}};
  const auto results = tune::Run({.directory = directory,
                                  .space = space,
                                  .num_samples = 3,
                                  .points_to_evaluate = {Value::Object{{"loss", 0.5}}},
                                  .max_concurrent = 1,
                                  .on_news =
                                      [&](const Value& news) {
                                        if (TextOf(news, "trial") == "trial_00000")
                                          told.push_back(TextOf(news, "what"));
                                      }},
                                 Train);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 3u);
  for (const TrialResult& result : *results) EXPECT_EQ(result.status, "TERMINATED") << result.error;
  EXPECT_EQ(told, (std::vector<std::string>{"added", "run", "started", "result", "ended"}));
  const TrialResult* best = BestOf(*results, "loss", false);
  ASSERT_NE(best, nullptr);
  EXPECT_EQ(best->trial, "trial_00000");
  EXPECT_NE(BestOf(*results, "loss", true)->trial, "trial_00000");
  EXPECT_EQ(BestOf(*results, "other", true), nullptr);
  const auto there = CanRestore(directory);
  EXPECT_TRUE(there.ok() && *there);
  const auto nothing = CanRestore(directory + "_not");
  EXPECT_TRUE(nothing.ok() && !*nothing);
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, WhatATrialThrowsIsItsError) {
  const std::string directory = testing::TempDir() + "cairn_tune_throw_" + std::to_string(getpid());
  const auto results = tune::Run(
      {.directory = directory, .space = Value::Object{{"loss", "text"}}, .max_concurrent = 0},
      Train);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  EXPECT_EQ(results->front().status, "ERROR");
  EXPECT_NE(results->front().error.find("thrown"), std::string::npos) << results->front().error;
  std::filesystem::remove_all(directory);
}

TEST(TuneRun, WhatCannotBeMeantIsRefusedBeforeAnythingIsMade) {
  const std::string directory = testing::TempDir() + "cairn_tune_wrong_" + std::to_string(getpid());
  const auto refused = [&](Options options) {
    options.directory = directory;
    const Status status = tune::Run(std::move(options), Train).status();
    EXPECT_TRUE(status.Is(Code::kInvalidArgument)) << status.ToString();
    EXPECT_FALSE(std::filesystem::exists(directory));
  };
  refused({.num_samples = 0});
  refused({.stop = Value::Object{{"name", "no such stopper"}}});
  refused({.time_budget = std::chrono::seconds(-1)});
  refused({.max_failures = -2});
  refused({.max_failures = 1, .fail_fast = true});
  refused({.checkpoint_at_end = true});
  refused({.experiment_num_to_keep = 2});
  refused({.resume_errored = true, .restart_errored = true});
  refused({.launcher = "condor"});
  refused({.resources = {{"partition", "gpu"}}});
}

/// Does not return in a worker.
void WorkIfAsked() {
  if (IsWorker()) tune::Run({}, Train).status().IgnoreError("workers exit in it");
}

}  // namespace
}  // namespace cairn::tune

int main(int argc, char** argv) {
  cairn::tune::WorkIfAsked();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <cairn/tune.h>

#include "base/status_macros.h"

// The only test of its program: its workers are this program started again, and come to Run too.

namespace cairn::tune {
namespace {

Status Train(Trial& trial) {
  const auto save = [](const std::string& at) {
    std::ofstream(at + "/x") << 1;
    return Status::Ok();
  };
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

}  // namespace
}  // namespace cairn::tune

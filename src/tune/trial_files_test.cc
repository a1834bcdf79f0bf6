#include "tune/trial_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "format/json.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;
using Object = Value::Object;

Value Report(std::int64_t iteration, double loss) {
  return Object{{"training_iteration", iteration}, {"loss", loss}};
}
Value News(const char* what, Object more = {}) {
  more["what"] = what;
  more["trial"] = "a_00000";
  return more;
}
Value ResultNews(std::int64_t iteration, double loss) {
  return News("result", {{"result", Report(iteration, loss)}});
}

class TrialFilesTest : public testing::Test {
 protected:
  TrialFilesTest()
      : root_(fs::path(testing::TempDir()) / ("cairn_trial_files_" + std::to_string(getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~TrialFilesTest() override { fs::remove_all(root_); }

  std::unique_ptr<TrialFiles> Make() {
    return std::make_unique<TrialFiles>(root_.string(),
                                        [this](const std::string&) { return record_; });
  }
  std::string Text(const std::string& name) const {
    std::ifstream file(root_ / "a_00000" / name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// Of result.json: iteration and loss of each line.
  std::vector<std::pair<std::int64_t, double>> Lines() const {
    std::vector<std::pair<std::int64_t, double>> lines;
    std::istringstream text(Text("result.json"));
    for (std::string line; std::getline(text, line);) {
      const auto value = DecodeJson(line);
      EXPECT_TRUE(value.ok()) << line;
      if (!value.ok()) continue;
      lines.emplace_back(IntOf(*value, "training_iteration"), value->Find("loss")->AsDouble());
    }
    return lines;
  }
  std::size_t Rows() const {
    const std::string text = Text("progress.csv");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  const fs::path root_;
  Value::List record_;
};

using Expected = std::vector<std::pair<std::int64_t, double>>;

TEST_F(TrialFilesTest, ATrialThatGoesBackHasEachIterationOnce) {
  const auto files = Make();
  record_ = {Report(1, 10), Report(2, 9)};
  files->Tell({News("added", {{"config", Object{{"lr", 1}}}}), News("run", {{"iteration", 0}}),
               News("started"), ResultNews(1, 10), ResultNews(2, 9)});
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 9}}));
  record_.push_back(Report(3, 8));
  files->Tell({ResultNews(3, 8)});
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 9}, {3, 8}}));
  EXPECT_EQ(Rows(), 4u);
  // A run from the checkpoint of iteration 1 reports the second one anew.
  record_ = {Report(1, 10), Report(2, 7)};
  files->Tell({News("run", {{"iteration", 1}}), News("started")});
  EXPECT_EQ(Lines(), (Expected{{1, 10}}));
  files->Tell({ResultNews(2, 7), News("ended", {{"failed", false}})});
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 7}}));
  EXPECT_EQ(Rows(), 3u);
  EXPECT_EQ(Text("params.json"), "{\n  \"lr\": 1\n}\n");
}

TEST_F(TrialFilesTest, AnEarlierLifesFilesAreMadeAnewAndCompleteOnesAreLeft) {
  record_ = {Report(1, 10), Report(2, 9)};
  const Value running = Value::List{Object{{"trial", "a_00000"},
                                           {"config", Object{{"lr", 1}}},
                                           {"status", "PAUSED"},
                                           {"error", ""},
                                           {"last_result", Report(2, 9)}}};
  fs::create_directories(root_ / "a_00000");
  std::ofstream(root_ / "a_00000" / "result.json") << "{\"training_iteration\": 1, \"lo";  // killed
  Make()->Meet(running);
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 9}}));

  const auto files = Make();
  files->Meet(running);
  files->Tell({News("failure", {{"error", "why"}}), News("ended", {{"failed", true}})});
  EXPECT_EQ(Text("error.txt"), "why\n");
  Value ended = running;
  (*ended.if_list()->front().if_object())["status"] = "ERROR";
  std::ofstream(root_ / "a_00000" / "result.json") << "";
  const auto later = Make();
  later->Meet(ended);
  EXPECT_EQ(Text("result.json"), "") << "complete files are not looked at";
  // It goes on all the same: they are.
  later->Tell({News("run", {{"iteration", 1}}), News("started")});
  EXPECT_EQ(Lines(), (Expected{{1, 10}}));
  later->Tell({ResultNews(2, 9), News("ended", {{"failed", false}})});
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 9}}));
  EXPECT_FALSE(fs::exists(root_ / "a_00000" / "error.txt"));
}

TEST_F(TrialFilesTest, WhatCouldNotBeWrittenIsWrittenAtTheEnd) {
  std::ofstream(root_ / "a_00000") << "in the way";
  const auto files = Make();
  record_ = {Report(1, 10), Report(2, 9)};
  files->Tell({News("run", {{"iteration", 0}}), News("started"), ResultNews(1, 10)});
  fs::remove(root_ / "a_00000");
  files->Tell({ResultNews(2, 9), News("ended", {{"failed", false}})});
  files->Finish();
  EXPECT_EQ(Lines(), (Expected{{1, 10}, {2, 9}}));
  EXPECT_EQ(Rows(), 3u);
}

TEST_F(TrialFilesTest, WhatASchedulerDecidedIsALine) {
  const auto files = Make();
  const Value entry = Object{{"trial", "a_00000"}, {"donor", "a_00001"}};
  files->MeetPolicy({entry});
  files->MeetPolicy({entry});
  files->TellPolicy({entry});
  std::ifstream file(root_ / "pbt_policy_a_00000.txt");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string line = "{\"donor\": \"a_00001\", \"trial\": \"a_00000\"}\n";
  EXPECT_EQ(text.str(), line + line);
}

}  // namespace
}  // namespace cairn::tune

// tune::Run as a program that is killed, stopped and started again (test_tune_program.cc).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <cairn/value.h>

#include "format/json.h"
#include "tune/value_members.h"

extern char** environ;  // NOLINT

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;
using Object = Value::Object;
using List = Value::List;
using testing::ElementsAre;
using testing::HasSubstr;

/// Far beyond what anything takes: a test that waits so long has failed.
constexpr auto kPatience = std::chrono::seconds(120);
constexpr auto kLook = std::chrono::milliseconds(5);

template <typename Condition>
[[nodiscard]] bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

std::string TextIn(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void Write(const fs::path& path, const std::string& text) {
  const fs::path fresh = path.string() + ".fresh";
  std::ofstream(fresh) << text;
  fs::rename(fresh, path);
}

/// Whole lines of a result.json.
std::vector<Value> LinesOf(const fs::path& path) {
  std::vector<Value> lines;
  std::istringstream text(TextIn(path));
  for (std::string line; std::getline(text, line) && !text.eof();) {
    const auto value = DecodeJson(line);
    EXPECT_TRUE(value.ok()) << line;
    if (value.ok()) lines.push_back(*value);
  }
  return lines;
}

std::vector<std::int64_t> Numbers(const std::vector<Value>& results, std::string_view key) {
  std::vector<std::int64_t> numbers;
  for (const Value& result : results) numbers.push_back(IntOf(result, key));
  return numbers;
}

std::vector<std::int64_t> UpTo(std::int64_t last) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

std::string CheckpointName(std::int64_t iteration) {
  std::string digits = std::to_string(iteration);
  return "checkpoint_" + std::string(6 - digits.size(), '0') + digits;
}

/// A run of the program.
class Process {
 public:
  Process(const Value& options, const fs::path& output) : output_(output) {
    const char* bin = std::getenv("CAIRN_BIN_DIR");
    const fs::path here =
        bin != nullptr ? fs::path(bin) : fs::read_symlink("/proc/self/exe").parent_path();
    std::string program = here / "tune_test_program";
    std::string text = EncodeJson(options);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = output.string() + ".out";
    const std::string err = output.string() + ".err";
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), flags, 0666);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0666);
    // Tests that were started in the background of a shell inherit that SIGINT is ignored.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    char* const argv[] = {program.data(), text.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, &attributes, argv, environ), 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    Wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) const { kill(pid_, signal); }
  /// Its exit code; 128 and the signal when it died of one.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return TextIn(output_.string() + ".out"); }
  std::string err() const { return TextIn(output_.string() + ".err"); }

 private:
  const fs::path output_;
  pid_t pid_ = -1;
};

struct Outcome {
  int code = -1;
  List trials;
  std::string out;
  std::string err;

  const Value& trial(std::size_t i) const { return trials.at(i); }
  std::string status(std::size_t i) const { return TextOf(trial(i), "status"); }
  std::vector<Value> results(std::size_t i) const { return *trial(i).Find("results")->if_list(); }
  std::vector<std::int64_t> iterations(std::size_t i) const {
    return Numbers(results(i), "training_iteration");
  }
  std::vector<std::size_t> counts() const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < trials.size(); ++i) all.push_back(results(i).size());
    return all;
  }
  std::vector<std::string> statuses() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < trials.size(); ++i) all.push_back(status(i));
    return all;
  }
};

class TuneProcesses : public testing::Test {
 protected:
  TuneProcesses() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            ("cairn_tune_processes_" + std::string(info->name()) + "_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~TuneProcesses() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  std::string At(const std::string& name) const { return (root_ / name).string(); }
  Object In(const std::string& experiment, Object options) const {
    options["directory"] = At(experiment);
    options["out"] = At(experiment + ".results");
    return options;
  }
  /// The same options with others in their place.
  static Object With(Object options, const Object& more) {
    for (const auto& [name, value] : more) options[name] = value;
    return options;
  }
  std::unique_ptr<Process> Start(const Object& options) {
    return std::make_unique<Process>(Value(options), TextOf(Value(options), "out"));
  }
  Outcome RunToEnd(const Object& options) {
    const std::string out = TextOf(Value(options), "out");
    fs::remove(out);
    const auto process = Start(options);
    Outcome outcome{.code = process->Wait()};
    outcome.out = process->out();
    outcome.err = process->err();
    const auto trials = DecodeJson(TextIn(out));
    if (trials.ok() && trials->is_list()) outcome.trials = *trials->if_list();
    return outcome;
  }
  fs::path ResultsOf(const std::string& experiment, const std::string& trial) const {
    return root_ / experiment / trial / "result.json";
  }

  fs::path root_;
};

Value Grid(List values) { return Object{{"grid_search", std::move(values)}}; }
Value Bounds(std::int64_t iterations) {
  return Object{{"name", "bounds"}, {"bounds", Object{{"training_iteration", iterations}}}};
}

// --- kills and signals ---

TEST_F(TuneProcesses, AfterKillOfTheTunerResultsAreThoseOfAnUndisturbedRun) {
  Write(At("open"), "");
  const auto space = [&](const char* gate) {
    return Object{
        {"space", Object{{"x", Grid({1, 2, 3})}, {"iterations", 6}, {"wait_for", At(gate)}}}};
  };
  const Outcome calm = RunToEnd(In("calm", space("open")));
  ASSERT_EQ(calm.code, 0) << calm.err;

  const Object options = In("rough", space("gate"));
  {
    const auto process = Start(options);
    const auto begun = [&] {
      return !LinesOf(ResultsOf("rough", "trial_00000")).empty() &&
             !LinesOf(ResultsOf("rough", "trial_00001")).empty();
    };
    ASSERT_TRUE(Eventually(begun)) << process->err();
    const auto worker =
        static_cast<pid_t>(IntOf(LinesOf(ResultsOf("rough", "trial_00000")).back(), "pid"));
    process->Signal(SIGKILL);
    EXPECT_EQ(process->Wait(), 128 + SIGKILL);
    EXPECT_TRUE(Eventually([&] { return kill(worker, 0) != 0; })) << "a worker outlived its tuner";
  }
  Write(At("gate"), "");
  for (const std::size_t lines : {2U, 4U}) {
    const auto process = Start(options);
    const auto further = [&] { return LinesOf(ResultsOf("rough", "trial_00000")).size() >= lines; };
    ASSERT_TRUE(Eventually(further)) << process->err();
    process->Signal(SIGKILL);
    process->Wait();
  }
  const Outcome rough = RunToEnd(options);
  ASSERT_EQ(rough.code, 0) << rough.err;
  ASSERT_EQ(rough.trials.size(), calm.trials.size());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rough.status(i), "TERMINATED") << TextOf(rough.trial(i), "error");
    EXPECT_EQ(rough.iterations(i), UpTo(6));
    EXPECT_EQ(Numbers(rough.results(i), "sum"), Numbers(calm.results(i), "sum"));
    // Each iteration once in the files too.
    const auto lines = LinesOf(ResultsOf("rough", TextOf(rough.trial(i), "trial")));
    EXPECT_EQ(Numbers(lines, "training_iteration"), UpTo(6));
    EXPECT_EQ(Numbers(lines, "sum"), Numbers(calm.results(i), "sum"));
  }
}

TEST_F(TuneProcesses, ASignalSavesAndPausesAndTheNextRunRepeatsNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    const std::string name = "signal" + std::to_string(signal);
    const Object options =
        In(name, {{"kind", "class"}, {"space", Object{{"limit_file", At(name + ".limit")}}}});
    std::int64_t last = 0;
    {
      const auto process = Start(options);
      const auto works = [&] { return LinesOf(ResultsOf(name, "trial_00000")).size() >= 3; };
      ASSERT_TRUE(Eventually(works)) << process->err();
      process->Signal(signal);
      ASSERT_EQ(process->Wait(), 3) << process->err();
      last = IntOf(LinesOf(ResultsOf(name, "trial_00000")).back(), "training_iteration");
    }
    EXPECT_TRUE(fs::exists(root_ / name / "trial_00000" / CheckpointName(last)));

    const Outcome left = RunToEnd(With(options, {{"resume_unfinished", false}}));
    ASSERT_EQ(left.code, 0) << left.err;
    EXPECT_THAT(left.statuses(), ElementsAre("PAUSED"));

    Write(At(name + ".limit"), std::to_string(last + 2));
    const Outcome outcome = RunToEnd(options);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
    EXPECT_EQ(outcome.iterations(0), UpTo(last + 2));
    EXPECT_EQ(IntOf(outcome.results(0).back(), "in_this_run"), 2);
    EXPECT_EQ(IntOf(outcome.results(0).back(), "iterations_since_restore"), 2);
  }
}

TEST_F(TuneProcesses, ASecondSignalEndsTrialsThatDoNotReport) {
  const Object options = In("e", {{"space", Object{{"iterations", 2}, {"wait_for", At("gate")}}}});
  {
    const auto process = Start(options);
    const auto begun = [&] { return !LinesOf(ResultsOf("e", "trial_00000")).empty(); };
    ASSERT_TRUE(Eventually(begun)) << process->err();
    process->Signal(SIGINT);
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(), 3) << process->err();
  }
  Write(At("gate"), "");
  const Outcome outcome = RunToEnd(options);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.iterations(0), UpTo(2));
  EXPECT_EQ(outcome.status(0), "TERMINATED");
}

// --- how an experiment ends ---

TEST_F(TuneProcesses, ATimeBudgetEndsTrialsWithACheckpointAtTheirEnd) {
  const Object options =
      In("e", {{"kind", "class"}, {"time_budget_s", 2.0}, {"checkpoint_at_end", true}});
  const Outcome outcome = RunToEnd(options);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
  // On a machine that is too slow to begin within the budget there are none.
  const auto made = static_cast<std::int64_t>(outcome.results(0).size());
  EXPECT_EQ(TextOf(outcome.trial(0), "checkpoint"), made == 0 ? "" : CheckpointName(made));

  const Outcome again = RunToEnd(options);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.results(0).size(), outcome.results(0).size());
}

TEST_F(TuneProcesses, ATimeBudgetCountsWhatEarlierProcessesWorked) {
  const Object options = In("e", {{"kind", "class"}});
  {
    const auto process = Start(options);
    const auto works = [&] { return LinesOf(ResultsOf("e", "trial_00000")).size() >= 3; };
    ASSERT_TRUE(Eventually(works)) << process->err();
    process->Signal(SIGINT);
    ASSERT_EQ(process->Wait(), 3) << process->err();
  }
  const auto made = LinesOf(ResultsOf("e", "trial_00000")).size();
  const Outcome outcome = RunToEnd(With(options, {{"time_budget_s", 0.001}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
  EXPECT_EQ(outcome.results(0).size(), made);
}

TEST_F(TuneProcesses, AFunctionThatAsksEndsWithTheTimeBudget) {
  const Outcome outcome =
      RunToEnd(In("e", {{"space", Object{{"poll", true}}}, {"time_budget_s", 2.0}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
  EXPECT_LE(outcome.results(0).size(), 1u);
}

TEST_F(TuneProcesses, FailFastLeavesTheOthersResumable) {
  const Object options = In(
      "e", {{"space",
             Object{{"as", Grid({Object{{"wait_for", At("began")},
                                        {"fail_at", 2},
                                        {"mended", At("mended")},
                                        {"iterations", 3}},
                                 Object{{"touch", At("began")}, {"limit_file", At("limit")}}})}}},
            {"fail_fast", true}});
  const Outcome first = RunToEnd(options);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.statuses(), ElementsAre("ERROR", "PAUSED"));
  EXPECT_THAT(TextOf(first.trial(0), "error"), HasSubstr("as told"));
  EXPECT_THAT(TextIn(root_ / "e" / "trial_00000" / "error.txt"), HasSubstr("as told"));
  const auto made = static_cast<std::int64_t>(first.results(1).size());

  Write(At("mended"), "");
  Write(At("limit"), std::to_string(made + 1));
  const Outcome second = RunToEnd(With(options, {{"resume_errored", true}}));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.statuses(), ElementsAre("TERMINATED", "TERMINATED"));
  EXPECT_EQ(second.iterations(0), UpTo(3));
  EXPECT_EQ(second.iterations(1), UpTo(made + 1));
  EXPECT_FALSE(fs::exists(root_ / "e" / "trial_00000" / "error.txt"));
}

// --- failures ---

TEST_F(TuneProcesses, ErroredTrialsAreResumedOrRestarted) {
  const Value works = Object{{"per_run", 2}};
  const Value fails = Object{{"per_run", 2}, {"fail_at", 2}, {"mended", At("mended")}};
  const Object space{{"space", Object{{"as", Grid({works, fails, works, fails})}}}};
  for (const char* name : {"resumed", "restarted"}) {
    const Outcome outcome = RunToEnd(In(name, space));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.counts(), ElementsAre(2, 1, 2, 1));
    EXPECT_THAT(outcome.statuses(), ElementsAre("TERMINATED", "ERROR", "TERMINATED", "ERROR"));
  }
  Write(At("mended"), "");
  const Outcome resumed = RunToEnd(With(In("resumed", space), {{"resume_errored", true}}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.counts(), ElementsAre(2, 3, 2, 3));
  const Outcome restarted = RunToEnd(With(In("restarted", space), {{"restart_errored", true}}));
  ASSERT_EQ(restarted.code, 0) << restarted.err;
  EXPECT_THAT(restarted.counts(), ElementsAre(2, 2, 2, 2));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(resumed.status(i), "TERMINATED");
    EXPECT_EQ(restarted.status(i), "TERMINATED");
    const std::string trial = TextOf(restarted.trial(i), "trial");
    EXPECT_EQ(Numbers(LinesOf(ResultsOf("restarted", trial)), "training_iteration"), UpTo(2));
  }
}

TEST_F(TuneProcesses, AFailedTrialIsTriedAgainAsOftenAsAllowed) {
  const Object space{{"space", Object{{"fail_runs", 3}, {"iterations", 8}}}};
  const Outcome twice = RunToEnd(With(In("twice", space), {{"max_failures", 2}}));
  ASSERT_EQ(twice.code, 0) << twice.err;
  EXPECT_THAT(twice.statuses(), ElementsAre("ERROR"));
  EXPECT_THAT(TextOf(twice.trial(0), "error"), HasSubstr("run 3"));
  const Outcome endless = RunToEnd(With(In("endless", space), {{"max_failures", -1}}));
  ASSERT_EQ(endless.code, 0) << endless.err;
  EXPECT_THAT(endless.statuses(), ElementsAre("TERMINATED"));
  EXPECT_EQ(endless.iterations(0), UpTo(8));
  EXPECT_EQ(Numbers(LinesOf(ResultsOf("endless", "trial_00000")), "training_iteration"), UpTo(8));
}

TEST_F(TuneProcesses, ADeletedNewestCheckpointIsPassedOver) {
  const Object options =
      In("e", {{"space", Object{{"fail_at", 4}, {"mended", At("mended")}, {"iterations", 5}}}});
  ASSERT_THAT(RunToEnd(options).statuses(), ElementsAre("ERROR"));
  fs::remove_all(root_ / "e" / "trial_00000" / CheckpointName(3));
  Write(At("mended"), "");
  const Outcome outcome = RunToEnd(With(options, {{"resume_errored", true}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
  EXPECT_EQ(outcome.iterations(0), UpTo(5));
  EXPECT_EQ(IntOf(outcome.results(0).back(), "in_this_run"), 3);
}

TEST_F(TuneProcesses, TrialsWithoutARecordAreNotTakenForNewOnes) {
  const Object options = In("e", {{"space", Object{{"iterations", 2}}}});
  ASSERT_EQ(RunToEnd(options).code, 0);
  fs::remove_all(root_ / "e" / "events");
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = RunToEnd(options);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("no record"));
  }
}

// --- more of it ---

TEST_F(TuneProcesses, AFinishedExperimentIsExtended) {
  const Object options = In("e", {{"kind", "class"},
                                  {"space", Object{{"x", 1}}},
                                  {"stop", Bounds(2)},
                                  {"checkpoint_at_end", true}});
  const Outcome first = RunToEnd(options);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.counts(), ElementsAre(2));

  const Object longer = With(options, {{"stop", Bounds(4)}, {"num_samples", 2}});
  const Outcome refused = RunToEnd(longer);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("another stop"));
  for (int i = 0; i < 2; ++i) {  // the same call again adds nothing
    const Outcome extended = RunToEnd(With(longer, {{"extend", true}}));
    ASSERT_EQ(extended.code, 0) << extended.err;
    EXPECT_THAT(extended.counts(), ElementsAre(4, 4));
    EXPECT_EQ(extended.iterations(0), UpTo(4));
    EXPECT_EQ(IntOf(extended.results(0).back(), "in_this_run"), 2);
    EXPECT_THAT(extended.statuses(), ElementsAre("TERMINATED", "TERMINATED"));
  }
  const Outcome fewer = RunToEnd(With(longer, {{"extend", true}, {"num_samples", 1}}));
  EXPECT_EQ(fewer.code, 1);
  EXPECT_THAT(fewer.err, HasSubstr("num_samples is 1"));
}

TEST_F(TuneProcesses, AMovedExperimentGoesOnWhereItIs) {
  const Object space{
      {"space", Object{{"fail_at", 3}, {"mended", At("mended")}, {"iterations", 4}}}};
  ASSERT_THAT(RunToEnd(In("before", space)).statuses(), ElementsAre("ERROR"));
  fs::rename(root_ / "before", root_ / "after");
  Write(At("mended"), "");
  const Outcome outcome = RunToEnd(With(In("after", space), {{"resume_errored", true}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.status(0), "TERMINATED") << TextOf(outcome.trial(0), "error");
  EXPECT_EQ(outcome.iterations(0), UpTo(4));
  EXPECT_EQ(IntOf(outcome.results(0).back(), "in_this_run"), 2);
  EXPECT_FALSE(fs::exists(root_ / "before"));
}

TEST_F(TuneProcesses, APausedClassGoesOnAtTheNextIteration) {
  const Object asha{{"name", "asha"},    {"metric", "sum"},       {"mode", "max"},  {"max_t", 9},
                    {"grace_period", 1}, {"reduction_factor", 3}, {"promote", true}};
  const Outcome outcome =
      RunToEnd(In("e", {{"kind", "class"},
                        {"space", Object{{"x", Grid({1, 2, 3, 4})}, {"iterations", 9}}},
                        {"metric", "sum"},
                        {"scheduler", asha},
                        {"max_concurrent", 1}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  bool promoted = false;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcome.status(i), "TERMINATED") << TextOf(outcome.trial(i), "error");
    const std::vector<Value> results = outcome.results(i);
    EXPECT_EQ(outcome.iterations(i), UpTo(static_cast<std::int64_t>(results.size())));
    if (results.size() < 2) continue;
    promoted = true;
    EXPECT_EQ(IntOf(results[1], "in_this_run"), 1);
  }
  EXPECT_TRUE(promoted);
}

TEST_F(TuneProcesses, APopulationCopiesAndTellsOfIt) {
  const Object pbt{{"name", "pbt"},
                   {"metric", "sum"},
                   {"mode", "max"},
                   {"time_attr", "training_iteration"},
                   {"perturbation_interval", 2},
                   {"synch", true},
                   {"hyperparam_mutations", Object{{"x", List{1, 2, 3, 4}}}},
                   {"seed", 1}};
  const Outcome outcome = RunToEnd(In("e", {{"kind", "class"},
                                            {"space", Object{{"x", Grid({1, 2, 3, 4})}}},
                                            {"metric", "sum"},
                                            {"stop", Bounds(7)},
                                            {"scheduler", pbt},
                                            {"max_concurrent", 1}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcome.status(i), "TERMINATED") << TextOf(outcome.trial(i), "error");
    EXPECT_EQ(outcome.iterations(i), UpTo(7));
    const std::string trial = TextOf(outcome.trial(i), "trial");
    EXPECT_EQ(Numbers(LinesOf(ResultsOf("e", trial)), "training_iteration"), UpTo(7));
  }
  EXPECT_THAT(TextIn(root_ / "e" / "pbt_global.txt"), HasSubstr("trial_0000"));
}

// --- checkpoints, files and output ---

TEST_F(TuneProcesses, AClassIsAskedForItsCheckpoints) {
  const Outcome outcome = RunToEnd(In("e", {{"kind", "class"},
                                            {"space", Object{{"iterations", 5}}},
                                            {"checkpoint_frequency", 2},
                                            {"checkpoint_at_end", true}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<bool> there;
  for (std::int64_t i = 1; i <= 5; ++i) {
    there.push_back(fs::exists(root_ / "e" / "trial_00000" / CheckpointName(i)));
  }
  EXPECT_THAT(there, ElementsAre(false, true, false, true, true));
  const Outcome refused = RunToEnd(In("f", {{"checkpoint_frequency", 2}}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("checkpoint_frequency does not work with a function"));
  EXPECT_FALSE(fs::exists(root_ / "f"));
}

TEST_F(TuneProcesses, TrialsHaveFilesForPeople) {
  const Outcome outcome = RunToEnd(
      In("e", {{"trainable", "net"},
               {"space", Object{{"x", Grid({1, 2})}, {"iterations", 4}, {"late", true}}}}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const fs::path trial = root_ / "e" / "net_00001";
  const auto params = DecodeJson(TextIn(trial / "params.json"));
  ASSERT_TRUE(params.ok());
  EXPECT_EQ(IntOf(*params, "x"), 2);
  const auto lines = LinesOf(trial / "result.json");
  EXPECT_EQ(Numbers(lines, "training_iteration"), UpTo(4));
  EXPECT_EQ(TextOf(lines.front(), "trial_id"), "net_00001");
  EXPECT_EQ(IntOf(lines.front(), "config/x"), 2);
  // A metric that comes late has a column, and rows before it have nothing there.
  std::istringstream csv(TextIn(trial / "progress.csv"));
  std::vector<std::string> rows;
  for (std::string row; std::getline(csv, row);) rows.push_back(row);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_THAT(rows[0], HasSubstr("late/a"));
  EXPECT_THAT(rows[1], testing::Not(HasSubstr("\"x,")));
  EXPECT_THAT(rows[3], HasSubstr("\"x,\"\"y\"\"\""));
  EXPECT_GT(fs::file_size(trial / "events.out.tfevents.cairn"), 0u);
  EXPECT_FALSE(fs::exists(trial / "error.txt"));
  EXPECT_THAT(TextIn(root_ / "e" / ".logged"), HasSubstr("net_00001\n"));
  const Outcome other = RunToEnd(
      In("e", {{"trainable", "other"},
               {"space", Object{{"x", Grid({1, 2})}, {"iterations", 4}, {"late", true}}}}));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("another trainable"));
}

TEST_F(TuneProcesses, WhatTrialsPrintIsSeenOrKept) {
  const Object space{{"space", Object{{"iterations", 2}, {"print", true}}}};
  const Outcome seen = RunToEnd(In("seen", space));
  ASSERT_EQ(seen.code, 0) << seen.err;
  EXPECT_EQ(seen.out, "iteration 1\niteration 2\n");
  const Outcome kept =
      RunToEnd(With(In("kept", space), {{"log_to_file", true}, {"chdir_to_trial_dir", true}}));
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(kept.out, "");
  EXPECT_EQ(TextIn(root_ / "kept" / "trial_00000" / "stdout"), "iteration 1\niteration 2\n");
}

}  // namespace
}  // namespace cairn::tune

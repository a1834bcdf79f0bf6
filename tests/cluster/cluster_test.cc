// Jobs with parameter servers under kill -9: whatever dies when, what was learned in the end is, to
// the last bit, what an undisturbed job learns. CAIRN_TORTURE_SECONDS makes the random script run
// that long; CAIRN_TORTURE_STATE keeps its seed.

#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <sstream>

#include <cairn/checkpoint_manager.h>

#include "format/json.h"

namespace cairn::ps {
namespace {

constexpr std::chrono::seconds kPatience{90};

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-cluster-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override {
    if (HasFailure()) {
      std::cerr << "kept: " << directory_ << "\n";
    } else {
      std::filesystem::remove_all(directory_);
    }
  }

  JobResult Run(const std::string& name, JobOptions options) {
    std::stable_sort(options.faults.begin(), options.faults.end(),
                     [](const Fault& a, const Fault& b) { return a.step < b.step; });
    Cluster cluster(directory_ + "/" + name, std::move(options));
    JobResult result = cluster.Run(kPatience);
    EXPECT_TRUE(result.ok) << name << ": " << result.problem;
    const auto report = Verify(cluster.repository(), true);
    EXPECT_TRUE(report.ok() && report->ok()) << name;
    return result;
  }
  /// What an undisturbed job of that length learns: the same for all tests.
  const std::string& Undisturbed() {
    static const std::string learned = [&] {
      const JobResult result = Run("undisturbed", {});
      EXPECT_EQ(result.rollbacks, 0u);
      EXPECT_EQ(result.steps_begun, 30);
      return result.learned;
    }();
    return learned;
  }
  /// All trainers saw that the job went back, and it came to the same.
  void ExpectSame(const std::string& name, const JobResult& result) {
    EXPECT_TRUE(result.learned == Undisturbed()) << name;
  }

  /// The weights of the table that counts pushes.
  static std::map<std::string, std::string> CountsIn(const std::string& learned) {
    std::map<std::string, std::string> counts;
    std::istringstream lines(learned);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string key, weight;
      words >> key >> weight;
      if (key.starts_with("counts/")) counts[key] = weight;
    }
    return counts;
  }
  void ExpectSameCounts(const std::string& name, const JobResult& result) {
    const auto expected = CountsIn(Undisturbed());
    EXPECT_GT(expected.size(), 100u);
    EXPECT_TRUE(CountsIn(result.learned) == expected) << name;
  }

  std::string directory_;
};

TEST_F(ClusterTest, AServerIsKilled) {
  for (const int victim : {0, 1}) {
    const std::string name = "server_" + std::to_string(victim);
    const JobResult result = Run(name, {.faults = {{.step = 14, .server = true, .index = victim}}});
    EXPECT_EQ(result.kills, 1);
    EXPECT_EQ(result.rollbacks, 2u);
    EXPECT_GT(result.steps_begun, 30) << "something was repeated";
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, ATrainerIsKilled) {
  for (const int victim : {0, 1}) {
    const std::string name = "trainer_" + std::to_string(victim);
    const JobResult result =
        Run(name, {.faults = {{.step = 14, .server = false, .index = victim}}});
    EXPECT_EQ(result.kills, 1);
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, OverGrpcItIsTheSame) {
  const JobResult result =
      Run("grpc", {.transport = "grpc",
                   .faults = {{.step = 8, .index = 1}, {.step = 14, .server = false, .index = 1}}});
  EXPECT_EQ(result.kills, 2);
  ExpectSame("grpc", result);
}

TEST_F(ClusterTest, TwoServersAtOnce) {
  const JobResult result =
      Run("both", {.faults = {{.step = 11, .index = 0}, {.step = 11, .index = 1}}});
  EXPECT_EQ(result.kills, 2);
  ExpectSame("both", result);
}

TEST_F(ClusterTest, AServerAndATrainerAtOnce) {
  const JobResult result = Run(
      "mixed", {.faults = {{.step = 13, .index = 1}, {.step = 13, .server = false, .index = 1}}});
  EXPECT_EQ(result.kills, 2);
  ExpectSame("mixed", result);
}

TEST_F(ClusterTest, TheSupervisorIsKilled) {
  for (const std::string recovery : {"exact", "log"}) {
    const std::string name = "supervisor_" + recovery;
    const JobResult result =
        Run(name, {.recovery = recovery,
                   .supervised = true,
                   .faults = {{.step = 2, .supervisor = true}, {.step = 14, .supervisor = true}}});
    EXPECT_EQ(result.kills, 2);
    ExpectSame(name, result);
    if (recovery == "log") {
      EXPECT_EQ(result.rollbacks, 0u);
    }
  }
}

TEST_F(ClusterTest, TheSupervisorIsKilledWhileItStartsWhatDied) {
  // It begins, loses a server and a trainer, and is lost with the next ones half started.
  std::vector<Fault> faults = {{.step = -1, .supervisor = true, .delay_ms = 30},
                               {.step = 11, .server = true, .index = 1},
                               {.step = 11, .server = false, .index = 0, .delay_ms = 5}};
  for (const int delay : {20, 60, 130, 250}) {
    faults.push_back({.step = 11, .supervisor = true, .delay_ms = delay});
  }
  for (const std::string recovery : {"exact", "log"}) {
    const std::string name = "supervisor_again_" + recovery;
    const JobResult result =
        Run(name, {.recovery = recovery, .supervised = true, .faults = faults});
    EXPECT_GE(result.kills, 5);
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, BeforeAnythingWasSaved) {
  const JobResult result = Run("early", {.faults = {{.step = 1, .index = 1}}});
  ExpectSame("early", result);
}

TEST_F(ClusterTest, DuringSavesAndRestores) {
  // Checkpoints are cut at the ends of steps 3, 6, 9, … and written during the next; a restore
  // follows a kill. Those at short distances hit both.
  std::vector<Fault> faults;
  for (const int delay : {0, 3}) {
    faults.push_back({.step = 4, .index = delay % 2, .delay_ms = delay});
  }
  for (const int delay : {0, 40, 90, 150}) {
    faults.push_back({.step = 13, .index = 1, .delay_ms = delay});
  }
  const JobResult result = Run("saves", {.faults = faults});
  ExpectSame("saves", result);
}

TEST_F(ClusterTest, AServerThatStandsStillIsWaitedFor) {
  const JobResult result = Run("stopped", {.faults = {{.step = 8, .index = 1, .signal = SIGSTOP}}});
  EXPECT_EQ(result.kills, 0);
  EXPECT_EQ(result.rollbacks, 0u);
  ExpectSame("stopped", result);
}

TEST_F(ClusterTest, ConnectionsThatAreCutOffChangeNothing) {
  for (const std::string recovery : {"exact", "log"}) {
    const std::string name = "cut_" + recovery;
    const JobResult result = Run(
        name, {.recovery = recovery, .drop_after = 400'000, .faults = {{.step = 14, .index = 1}}});
    EXPECT_EQ(result.kills, 1);
    EXPECT_GT(result.drops, 4);
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, AsyncJobsCountEveryPushOnce) {
  for (const std::string recovery : {"exact", "log"}) {
    const JobResult result =
        Run("async_" + recovery,
            {.mode = "async",
             .recovery = recovery,
             .faults = {{.step = 8, .index = 1}, {.step = 14, .server = false, .index = 1}}});
    EXPECT_EQ(result.kills, 2);
    ExpectSameCounts(recovery, result);
  }
}

TEST_F(ClusterTest, WithALogNobodyGoesBack) {
  for (const int victim : {0, 1}) {
    const std::string name = "log_" + std::to_string(victim);
    const JobResult result =
        Run(name, {.recovery = "log",
                   .faults = {{.step = 2, .index = victim}, {.step = 14, .index = victim}}});
    EXPECT_EQ(result.kills, 2);
    EXPECT_EQ(result.rollbacks, 0u);
    EXPECT_EQ(result.steps_begun, 30) << "nothing is repeated";
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, WithALogEverythingMayDieAtOnce) {
  const JobResult result = Run("log_all", {.recovery = "log",
                                           .faults = {{.step = 11, .index = 0},
                                                      {.step = 11, .index = 1},
                                                      {.step = 11, .server = false, .index = 0},
                                                      {.step = 12, .server = false, .index = 1},
                                                      {.step = 13, .index = 1, .delay_ms = 20}}});
  EXPECT_GE(result.kills, 4);
  EXPECT_EQ(result.rollbacks, 0u);
  ExpectSame("log_all", result);
}

TEST_F(ClusterTest, WithALogDuringSavesAndRestores) {
  std::vector<Fault> faults;
  for (const int delay : {0, 30, 80}) {
    faults.push_back({.step = 4, .index = delay % 20 == 0, .delay_ms = delay});
    faults.push_back({.step = 13, .index = 1, .delay_ms = delay});
  }
  const JobResult result = Run("log_saves", {.recovery = "log", .faults = faults});
  EXPECT_EQ(result.rollbacks, 0u);
  ExpectSame("log_saves", result);
}

TEST_F(ClusterTest, PartialGoesOnWithoutGoingBack) {
  const JobResult result = Run(
      "partial", {.recovery = "partial",
                  .faults = {{.step = 8, .index = 1}, {.step = 14, .server = false, .index = 1}}});
  EXPECT_EQ(result.kills, 2);
  EXPECT_EQ(result.rollbacks, 0u);
  EXPECT_EQ(result.steps_begun, 30);
}

TEST_F(ClusterTest, AnotherNumberOfServersIsKilledWhileItRestores) {
  for (const std::string recovery : {"exact", "log"}) {
    const std::string name = "reshard_" + recovery;
    const JobResult before = Run(name, {.steps = 15, .recovery = recovery, .until_saved = true});
    ASSERT_TRUE(before.ok);
    std::vector<Fault> faults;
    for (const int delay : {30, 60, 90, 140}) {
      faults.push_back({.step = -1, .index = delay % 3, .delay_ms = delay});
      faults.push_back({.step = -1, .index = (delay + 1) % 3, .delay_ms = delay + 5});
    }
    const JobResult result =
        Run(name, {.servers = 3, .recovery = recovery, .faults = std::move(faults)});
    EXPECT_GE(result.kills, 2);
    EXPECT_LT(result.steps_begun, 30) << "it began with what the two servers had";
    ExpectSame(name, result);
  }
}

TEST_F(ClusterTest, ADiskThatIsFullForAWhileCostsCheckpointsAndNothingElse) {
  for (const std::string recovery : {"exact", "log"}) {
    const std::string name = "full_" + recovery;
    const JobResult result = Run(name, {.recovery = recovery,
                                        .faults = {{.step = 3, .index = 1, .signal = kDiskFull},
                                                   {.step = 14, .index = 0, .signal = kDiskFull},
                                                   {.step = 20, .server = true, .index = 1}}});
    EXPECT_EQ(result.kills, 1);
    ExpectSame(name, result);
  }
}

#ifdef CAIRN_SLOW_DISK
TEST_F(ClusterTest, ASlowDiskOfOneServerChangesNothing) {
  for (const char* recovery : {"exact", "log"}) {
    JobOptions options;
    options.recovery = recovery;
    options.slow_server = 1;
    options.slow_ms = 15;
    options.faults = {{.step = 9, .server = true, .index = 1}};
    const std::string name = std::string("slow_") + recovery;
    const JobResult result = Run(name, options);
    ExpectSame(name, result);
    EXPECT_EQ(result.kills, 1);
  }
}
#endif

TEST_F(ClusterTest, AFaultScriptOfChance) {
  const char* seconds = std::getenv("CAIRN_TORTURE_SECONDS");
  const char* state_file = std::getenv("CAIRN_TORTURE_STATE");
  std::uint64_t seed = 1;
  std::int64_t rounds_before = 0;
  if (state_file != nullptr) {
    std::ifstream in(state_file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (const auto state = DecodeJson(text); state.ok()) {
      seed = static_cast<std::uint64_t>(state->Find("next_seed")->AsInt(1));
      rounds_before = state->Find("rounds")->AsInt();
    }
  }
  // Without torture a few rounds: exact and log, sync and async.
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(seconds == nullptr ? 8 : std::atoi(seconds));
  std::int64_t rounds = 0;
  int kills = 0;
  int drops = 0;
  do {
    std::mt19937_64 random(seed);
    JobOptions options;
    options.supervised = seed % 5 == 2;
    const int count = 1 + static_cast<int>(random() % 5);
    std::string script = options.supervised ? "supervised; " : "";
    for (int i = 0; i < count; ++i) {
      Fault fault;
      fault.step = 1 + static_cast<std::int64_t>(random() % 14);
      fault.server = random() % 3 != 0;
      fault.index = static_cast<int>(random() % 2);
      const std::uint64_t how = random() % 10;
      fault.signal = how < 2 ? SIGSTOP : how < 4 ? kDiskFull : SIGKILL;
      fault.delay_ms = static_cast<int>(random() % 60);
      if (options.supervised && (i == 0 || random() % 3 == 0)) {
        fault.supervisor = true;
        if (i == 0 || fault.signal == kDiskFull) fault.signal = SIGKILL;
      }
      options.faults.push_back(fault);
      std::ostringstream words;
      words << fault;
      script += words.str() + "; ";
    }
#ifdef CAIRN_SLOW_DISK
    if (random() % 3 == 0 && !options.supervised) {
      options.slow_server = static_cast<int>(random() % 2);
      options.slow_ms = 1 + static_cast<int>(random() % 50);
      script += "the disk of server " + std::to_string(options.slow_server) + " is slow by " +
                std::to_string(options.slow_ms) + " ms; ";
    }
#endif
    if (random() % 3 == 0 && !options.supervised) {
      options.drop_after = 100'000 + random() % 900'000;
      script += "connections are cut off after " + std::to_string(options.drop_after) + " bytes; ";
    }
    options.recovery = seed % 2 == 0 ? "exact" : "log";
    options.log_level = seed % 4 == 3 ? "synced" : "written";
    options.mode = seed % 6 < 4 ? "sync" : "async";
    options.transport = seed % 5 == 3 ? "grpc" : "socket";
    const std::string name = "seed_" + std::to_string(seed);
    SCOPED_TRACE(name + ", " + options.mode + ", " + options.recovery + ", " + options.log_level +
                 ", " + options.transport + ": " + script);
    const JobResult result = Run(name, options);
    kills += result.kills;
    drops += result.drops;
    if (options.mode == "sync") ExpectSame(name, result);
    ExpectSameCounts(name, result);
    if (options.recovery == "log") {
      EXPECT_EQ(result.rollbacks, 0u);
    }
    if (HasFailure()) break;
    std::filesystem::remove_all(directory_ + "/" + name);
    ++rounds;
    ++seed;
  } while (std::chrono::steady_clock::now() < end);
  std::cerr << "rounds " << rounds << ", kills " << kills << ", connections cut off " << drops
            << ", next seed " << seed << "\n";
  if (state_file != nullptr) {
    std::ofstream(state_file) << EncodeJson(
        Value::Object{{"next_seed", seed}, {"rounds", rounds_before + rounds}});
  }
}

}  // namespace
}  // namespace cairn::ps

// Kills real writer processes with SIGKILL, over and over, and checks from outside that no
// acknowledged save was lost and nothing torn is ever restored. CAIRN_TORTURE_SECONDS makes it run
// that long instead; CAIRN_TORTURE_STATE keeps seeds and counts from run to run.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include "checkpoint/manager.h"
#include "format/json.h"
#include "tests/kill/job_state.h"

namespace cairn::kill {
namespace {

namespace fs = std::filesystem;

/// The protocol steps of a single writer that a kill must hit. "idle" is no step.
const std::vector<std::string> kSteps = {
    "open: lock",      "open: fence",      "open: seal",     "open: sweep",      "save: plan",
    "save: snapshot",  "save: claim",      "save: write",    "save: link",       "save: recycle",
    "save: sync data", "save: sync names", "save: manifest", "save: fence",      "acknowledge",
    "retention",       "remove: note",     "remove: fence",  "remove: manifest", "remove: pool",
    "remove: files",
};

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "cairn-kill-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A blackboard in a file of its own.
class MappedBoard {
 public:
  explicit MappedBoard(const fs::path& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(ftruncate(fd, sizeof(Blackboard)), 0);
    board_ = static_cast<Blackboard*>(
        mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    board_->acknowledged = -1;
    board_->resumed = -1;
  }
  ~MappedBoard() { munmap(board_, sizeof(Blackboard)); }
  Blackboard* operator->() { return board_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  Blackboard* board_;
};

pid_t StartWriter(const std::vector<std::string>& args) {
  const char* bin = std::getenv("CAIRN_BIN_DIR");
  const std::string program = std::string(bin == nullptr ? "." : bin) + "/kill_writer";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  return pid;
}

/// True when the process ended by SIGKILL; false with its exit code otherwise.
bool WaitKilled(pid_t pid, int* exit_code) {
  int status = 0;
  waitpid(pid, &status, 0);
  *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/// Every listed checkpoint restores to exactly its step's state, and the latest is not older than
/// `acknowledged`.
void CheckRepository(const std::string& directory, std::uint64_t seed, int ranks,
                     std::int64_t acknowledged) {
  auto env = LocalEnvironment(directory, false);
  ASSERT_TRUE(env.ok()) << env.status().ToString();
  auto manager = OpenManager({.directory = directory, .read_only = true}, *env);
  if (!manager.ok() && acknowledged < 0) return;  // killed before cairn.json
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  auto latest = (*manager)->Latest();
  ASSERT_TRUE(latest.ok()) << latest.status().ToString();
  if (acknowledged >= 0) {
    ASSERT_TRUE(latest->has_value()) << "acknowledged step " << acknowledged << " is gone";
    ASSERT_GE((*latest)->step, acknowledged);
  }
  auto infos = (*manager)->List();
  ASSERT_TRUE(infos.ok());
  for (const CheckpointInfo& info : *infos) {
    for (int rank = 0; rank < ranks; ++rank) {
      JobState state;
      JobState expected;
      expected.Compute(seed, info.step, rank);
      auto restored = (*manager)->Restore({.into = state.Targets(rank, ranks), .id = info.id});
      ASSERT_TRUE(restored.ok()) << info.path << ": " << restored.status().ToString();
      ASSERT_TRUE(state == expected) << info.path << " does not hold the state of its step";
    }
  }
}

/// Seeds and counts that accumulate over runs of `make torture`.
struct Record {
  std::uint64_t seed = 20261115;
  std::int64_t cycles = 0;
  std::map<std::string, std::int64_t> hits;

  static Record Load() {
    Record record;
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return record;
    std::ifstream in(path);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    auto value = DecodeJson(text);
    if (!value.ok()) return record;
    if (const Value* seed = value->Find("seed")) {
      record.seed = static_cast<std::uint64_t>(seed->AsInt()) + 1;
    }
    if (const Value* cycles = value->Find("cycles")) record.cycles = cycles->AsInt();
    return record;
  }
  void Save() const {
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return;
    Value::Object object{{"seed", seed}, {"cycles", cycles}};
    std::ofstream(path) << EncodeJson(object) << "\n";
  }
};

std::chrono::seconds TortureTime() {
  const char* seconds = std::getenv("CAIRN_TORTURE_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 0 : std::atol(seconds));
}

TEST(KillTest, NoAcknowledgedSaveIsLostWhereverTheWriterIsKilled) {
  TempDir temp;
  Record record = Record::Load();
  std::mt19937_64 random(record.seed);
  const std::string directory = (temp.path() / "repository").string();
  MappedBoard board(temp.path() / "board");
  std::map<std::string, int> hits;
  std::map<std::string, int> aimed;
  const auto deadline = std::chrono::steady_clock::now() + TortureTime();
  const int least = 6 * static_cast<int>(kSteps.size());
  std::int64_t acknowledged = -1;
  int cycles = 0;
  for (; cycles < least || std::chrono::steady_clock::now() < deadline; ++cycles) {
    const std::string& target = kSteps[static_cast<std::size_t>(cycles) % kSteps.size()];
    // Early steps of an opening come once; the others at a random one of the first saves. Links and
    // recycling need a few saves before they happen at all.
    const long count = target.starts_with("open") ? 1 : 1 + static_cast<long>(random() % 4);
    // Half of the kills strike the very beginning of the step, the others somewhere inside it.
    const long delay = random() % 2 == 0 ? 0 : static_cast<long>(random() % 1500);
    board->SetStep("start");
    const pid_t pid = StartWriter({directory, board.path().string(), std::to_string(record.seed),
                                   target, std::to_string(count), std::to_string(delay)});
    int exit_code = 0;
    ASSERT_TRUE(WaitKilled(pid, &exit_code))
        << "the writer ended by itself with code " << exit_code << " (aimed at " << target << ")";
    ++hits[board->step];
    ++aimed[target];
    ASSERT_LE(acknowledged, std::max(board->acknowledged, board->resumed));
    acknowledged = std::max(acknowledged, board->acknowledged);
    ASSERT_NO_FATAL_FAILURE(CheckRepository(directory, record.seed, 1, acknowledged))
        << "after " << cycles << " cycles, killed in step \"" << board->step << "\"";
  }
  record.cycles += cycles;
  record.Save();
  std::cout << cycles << " kills (" << record.cycles << " in all), acknowledged up to step "
            << acknowledged << "; the protocol step each one hit:\n";
  for (const auto& [step, count] : hits) std::cout << "  " << count << "\t" << step << "\n";
  for (const std::string& step : kSteps) EXPECT_GT(hits[step], 0) << "no kill hit " << step;
}

TEST(KillTest, TwoRanksLoseNothingWhenOneOrBothAreKilled) {
  TempDir temp;
  const std::uint64_t seed = 77;
  std::mt19937_64 random(seed);
  const std::string directory = (temp.path() / "repository").string();
  MappedBoard boards[2] = {MappedBoard(temp.path() / "board0"),
                           MappedBoard(temp.path() / "board1")};
  const std::vector<std::string> targets = {
      "save: announce", "save: write",     "save: part",  "save: wait for parts",
      "save: manifest", "save: fence",     "acknowledge", "save: wait for the manifest",
      "open: start",    "remove: manifest"};
  std::map<std::string, int> hits;
  std::int64_t acknowledged = -1;
  for (std::size_t cycle = 0; cycle < 2 * targets.size(); ++cycle) {
    const std::string& target = targets[cycle % targets.size()];
    int victim = static_cast<int>(random() % 2);
    if (target == "save: wait for the manifest") victim = 1;
    if (target == "save: wait for parts" || target == "save: announce" ||
        target == "save: manifest" || target == "open: start" || target.starts_with("remove")) {
      victim = 0;
    }
    pid_t pids[2];
    for (int rank = 0; rank < 2; ++rank) {
      boards[rank]->SetStep("start");
      pids[rank] = StartWriter({directory, boards[rank].path().string(), std::to_string(seed),
                                rank == victim ? target : "-",
                                std::to_string(target.starts_with("open") ? 1 : 3),
                                std::to_string(random() % 300), std::to_string(rank), "2"});
    }
    int exit_code = 0;
    ASSERT_TRUE(WaitKilled(pids[victim], &exit_code)) << exit_code << " aimed at " << target;
    ++hits[boards[victim]->step];
    // The other one gives up by itself within the deadline (a code, not a hang), or is killed too.
    if (random() % 2 == 0) ::kill(pids[1 - victim], SIGKILL);
    if (!WaitKilled(pids[1 - victim], &exit_code)) {
      EXPECT_EQ(exit_code, 3);
    }
    for (MappedBoard& board : boards) acknowledged = std::max(acknowledged, board->acknowledged);
    ASSERT_NO_FATAL_FAILURE(CheckRepository(directory, seed, 2, acknowledged))
        << "killed rank " << victim << " in step \"" << boards[victim]->step << "\"";
  }
  std::cout << "the protocol step each kill hit:\n";
  for (const auto& [step, count] : hits) std::cout << "  " << count << "\t" << step << "\n";
  EXPECT_GE(acknowledged, static_cast<std::int64_t>(targets.size()));
}

}  // namespace
}  // namespace cairn::kill

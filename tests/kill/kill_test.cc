// Kills real writer processes with SIGKILL, over and over, and checks from outside that no
// acknowledged save was lost and nothing torn is ever restored. CAIRN_TORTURE_SECONDS makes it run
// that long instead; CAIRN_TORTURE_STATE keeps seeds and counts from run to run.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <iostream>
#include <map>
#include <random>

#include "checkpoint/manager.h"
#include "tests/kill/harness.h"
#include "tests/kill/listed_checkpoints.h"

namespace cairn::kill {
namespace {

/// The protocol steps of a single writer that a kill must hit. "idle" is no step.
const std::vector<std::string> kSteps = {
    "open: lock",      "open: fence",      "open: seal",     "open: sweep",      "save: plan",
    "save: snapshot",  "save: claim",      "save: write",    "save: link",       "save: recycle",
    "save: sync data", "save: sync names", "save: manifest", "save: fence",      "acknowledge",
    "retention",       "remove: note",     "remove: fence",  "remove: manifest", "remove: pool",
    "remove: files",
};

/// Every listed checkpoint restores to exactly its step's state, and the latest is not older than
/// `acknowledged`.
void CheckRepository(const std::string& directory, std::uint64_t seed, int ranks,
                     std::int64_t acknowledged) {
  CheckListed(directory, acknowledged, [&](CheckpointManager* manager, const CheckpointInfo& info) {
    for (int rank = 0; rank < ranks; ++rank) {
      JobState state;
      JobState expected;
      expected.Compute(seed, info.step, rank);
      auto restored = manager->Restore({.into = state.Targets(rank, ranks), .id = info.id});
      ASSERT_TRUE(restored.ok()) << info.path << ": " << restored.status().ToString();
      ASSERT_TRUE(state == expected) << info.path << " does not hold the state of its step";
    }
  });
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
    const pid_t pid =
        StartProcess("kill_writer", {directory, board.path().string(), std::to_string(record.seed),
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
      boards[rank]->bereft = false;
      pids[rank] =
          StartProcess("kill_writer", {directory, boards[rank].path().string(),
                                       std::to_string(seed), rank == victim ? target : "-",
                                       std::to_string(target.starts_with("open") ? 1 : 3),
                                       std::to_string(random() % 300), std::to_string(rank), "2"});
    }
    int exit_code = 0;
    ASSERT_TRUE(WaitKilled(pids[victim], &exit_code)) << exit_code << " aimed at " << target;
    ++hits[boards[victim]->step];
    boards[1 - victim]->bereft = true;
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

#include "tests/kill/campaign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <random>
#include <vector>

#include "checkpoint/manager.h"
#include "tests/kill/harness.h"

namespace cairn::kill {
namespace {

/// The protocol steps that a kill must hit. "idle" is no step.
const std::vector<std::string> kSteps = {
    "open: fence",
    "open: seal",
    "open: sweep",
    "save: plan",
    "save: snapshot",
    "save: claim",
    "save: write",
    "save: sync data",
    "save: sync names",
    "save: manifest",
    "save: fence",
    "acknowledge",
    "retention",
    "remove: note",
    "remove: fence",
    "remove: manifest",
    "remove: files",
    "compact open: seal",
    "compact save: claim",
    "compact save: write",
    "compact save: manifest",
    "compact save: fence",
    "compact remove: note",
    "compact remove: manifest",
    "compact remove: files",
};

bool LatestIsIncrement(const std::string& directory) {
  auto env = EnvironmentAt(directory, {.create = false});
  if (!env.ok()) return false;
  auto reader = OpenManager({.directory = directory, .read_only = true}, *env);
  if (!reader.ok()) return false;
  const auto latest = (*reader)->Latest();
  return latest.ok() && latest->has_value() && (*latest)->kind == "increment";
}

}  // namespace

void RunCampaign(const Campaign& campaign) {
  TempDir temp;
  Record record = Record::Load();
  std::mt19937_64 random(record.seed);
  const std::string directory = (temp.path() / "repository").string();
  MappedBoard board(temp.path() / "board");
  std::map<std::string, int> hits;
  const auto deadline = std::chrono::steady_clock::now() + TortureTime();
  const std::size_t least = campaign.rounds * kSteps.size();
  std::int64_t acknowledged = -1;
  int cycles = 0;
  std::size_t next = 0;
  for (; next < least || std::chrono::steady_clock::now() < deadline; ++cycles) {
    std::string target = kSteps[next % kSteps.size()];
    long count = 1;
    if (target.starts_with("compact") && !LatestIsIncrement(directory)) {
      target = "acknowledge";  // there is nothing to compact: the next save makes an increment
      count = 1 + static_cast<long>(random() % 2);
    } else {
      ++next;
      if (target.starts_with("save") || target.starts_with("re") || target == "acknowledge") {
        count += static_cast<long>(random() % 6);
      }
    }
    const bool compact = target.starts_with("compact");
    // The first round strikes the very beginning of each step, so that all are hit; the others
    // somewhere inside.
    const bool inside = next > kSteps.size() && random() % 4 != 0;
    const long delay = inside ? static_cast<long>(random() % 800) : 0;
    board->SetStep("start");
    const pid_t pid = StartProcess(
        campaign.writer, {directory, board.path().string(), std::to_string(record.seed), target,
                          std::to_string(count), std::to_string(delay), compact ? "1" : "0"});
    int exit_code = 0;
    ASSERT_TRUE(WaitKilled(pid, &exit_code))
        << "the writer ended by itself with code " << exit_code << " (aimed at " << target << ")";
    ++hits[board->step];
    ASSERT_LE(acknowledged, std::max(board->acknowledged, board->resumed));
    acknowledged = std::max(acknowledged, board->acknowledged);
    ASSERT_NO_FATAL_FAILURE(campaign.check(directory, record.seed, acknowledged))
        << "after " << cycles << " cycles, killed in step \"" << board->step << "\"";
  }
  record.cycles += cycles;
  record.Save();
  std::cout << cycles << " kills (" << record.cycles << " in all), acknowledged up to step "
            << acknowledged << "; the protocol step each one hit:\n";
  for (const auto& [step, count] : hits) std::cout << "  " << count << "\t" << step << "\n";
  for (const std::string& step : kSteps) EXPECT_GT(hits[step], 0) << "no kill hit " << step;
}

}  // namespace cairn::kill

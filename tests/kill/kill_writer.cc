// Saves without pause until it is killed:
//   kill_writer DIR BLACKBOARD SEED KILL_STEP KILL_COUNT KILL_DELAY_US [RANK RANKS]
// When the KILL_STEP-th protocol step has begun for the KILL_COUNT-th time, the process sends
// SIGKILL to itself KILL_DELAY_US later ("-": never). Exit codes: 0 never, 3 an error.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/manager.h"
#include "tests/kill/job_state.h"
#include "tests/kill/strike.h"

namespace {

using cairn::kill::Blackboard;
using cairn::kill::JobState;

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "kill_writer: %s\n", status.ToString().c_str());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 9) return 2;
  const std::string directory = argv[1];
  Blackboard* board = cairn::kill::MapBoard(argv[2]);
  if (board == nullptr) return 2;
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  cairn::kill::Strike strike(board, argv[4], std::atol(argv[5]), std::atol(argv[6]));
  const int rank = argc == 9 ? std::atoi(argv[7]) : 0;
  const int ranks = argc == 9 ? std::atoi(argv[8]) : 1;

  auto env = cairn::EnvironmentAt(directory, {.create = true});
  if (!env.ok()) return Fail(env.status());
  cairn::kill::BereftClock clock(board);
  env->clock = &clock;
  env->on_step = [&](std::string_view name) { strike.Begin(name); };
  cairn::ManagerOptions options;
  options.retention.keep_last = 2;
  options.retention.keep_every = 50;
  options.rank = rank;
  options.world_size = ranks;
  options.deadline = std::chrono::minutes(5);
  options.join_deadline = std::chrono::minutes(5);
  auto manager = cairn::OpenManager(options, *env);
  if (!manager.ok()) return Fail(manager.status());

  JobState state;
  auto restored = (*manager)->Restore({.into = state.Targets(rank, ranks)});
  if (!restored.ok()) return Fail(restored.status());
  std::int64_t next = 0;
  if (restored->has_value()) {
    JobState expected;
    expected.Compute(seed, (*restored)->step, rank);
    if (!(state == expected)) return Fail(cairn::CorruptionError("the restored state is wrong"));
    next = (*restored)->step + 1;
  }
  board->resumed = next - 1;
  for (std::int64_t step = next;; ++step) {
    state.Compute(seed, step, rank);
    auto saved = (*manager)->Save({.step = step, .tensors = state.Views(rank, ranks)});
    if (!saved.ok()) return Fail(saved.status());
    auto info = saved->Wait();
    if (!info.ok()) return Fail(info.status());
    board->acknowledged = step;
  }
}

// Saves without pause until it is killed:
//   kill_writer DIR BLACKBOARD SEED KILL_STEP KILL_COUNT KILL_DELAY_US [RANK RANKS]
// When the KILL_STEP-th protocol step has begun for the KILL_COUNT-th time, the process sends
// SIGKILL to itself KILL_DELAY_US later ("-": never). Exit codes: 0 never, 3 an error.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "checkpoint/manager.h"
#include "tests/kill/job_state.h"

namespace {

using cairn::kill::Blackboard;
using cairn::kill::JobState;

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "kill_writer: %s\n", status.ToString().c_str());
  return 3;
}

[[noreturn]] void KillSelf() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 9) return 2;
  const std::string directory = argv[1];
  const int fd = open(argv[2], O_RDWR);
  auto* board = static_cast<Blackboard*>(
      mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (fd < 0 || board == MAP_FAILED) return 2;
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  const std::string kill_step = argv[4];
  std::atomic<long> kill_count = std::atol(argv[5]);
  const long kill_delay_us = std::atol(argv[6]);
  const int rank = argc == 9 ? std::atoi(argv[7]) : 0;
  const int ranks = argc == 9 ? std::atoi(argv[8]) : 1;

  auto env = cairn::EnvironmentAt(directory, {.create = true});
  if (!env.ok()) return Fail(env.status());
  env->on_step = [&](std::string_view name) {
    board->SetStep(name);
    if (name != kill_step || kill_count.fetch_sub(1) != 1) return;
    if (kill_delay_us == 0) KillSelf();
    std::thread([kill_delay_us] {
      usleep(static_cast<useconds_t>(kill_delay_us));
      KillSelf();
    }).detach();
  };
  cairn::ManagerOptions options;
  options.retention.keep_last = 2;
  options.retention.keep_every = 50;
  options.rank = rank;
  options.world_size = ranks;
  options.deadline = std::chrono::seconds(2);
  options.join_deadline = std::chrono::seconds(5);
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

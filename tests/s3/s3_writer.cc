// Saves a state of several parts, and one that does not change, to a bucket until it is killed:
// s3_writer URL BLACKBOARD. Exit codes: 0 never, 3 an error.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "checkpoint/manager.h"
#include "tests/kill/job_state.h"
#include "tests/s3/large_state.h"

int main(int argc, char** argv) {
  using cairn::kill::Blackboard;
  if (argc != 3) return 2;
  const int fd = open(argv[2], O_RDWR);
  auto* board = static_cast<Blackboard*>(
      mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (fd < 0 || board == MAP_FAILED) return 2;
  const auto fail = [](const cairn::Status& status) {
    std::fprintf(stderr, "s3_writer: %s\n", status.ToString().c_str());
    return 3;
  };
  auto env = cairn::EnvironmentAt(argv[1], {.storage = {.part_bytes = 5u << 20}});
  if (!env.ok()) return fail(env.status());
  env->on_step = [board](std::string_view name) { board->SetStep(name); };
  cairn::ManagerOptions options;
  options.retention.keep_last = 2;
  auto manager = cairn::OpenManager(options, *env);
  if (!manager.ok()) return fail(manager.status());
  cairn::s3::LargeState state;
  auto restored = (*manager)->Restore({.into = state.Targets()});
  if (!restored.ok()) return fail(restored.status());
  std::int64_t step = restored->has_value() ? (*restored)->step + 1 : 0;
  board->resumed = step - 1;
  for (;; ++step) {
    state.Compute(step);
    auto handle = (*manager)->Save({.step = step, .tensors = state.Views()});
    if (!handle.ok()) return fail(handle.status());
    auto info = handle->Wait();
    if (!info.ok()) return fail(info.status());
    board->acknowledged = step;
  }
}

#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "tests/kill/job_state.h"

/// What programs that kill themselves share.
namespace cairn::kill {

/// The blackboard in that file, or null. Stays for the life of the process.
inline Blackboard* MapBoard(const char* path) {
  const int fd = open(path, O_RDWR);
  if (fd < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<Blackboard*>(mapped);
}

/// Sends SIGKILL to its own process when a protocol step has begun for the n-th time, some
/// microseconds later; tells the blackboard each step. For Environment::on_step.
class Strike {
 public:
  Strike(Blackboard* board, std::string step, long count, long delay_us)
      : board_(board), step_(std::move(step)), count_(count), delay_us_(delay_us) {}

  void Begin(std::string_view name) {
    const std::string step = prefix + std::string(name);
    board_->SetStep(step);
    if (step != step_ || count_.fetch_sub(1) != 1) return;
    if (delay_us_ == 0) Kill();
    std::thread([delay = delay_us_] {
      usleep(static_cast<useconds_t>(delay));
      Kill();
    }).detach();
  }

  std::string prefix;  // of the names of steps; set while nothing runs

 private:
  [[noreturn]] static void Kill() {
    ::kill(getpid(), SIGKILL);
    for (;;) pause();
  }

  Blackboard* const board_;
  const std::string step_;
  std::atomic<long> count_;
  const long delay_us_;
};

/// The machine's time until the test says that another rank has died. From then on a minute passes
/// with each sleep, so that whoever waits for it comes to its deadline, whenever it began to wait.
class BereftClock final : public Clock {
 public:
  explicit BereftClock(const Blackboard* board) : board_(board) {}
  Duration Now() override { return System()->Now() + Duration(ahead_); }
  std::int64_t WallNanos() override { return System()->WallNanos(); }
  void Sleep(Duration duration) override {
    System()->Sleep(duration);
    if (static_cast<const volatile Blackboard*>(board_)->bereft) {
      ahead_ += Duration(std::chrono::minutes(1)).count();
    }
  }

 private:
  const Blackboard* const board_;
  std::atomic<std::int64_t> ahead_{0};
};

}  // namespace cairn::kill

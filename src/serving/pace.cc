#include "serving/pace.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace cairn::serving {
namespace {

constexpr std::chrono::milliseconds kSlice{50};  // of a sleep, between looks whether it shall end

std::chrono::nanoseconds TimeOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

Pace::Options WithTime(Pace::Options options) {
  if (!options.used) options.used = Pace::ThreadTime;
  return options;
}

}  // namespace

std::chrono::nanoseconds Pace::ThreadTime() { return TimeOf(CLOCK_THREAD_CPUTIME_ID); }
std::chrono::nanoseconds Pace::ProcessTime() { return TimeOf(CLOCK_PROCESS_CPUTIME_ID); }

Pace::Pace(Options options)
    : options_(WithTime(std::move(options))),
      began_(options_.clock->Now()),
      used_before_(options_.used()) {}

void Pace::Pause() {
  if (options_.share >= 1) return;
  const std::chrono::nanoseconds used = options_.used() - used_before_ - options_.burst;
  const auto allowed_at = static_cast<double>(used.count()) / options_.share;
  const Clock::Duration until =
      began_ + std::chrono::nanoseconds(static_cast<std::int64_t>(allowed_at));
  for (Clock::Duration now = options_.clock->Now(); now < until; now = options_.clock->Now()) {
    if (options_.stopped && options_.stopped()) return;
    options_.clock->Sleep(std::min<Clock::Duration>(kSlice, until - now));
  }
}

void Pace::StandBehind() {
  constexpr int kNice = 5;
  // Of this thread alone: on Linux each has a value of its own. It may not be allowed to lower it.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace cairn::serving

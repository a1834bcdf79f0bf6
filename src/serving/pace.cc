#include "serving/pace.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace cairn::serving {
namespace {

std::chrono::nanoseconds ThreadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

Pace::Pace(Clock* clock, double share, std::chrono::nanoseconds burst)
    : clock_(clock),
      share_(share),
      burst_(burst),
      began_(clock->Now()),
      used_before_(ThreadTime()) {}

void Pace::Pause() {
  if (share_ >= 1) return;
  const auto used = static_cast<double>((ThreadTime() - used_before_).count());
  const auto passed = static_cast<double>((clock_->Now() - began_).count());
  const double over = used - static_cast<double>(burst_.count()) - share_ * passed;
  if (over <= 0) return;
  clock_->Sleep(std::chrono::nanoseconds(static_cast<std::int64_t>(over / share_)));
}

void Pace::StandBehind() {
  constexpr int kNice = 5;
  // Of this thread alone: on Linux each has a value of its own. It may not be allowed to lower it.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace cairn::serving

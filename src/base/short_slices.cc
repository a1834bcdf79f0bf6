#include "base/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace cairn {
namespace {

/// What the kernel calls sched_attr; its first version, which the C library of Debian 12 has not.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // of ordinary threads: the slice, in nanoseconds
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

constexpr std::uint64_t kShortestSlice = 100'000;  // that the kernel takes

}  // namespace

void PreferShortSlices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kShortestSlice;
  // A wish: whoever forbids it (a sandbox) has a slower disk beside a computation, and no error.
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace cairn

#pragma once

#include <cstdint>
#include <optional>

#include <cairn/status.h>

#include "checkpoint/environment.h"

namespace cairn {

/// How several trainers that got SIGTERM (in Python also SIGINT) end after the same step, without
/// talking to each other.
///
/// Trainer 0 chooses the step and publishes it in the repository before it goes on. It chooses a
/// second's worth of steps ahead, so that the signal has reached all by then. Trainers that need
/// each other's gradients cannot pass it: none completes the chosen step before trainer 0 takes
/// part in it, which is after the choice was published. Only trainers that got the signal look.
///
/// For one thread. A failure leaves the choice, if it was published, to the others.
class StopAgreement {
 public:
  StopAgreement(const Environment& env, std::uint64_t generation, bool chooses,
                Clock::Duration patience)
      : env_(env), generation_(generation), chooses_(chooses), patience_(patience) {}

  /// Called after each completed step once SIGTERM has come: was it the last? DeadlineExceeded:
  /// trainer 0 chose nothing; it did not get the signal.
  Result<bool> LastStep(std::int64_t global_step, double seconds_per_step);

 private:
  Status Choose(std::int64_t global_step, double seconds_per_step);
  Status Look();

  const Environment env_;
  const std::uint64_t generation_;
  const bool chooses_;
  const Clock::Duration patience_;
  std::optional<Clock::Duration> asked_;  // when the first call came
  std::optional<std::int64_t> last_step_;
};

}  // namespace cairn

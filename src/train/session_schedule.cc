#include "train/session_schedule.h"

#include <cmath>
#include <string>

#include "base/status_macros.h"

namespace cairn {

bool OutgrewBase(std::uint64_t rows, std::uint64_t changed) {
  // An increment that would hold most of a large table is no saving.
  constexpr std::uint64_t kLargeRows = 100'000;
  return rows >= kLargeRows && changed > rows / 2;
}

Result<SessionSchedule::Interval> SessionSchedule::MakeInterval(std::optional<double> secs,
                                                                std::optional<std::int64_t> steps,
                                                                const char* name) {
  constexpr double kLongest = 9e9;  // nanoseconds of it fit 64 bits
  if (secs && !(*secs >= 0 && *secs <= kLongest)) {
    return InvalidArgumentError(std::string(name) + "_secs is " + std::to_string(*secs) +
                                "; it must be a number of seconds, 0 switches it off");
  }
  if (steps && *steps < 0) {
    return InvalidArgumentError(std::string(name) + "_steps is " + std::to_string(*steps) +
                                "; it must not be negative, 0 switches it off");
  }
  Interval interval;
  if (secs && *secs > 0) interval.time = Nanos(static_cast<std::int64_t>(*secs * 1e9));
  if (steps && *steps > 0) interval.steps = *steps;
  return interval;
}

Result<SessionSchedule> SessionSchedule::Make(const SessionOptions& options) {
  SessionSchedule schedule;
  ASSIGN_OR_RETURN(schedule.full_, MakeInterval(options.save_checkpoint_secs,
                                                options.save_checkpoint_steps, "save_checkpoint"));
  ASSIGN_OR_RETURN(schedule.increment_, MakeInterval(options.save_incremental_checkpoint_secs,
                                                     options.save_incremental_checkpoint_steps,
                                                     "save_incremental_checkpoint"));
  return schedule;
}

void SessionSchedule::Start(Nanos now, std::int64_t step, std::int64_t full_step) {
  last_any_ = {now, step};
  last_full_ = {now, full_step};
}

void SessionSchedule::Start(Nanos now, std::int64_t step, const Age& full) {
  last_any_ = {now, step};
  last_full_ = {now - full.time, step - full.steps};
}

SessionSchedule::Age SessionSchedule::SinceFull(Nanos now, std::int64_t step) const {
  return {now - last_full_.time, step - last_full_.step};
}

bool SessionSchedule::Passed(const Interval& interval, const Moment& last, Nanos now,
                             std::int64_t step) {
  if (step <= last.step) return false;
  if (interval.time && now - last.time >= *interval.time) return true;
  return interval.steps && step - last.step >= *interval.steps;
}

SessionSchedule::Due SessionSchedule::Check(Nanos now, std::int64_t step) const {
  if (Passed(full_, last_full_, now, step)) return Due::kFull;
  return Passed(increment_, last_any_, now, step) ? Due::kIncrement : Due::kNothing;
}

void SessionSchedule::Saved(Due kind, Nanos now, std::int64_t step) {
  if (kind == Due::kNothing) return;
  last_any_ = {now, step};
  if (kind == Due::kFull) last_full_ = last_any_;
}

}  // namespace cairn

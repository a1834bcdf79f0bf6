#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <cairn/session.h>
#include <cairn/status.h>

namespace cairn {

/// Whether increments have outgrown their base: of many rows most have changed since. The next
/// checkpoint is a full one then.
bool OutgrewBase(std::uint64_t rows, std::uint64_t changed);

/// When a session saves a full checkpoint or an increment. Time is passed in; nothing is reset
/// unless something was saved. A copy from before a save that turns out to have failed takes its
/// place again.
class SessionSchedule {
 public:
  enum class Due : std::uint8_t { kNothing, kIncrement, kFull };
  using Nanos = std::chrono::nanoseconds;

  /// InvalidArgument, naming it, for an interval that is negative or not a number.
  static Result<SessionSchedule> Make(const SessionOptions& options);

  bool increments() const { return increment_.on(); }
  bool saves() const { return full_.on() || increment_.on(); }

  /// A session begins here, saved or restored; the full checkpoint that it stands on is of
  /// `full_step`.
  void Start(Nanos now, std::int64_t step, std::int64_t full_step);
  void Start(Nanos now, std::int64_t step) { Start(now, step, step); }
  /// How old the newest full checkpoint is, in time and in steps of training.
  struct Age {
    Nanos time{0};
    std::int64_t steps = 0;
    friend bool operator==(const Age&, const Age&) = default;
  };
  /// The same where that is known: neither a step nor a minute counts anew.
  void Start(Nanos now, std::int64_t step, const Age& full);
  Age SinceFull(Nanos now, std::int64_t step) const;
  /// Both are due: the full one.
  Due Check(Nanos now, std::int64_t step) const;
  void Saved(Due kind, Nanos now, std::int64_t step);

 private:
  struct Interval {
    std::optional<Nanos> time;
    std::optional<std::int64_t> steps;
    bool on() const { return time || steps; }
  };
  struct Moment {
    Nanos time{0};
    std::int64_t step = 0;
  };
  static Result<Interval> MakeInterval(std::optional<double> secs,
                                       std::optional<std::int64_t> steps, const char* name);
  static bool Passed(const Interval& interval, const Moment& last, Nanos now, std::int64_t step);

  Interval full_;
  Interval increment_;
  Moment last_full_;
  Moment last_any_;
};

}  // namespace cairn

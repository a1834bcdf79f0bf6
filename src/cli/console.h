#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>
#include <cairn/transfer.h>
#include <cairn/value.h>

#include "base/clock.h"

namespace cairn::cli {

/// What a command gives back; printed when it is over, whole or not at all.
struct Output {
  std::string text;  // for people
  Value json;        // for programs, with --json
  int exit_code = 0;
};

/// A line on standard error that shows how far long work is. It appears after a second, only on a
/// terminal, and goes away with the object. For one thread.
class ProgressBar {
 public:
  ProgressBar(std::string label, Clock* clock, bool enabled);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(std::uint64_t done, std::uint64_t total);
  /// Calls Update.
  Progress callback();
  void Clear();

 private:
  const std::string label_;
  Clock* const clock_;
  const bool enabled_;
  const Clock::Duration begun_;
  Clock::Duration drawn_{0};
  bool visible_ = false;
};

/// The process's terminal, clock and signals, as commands see them. One per process.
class Console {
 public:
  explicit Console(bool json);

  bool json() const { return json_; }
  Clock* clock() const { return clock_; }
  bool progress_enabled() const { return progress_; }

  /// A note for people while the command goes on (standard error; nothing with --json).
  void Note(std::string_view text) const;
  /// Asks on the terminal; FailedPrecondition when there is none.
  Result<bool> Ask(const std::string& question, const std::string& without_terminal) const;

  /// From here on SIGINT, SIGTERM and SIGHUP set interrupted() instead of ending the process at
  /// once; a second one ends it. Called before work that must be cleaned up.
  void CatchInterrupts();
  static bool interrupted();
  /// Ends the process by the signal that was caught, as the caller of a program expects; returns
  /// when there was none.
  static void EndByCaughtSignal();

  TransferControl Control(ProgressBar* bar) const;

 private:
  const bool json_;
  Clock* const clock_;
  const bool progress_;
};

}  // namespace cairn::cli

#pragma once

#include <cstdint>
#include <vector>

namespace cairn {

struct SignalWatchOptions {
  /// Numbers of signals. None: nothing is changed, and none comes.
  std::vector<int> signals;
  /// Who started this process and ignored a signal (a shell, for what runs in its background) means
  /// it for us too. False: it is watched all the same.
  bool leave_ignored = false;
  /// A SIGINT after so many of the signals ends the process as it always did. 0: none does.
  std::uint32_t sigint_ends_after = 0;
};

/// While an object of this class lives, its signals are counted and do nothing else. Several may
/// live at once, of the same or of other signals: each counts for itself, and a SIGINT ends the
/// process when that is allowed by all who watch it. Whichever goes last puts back what the first
/// one found. May be made, asked and destroyed in any thread.
class SignalWatch {
 public:
  explicit SignalWatch(const SignalWatchOptions& options);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// So many came since this object was made.
  std::uint32_t count() const;
  bool received() const { return count() > 0; }

  /// Of this object, as the signal handler sees it.
  struct Counter;

 private:
  Counter* const counter_;  // never destroyed: see the .cc
  const std::vector<int> installed_;
};

}  // namespace cairn

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <cairn/status.h>

namespace cairn {

/// Where a trial stands (docs/format/events.md).
enum class TrialState : std::uint8_t {
  kQueued,     // will get a run
  kStarting,   // has a run, which did not report ready yet
  kRunning,    // its run is ready
  kPausing,    // its run was asked to save and exit; afterwards PAUSED
  kPaused,     // waits for somebody to activate it
  kStopping,   // its run was asked to exit, or is being killed; afterwards CANCELED
  kCompleted,  // ended by itself
  kCanceled,   // ended by its user
  kError,      // failed more often than allowed
};
inline constexpr int kTrialStates = 9;

std::string_view TrialStateName(TrialState state);
std::optional<TrialState> TrialStateFromName(std::string_view name);
/// COMPLETED, CANCELED, ERROR.
bool IsEnded(TrialState state);

/// What happens to a trial.
enum class TrialInput : std::uint8_t {
  kActivate,     // a user: go on
  kPause,        // a user
  kCancel,       // a user: exit in good order
  kKill,         // a user: exit now
  kRunStarted,   // the engine: a new run
  kReady,        // the run: its first rank has joined
  kAcknowledge,  // the run: knows that it shall exit
  kSignalled,    // the engine: the run got SIGTERM, its time was over
  kExitSuccess,  // the run ended with 0
  kExitFailure,  // the run ended otherwise, or nobody knows how
  kStopped,      // the run ended before it began, or its launcher was closed: nobody's failure
};
inline constexpr int kTrialInputs = 11;

std::string_view TrialInputName(TrialInput input);

/// All that the state machine knows of a trial: the part of the fold that decides.
struct TrialCore {
  TrialState state = TrialState::kQueued;
  std::uint64_t run = 0;  // the newest; 0: none yet
  // Of the newest run.
  bool live = false;
  bool acknowledged = false;
  bool signalled = false;      // whatever way it ends now is our doing
  bool killed = false;         // a user asked for that
  bool requeue = false;        // activated again while it was pausing
  std::uint64_t restarts = 0;  // failures since it was last activated by a user
  std::uint64_t max_restarts = 5;
  /// Started by somebody else: nobody here can start it again, so what would be queued is paused.
  bool detached = false;

  friend bool operator==(const TrialCore&, const TrialCore&) = default;
};

/// The trial after the input; FailedPrecondition, saying why, when that cannot happen to it now. An
/// input that changes nothing (pause of a paused trial) is no error. A pure function.
Result<TrialCore> Next(const TrialCore& core, TrialInput input);

}  // namespace cairn

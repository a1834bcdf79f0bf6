#include "trial/trial_state.h"

#include <fmt/format.h>

#include <array>

namespace cairn {
namespace {

using S = TrialState;
using I = TrialInput;

constexpr std::array<std::string_view, kTrialStates> kStateNames = {
    "QUEUED",   "STARTING",  "RUNNING",  "PAUSING", "PAUSED",
    "STOPPING", "COMPLETED", "CANCELED", "ERROR"};
constexpr std::array<std::string_view, kTrialInputs> kInputNames = {
    "activate",    "pause",     "cancel",       "kill",         "run started", "ready",
    "acknowledge", "signalled", "exit success", "exit failure", "stopped"};

Status Refused(const TrialCore& core, TrialInput input) {
  return FailedPreconditionError(fmt::format("a trial that is {} cannot take \"{}\"",
                                             TrialStateName(core.state), TrialInputName(input)));
}

/// QUEUED, or where a trial waits that only somebody else can start.
TrialState Again(const TrialCore& core) { return core.detached ? S::kPaused : S::kQueued; }

Result<TrialCore> Activate(TrialCore core) {
  switch (core.state) {
    case S::kPaused:
    case S::kCompleted:
    case S::kCanceled:
    case S::kError:
      core.state = Again(core);
      core.restarts = 0;
      return core;
    case S::kPausing:
      core.requeue = true;
      return core;
    case S::kStopping:
      return Refused(core, I::kActivate);
    case S::kQueued:
    case S::kStarting:
    case S::kRunning:
      return core;
  }
  return Refused(core, I::kActivate);
}

Result<TrialCore> Pause(TrialCore core) {
  switch (core.state) {
    case S::kQueued:
      core.state = S::kPaused;
      return core;
    case S::kStarting:
    case S::kRunning:
      core.state = S::kPausing;
      return core;
    case S::kPausing:
      core.requeue = false;
      return core;
    case S::kPaused:
      return core;
    default:
      return Refused(core, I::kPause);
  }
}

Result<TrialCore> Cancel(TrialCore core, bool kill) {
  if (IsEnded(core.state)) return core;
  core.requeue = false;
  if (!core.live) {
    core.state = S::kCanceled;
    return core;
  }
  core.state = S::kStopping;
  if (kill) core.signalled = core.killed = true;
  return core;
}

Result<TrialCore> Exit(TrialCore core, TrialInput input) {
  if (!core.live) return Refused(core, input);
  core.live = false;
  const bool asked = core.state == S::kPausing || core.state == S::kStopping;
  const bool requeue = core.requeue;
  core.requeue = false;
  // Ended by itself: also when it was asked to exit at that moment and did not hear it.
  if (input == I::kExitSuccess && !core.acknowledged && !core.signalled) {
    core.state = S::kCompleted;
    return core;
  }
  if (input == I::kExitFailure && !core.signalled && core.state != S::kStopping) {
    if (++core.restarts > core.max_restarts && !core.detached) {
      core.state = S::kError;
      return core;
    }
  }
  if (core.state == S::kStopping) {
    core.state = S::kCanceled;
  } else if (asked && !requeue) {
    core.state = S::kPaused;
  } else {
    core.state = Again(core);
  }
  return core;
}

Result<TrialCore> OfRun(TrialCore core, TrialInput input) {
  if (!core.live) return Refused(core, input);
  const bool asked = core.state == S::kPausing || core.state == S::kStopping;
  switch (input) {
    case I::kReady:
      if (core.state == S::kStarting) core.state = S::kRunning;
      return core;
    case I::kAcknowledge:
      if (!asked) return Refused(core, input);
      core.acknowledged = true;
      return core;
    case I::kSignalled:
      if (!asked) return Refused(core, input);
      core.signalled = true;
      return core;
    default:
      return Refused(core, input);
  }
}

}  // namespace

std::string_view TrialStateName(TrialState state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

std::optional<TrialState> TrialStateFromName(std::string_view name) {
  for (std::size_t i = 0; i < kStateNames.size(); ++i) {
    if (kStateNames[i] == name) return static_cast<TrialState>(i);
  }
  return std::nullopt;
}

std::string_view TrialInputName(TrialInput input) {
  return kInputNames[static_cast<std::size_t>(input)];
}

bool IsEnded(TrialState state) {
  return state == S::kCompleted || state == S::kCanceled || state == S::kError;
}

Result<TrialCore> Next(const TrialCore& core, TrialInput input) {
  switch (input) {
    case I::kActivate:
      return Activate(core);
    case I::kPause:
      return Pause(core);
    case I::kCancel:
      return Cancel(core, false);
    case I::kKill:
      return Cancel(core, true);
    case I::kRunStarted: {
      // A detached process decides by itself when it joins, and replaces the run before.
      const bool joins = core.detached && core.state != S::kStopping;
      if ((core.state != S::kQueued && !joins) || (core.live && !joins)) {
        return Refused(core, input);
      }
      TrialCore next = core;
      next.state = S::kStarting;
      ++next.run;
      next.live = true;
      next.acknowledged = next.signalled = next.killed = next.requeue = false;
      return next;
    }
    case I::kReady:
    case I::kAcknowledge:
    case I::kSignalled:
      return OfRun(core, input);
    case I::kExitSuccess:
    case I::kExitFailure:
    case I::kStopped:
      return Exit(core, input);
  }
  return Refused(core, input);
}

}  // namespace cairn

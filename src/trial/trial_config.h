#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "launch/launcher.h"
#include "trial/retention_policy.h"

namespace cairn {

/// What a trial is: fixed when it is created, but for its retention.
struct TrialConfig {
  std::string experiment = "default";
  Value hparams = Value::Object{};
  /// The command of each rank; empty for detached trials.
  std::vector<std::string> argv;
  std::string cwd;
  std::map<std::string, std::string> env;
  /// Directory or URL; the trial's repository is <storage>/<experiment>/<trial>, unless that is
  /// another's (TrialRecord::directory). It and `cwd` may lie in the engine's data directory,
  /// wherever that is (InDataDirectory).
  std::string storage;
  int world_size = 1;
  int slots = 1;
  int priority = 0;
  /// Which launcher starts its runs ("": the engine's first), and what it asks for there.
  std::string launcher;
  std::map<std::string, std::string> resources;
  /// Of each process of a run, but for the wall time, which is the run's; recorded are those for
  /// memory, open files, niceness and time.
  LaunchLimits limits;
  std::uint64_t max_restarts = 5;
  /// From the request to pause or cancel until SIGTERM.
  std::chrono::milliseconds preemption_timeout = std::chrono::seconds(600);
  /// From SIGTERM to SIGKILL.
  std::chrono::milliseconds kill_grace = std::chrono::seconds(30);
  RetentionPolicy retention;
  bool detached = false;
  std::string external_id;  // of a detached trial: how its owner calls it
  /// The run goes on when the engine dies (master); otherwise it ends with it (tuner).
  bool outlive_engine = true;

  Status Validate() const;
};

Value ToValue(const TrialConfig& config);
/// InvalidArgument names the member. Unknown members are ignored.
Result<TrialConfig> TrialConfigFromValue(const Value& value);

/// A place inside the data directory of whoever records the trial, as it is recorded: the directory
/// can be moved or copied, and what is in it goes along.
std::string InDataDirectory(std::string_view name);
/// Where a recorded place is now; one that is not in the data directory is what it is.
std::string Located(std::string_view place, std::string_view data_directory);

/// 1–64 characters from A-Z a-z 0-9 . _ -, not starting with a point: safe as a directory's name.
bool IsTrialId(std::string_view id);

}  // namespace cairn

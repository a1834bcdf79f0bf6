#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn {

/// The records in a launch's directory (docs/format/launches.md): sealed JSON, each created once
/// and never changed. Decode gives Corruption for anything damaged or of another kind.

/// launch.json: what the shim is to start. The environment is not here: tokens are not kept at
/// rest.
struct LaunchRecord {
  std::string id;
  std::string key;  // a uuid; every process of the launch has it in its environment
  std::vector<std::string> argv;
  std::string cwd;
  std::int64_t processes = 1;
  std::string slots;  // "0,3"
  std::int64_t priority = 0;
  LaunchLimits limits;
  std::int64_t grace = 0;  // nanoseconds
  bool outlive_owner = true;
  std::int64_t submitted = 0;  // nanoseconds since 1970
  /// Where a cluster's scheduler runs it: the name of its job, which is no other's, and its place
  /// in an array of jobs (-1: none). Known before the job is submitted, so that a submission whose
  /// answer was lost is found again. "": on this machine.
  std::string job;
  std::int64_t job_index = -1;
  std::int64_t nodes = 1;  // machines that share the ranks evenly; more than 1 only with a job
  /// Of several nodes: the command that starts their shims (NodeLinks), where Slurm's srun does
  /// not. The shim that keeps the launch then has no ranks of its own.
  std::vector<std::string> starter;
};

/// keeper.json: who keeps the launch. A pid is meant only together with the instant at which its
/// process began and the boot of the machine.
struct KeeperRecord {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string boot;

  friend bool operator==(const KeeperRecord&, const KeeperRecord&) = default;
};

/// running.json: the ranks were started.
struct RunningRecord {
  std::vector<std::int64_t> pids;
  std::int64_t time = 0;
};

std::string Encode(const LaunchRecord& record);
std::string Encode(const KeeperRecord& record);
std::string Encode(const RunningRecord& record);
std::string Encode(const LaunchExit& record);  // exit.json

Result<LaunchRecord> DecodeLaunch(std::string_view bytes);
Result<KeeperRecord> DecodeKeeper(std::string_view bytes);
Result<RunningRecord> DecodeRunning(std::string_view bytes);
Result<LaunchExit> DecodeExit(std::string_view bytes);

/// "exited", "signaled", "not started", "time limit", "lost".
std::string_view ExitKindName(ExitKind kind);

}  // namespace cairn

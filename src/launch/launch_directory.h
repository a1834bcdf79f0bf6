#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "launch/launch_records.h"
#include "launch/launcher.h"
#include "launch/process_identity.h"

namespace cairn {

/// The variable by which every process of a launch is known, whatever became of its parents.
inline constexpr char kLaunchKeyVariable[] = "CAIRN_LAUNCH_KEY";

/// Directories of launches that are being removed: no launch is called so.
inline constexpr char kRemovedPrefix[] = ".removed-";

/// Beside all launches: what a launcher rewrites again and again while it lives.
inline constexpr char kOwnerBeat[] = ".owner";

/// The directory of one launch (docs/format/launches.md): the records, the log, the lock that the
/// shim holds while it lives, and the pipe through which it is told things. A value type; the
/// functions may be called by several processes.
class LaunchDirectory {
 public:
  explicit LaunchDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string log_path() const { return path_ + "/log"; }
  std::string chief_path() const { return path_ + "/chief"; }

  /// Makes the directory with launch.json and the control pipe. AlreadyExists.
  Status Create(const LaunchRecord& record) const;
  /// The same for a shim on another machine, which a pipe does not reach: commands go through a
  /// file, and so does the environment ("A=b" each), which the shim removes when it has read it.
  Status CreateShared(const LaunchRecord& record,
                      const std::vector<std::string>& environment) const;
  /// Removes it with everything in it: at once gone by its name. The caller holds the lock, or the
  /// launch has ended. What cannot be deleted now is left under a name with kRemovedPrefix.
  Status Remove() const;

  // NotFound when the record is not there; Corruption.
  Result<LaunchRecord> ReadLaunch() const;
  Result<KeeperRecord> ReadKeeper() const;
  Result<RunningRecord> ReadRunning() const;
  Result<LaunchExit> ReadExit() const;

  /// Create-only: AlreadyExists when the record is there.
  Status Publish(const KeeperRecord& record) const;
  Status Publish(const RunningRecord& record) const;
  /// Durable when it returns.
  Status Publish(const LaunchExit& record) const;

  /// Takes the lock, which ends with the descriptor or its process. Unavailable when another
  /// process holds it, after `patience`.
  Result<OwnedFd> Lock(Clock* clock, std::chrono::nanoseconds patience = {}) const;

  /// The control pipe. Opened for both directions, so that neither side waits for the other and
  /// what is written before the shim listens is not lost.
  Result<OwnedFd> OpenControl() const;
  /// Of CreateShared: the file to which commands are appended. One writer.
  Result<OwnedFd> OpenCommands() const;
  /// What was appended since `*offset`, which is moved on; empty when there is nothing.
  std::string ReadCommands(std::uint64_t* offset) const;
  /// Gives the environment of CreateShared and removes it. NotFound: that happened before.
  Result<std::vector<std::string>> TakeEnvironment() const;
  /// What the owner wrote last into the file beside all launches that says that it lives; it says
  /// something else each time.
  std::string ReadOwnerBeat() const;
  /// Makes the shim say again and again that it lives. Before it is started.
  Status AskForPulse() const;
  /// Says so, something else each time; nothing where nobody asks for it.
  void Pulse(std::uint64_t beat) const;
  /// What the shim said last; "": nothing.
  std::string ReadPulse() const;
  /// Makes this machine forget what it remembers of names in the directory that do not exist: on
  /// NFS a record that another machine has published may stay unseen for a minute otherwise.
  void Refresh() const;

  Result<LaunchLogPage> ReadLog(std::uint64_t offset, std::uint64_t max_bytes, bool ended) const;

 private:
  Result<std::string> ReadFile(const std::string& name) const;
  Status PublishFile(const std::string& name, std::string_view bytes, bool durable) const;

  std::string path_;
};

/// Opens (and makes) the file and locks it for as long as the descriptor lives. Unavailable when it
/// is still locked after `patience`. A process that was killed while it started another one leaves
/// its locks to that one until it becomes its program: whoever expects a lock to be free waits a
/// moment for it.
Result<OwnedFd> LockFile(const std::string& path, Clock* clock, std::chrono::nanoseconds patience);
inline constexpr std::chrono::seconds kLockPatience{2};

/// What the shim is told through the control pipe: one line each.
struct ControlCommand {
  enum class Kind : std::uint8_t { kSignal, kStop } kind = Kind::kSignal;
  int signal = 0;
  std::int64_t grace = 0;  // nanoseconds
};
std::string EncodeCommand(const ControlCommand& command);  // with newline
/// The line without newline; nullopt: not understood.
std::optional<ControlCommand> ParseCommand(std::string_view line);

}  // namespace cairn

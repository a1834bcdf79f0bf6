#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "storage/fs.h"
#include "storage/sim/fault_plan.h"

namespace cairn {

/// What FaultyFs counts. Operations of an IoQueue are counted when they are submitted.
enum class FsOpKind {
  kOpen,    // of a file that must be there
  kCreate,  // Open with `create`
  kRead,
  kWrite,
  kSync,
  kTruncate,
  kAllocate,
  kStat,
  kMakeDirectory,
  kRemoveDirectory,
  kUnlink,
  kLink,
  kRename,
  kList,
  kSyncDirectory,
  kFreeBytes,
  kLock,
};

/// How an operation fails. A failure that cannot happen to the operation it hits does not happen.
enum class FsFailure {
  kIoError,     // EIO: every operation. Nothing is done.
  kNoSpace,     // ENOSPC: what needs blocks: create, write, sync, truncate, allocate, mkdir, link,
                // rename, lock. Nothing is done.
  kShortWrite,  // a write: half of the bytes are written, then ENOSPC
  kFailedSync,  // kSync and kSyncDirectory: EIO
  kStatus,      // every operation, with the status given. Nothing is done.
};

struct FsFault {
  FsFailure failure = FsFailure::kIoError;
  FaultTrigger<FsOpKind> trigger;
  Status status;  // kStatus
};

/// A file system that fails, delays and counts: for sweeps that fail the 1st, 2nd, … operation.
///
///   FaultyFs fs(&inner);
///   Save(&fs);                                   // how many are there?
///   const std::uint64_t count = fs.operations();
///   for (std::uint64_t at = 0; at < count; ++at) { …; fs.Arm({.trigger = {.at = at}}); Save(&fs);
///   }
///
/// Failures of operations in an IoQueue come with the completion, as the kernel reports them. May
/// be used from several threads, like every Fs; which operation is the n-th is then a matter of
/// timing. Files and queues may not outlive it.
class FaultyFs final : public Fs {
 public:
  /// `inner` is borrowed.
  explicit FaultyFs(Fs* inner);
  ~FaultyFs() override;

  /// Sets the fault; operations are counted from 0 again.
  void Arm(FsFault fault);
  void Disarm();
  /// Every operation first sleeps as long as `delay` says for its kind.
  void SetDelay(Clock* clock, FaultPlan<FsOpKind>::Delay delay);
  /// Called with the inner file of every Sync that is made to fail, before it returns: over SimFs,
  /// SimFs::DropUnsynced does what the kernel does, which forgets the bytes.
  void OnFailedSync(std::function<void(FsFile* inner)> hook);

  /// Operations since the last Arm, or since the beginning.
  std::uint64_t operations() const;
  std::uint64_t operations(FsOpKind kind) const;
  /// How many were made to fail.
  std::uint64_t failures() const;

  Result<std::unique_ptr<FsFile>> Open(const std::string& path, OpenMode mode) override;
  Result<std::unique_ptr<IoQueue>> NewQueue(int depth) override;
  Status MakeDirectory(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Status Unlink(const std::string& path) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<FsStat> Stat(const std::string& path) override;
  Result<std::vector<FsEntry>> List(const std::string& path) override;
  Status SyncDirectory(const std::string& path, std::string_view why) override;
  Result<std::uint64_t> FreeBytes(const std::string& path) override;
  Result<std::unique_ptr<FsLock>> TryLock(const std::string& path) override;
  bool IsUnused(const std::string& path) override;
  bool IsNetwork(const std::string& path) override;
  /// Not counted: what is done to the memory is none of the operations.
  Result<std::unique_ptr<FsMapping>> Map(const std::string& path, std::uint64_t bytes) override;
  std::string_view Boot() override;

 private:
  class Faults;
  class File;
  class Queue;

  Fs* const inner_;
  const std::unique_ptr<Faults> faults_;
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/fs.h"
#include "storage/sim/sim_op.h"

namespace cairn {

class SimDisk;
struct SimImage;

/// What a power loss leaves of the changes that were not synced. What was synced always stays.
enum class CrashMode {
  kForget,  // nothing
  kKeep,    // everything
  kSubset,  // some: for each file and each directory none, all, the first few, or each by a coin
  kTorn,    // as kSubset, and a write that stays may be torn: the first sectors of it, any of its
            // sectors, or only the size it gave the file; sectors are 512 B or 4 KiB
};

/// A POSIX file system in memory that knows which of its changes a crash may forget.
///
/// The model. A file's bytes and a directory's entries are two things. FsFile::Sync makes the bytes
/// and the size of the inode durable, and no name; SyncDirectory makes the entries of that
/// directory durable, and neither bytes nor the directory's own entry in its parent. Every other
/// change waits in the inode's list of pending changes in the order it was made. A rename inside a
/// directory is one change (old or new, never both or none); one between directories is a change of
/// each, which a crash may keep or forget by itself. A sync covers the writes of an IoQueue only
/// when their completion was returned before; a sync in an IoQueue is done when its own completion
/// is returned. An inode lives as long as any durable, pending or
/// live name or an open handle refers to it.
///
/// Deterministic: List is sorted, inode numbers come from a counter, nothing depends on time. May
/// be used from several threads, like every Fs. Handles, queues and locks may outlive the SimFs. A
/// failed operation changes nothing.
class SimFs final : public Fs {
 public:
  struct Options {
    bool hard_links = true;               // false: Link is Unimplemented
    std::uint64_t max_links = 65000;      // of one inode; more is ResourceExhausted, as EMLINK
    bool direct = true;                   // false: O_DIRECT is refused, as tmpfs did
    std::size_t direct_alignment = 4096;  // of offset, length and address of direct I/O
    bool locks = true;                    // false: TryLock is Unimplemented
    bool network = false;                 // what IsNetwork says
    std::uint64_t capacity = std::uint64_t{1} << 40;  // bytes of all files; beyond it ENOSPC
    std::optional<std::uint64_t> queue_seed;  // completions of an IoQueue in a seeded random order
                                              // instead of the order of submission
  };

  SimFs();
  explicit SimFs(Options options);
  ~SimFs() override;

  /// Called before every operation that may change the disk, on the calling thread and without any
  /// lock of the file system: the hook may take snapshots, use the file system (which calls the
  /// hook again) or block. An operation that then fails or finds nothing to do was announced too.
  using Hook = std::function<void(const SimOp&)>;
  void SetHook(Hook hook);

  /// The disk as it is now. Cheap: later writes copy what they change.
  std::shared_ptr<const SimImage> Snapshot() const;
  /// The disk after a power loss at the image's instant. All that survived is durable.
  static std::unique_ptr<SimFs> FromCrash(const SimImage& image, CrashMode mode,
                                          std::uint64_t seed);
  /// The disk after every process was killed while the machine went on: the live view, with what
  /// was not synced still pending.
  static std::unique_ptr<SimFs> FromKill(const SimImage& image);

  /// Syncs for which `predicate` (called without locks) says true return OK and do nothing.
  using SyncPredicate = std::function<bool(const SimSync&)>;
  void IgnoreSyncs(SyncPredicate predicate);
  /// The distinct syncs seen so far, ignored ones too, with normalised paths; sorted.
  std::vector<SimSync> SyncLog() const;

  /// What the kernel does after a failed fsync: the file's pending changes will never reach the
  /// disk, although they are still read back and a later Sync says OK. `file` is one of this SimFs.
  Status DropUnsynced(FsFile* file);

  void SetCapacity(std::uint64_t bytes);

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

 private:
  class File;
  class Queue;
  class Lock;

  explicit SimFs(SimImage image);

  std::shared_ptr<SimDisk> disk_;  // shared with handles, queues and locks, which may outlive us
};

}  // namespace cairn

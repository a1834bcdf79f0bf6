#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/sim/sim_fs.h"
#include "storage/sim/sim_image.h"

namespace cairn {

/// The state behind a SimFs, shared with its handles. Names found and changed by path; open files
/// by inode number. One lock over all of it, never held while the hook or the predicate runs.
class SimDisk {
 public:
  explicit SimDisk(SimImage image);
  void SetHook(SimFs::Hook hook);
  void Announce(const SimOp& op) EXCLUDES(mu_);
  std::shared_ptr<const SimImage> Snapshot();
  void IgnoreSyncs(SimFs::SyncPredicate predicate);
  std::vector<SimSync> SyncLog();
  void SetCapacity(std::uint64_t bytes);
  SimFs::Options options();

  // --- by path ---

  /// Opens and counts a handle; the inode's number.
  Result<std::uint64_t> Open(const std::string& path, OpenMode mode);
  void CloseHandle(std::uint64_t number);
  Status MakeDirectory(const std::string& path);
  Status RemoveDirectory(const std::string& path);
  Status Unlink(const std::string& path);
  Status Link(const std::string& from, const std::string& to);
  Status Rename(const std::string& from, const std::string& to);
  Result<FsStat> Stat(const std::string& path);
  Result<std::vector<FsEntry>> List(const std::string& path);
  /// A sync that was asked for: what it makes durable when it is done.
  struct AskedSync {
    SimSync::Kind kind = SimSync::Kind::kFile;
    std::string path;
    std::string why;
    std::uint64_t inode = 0;
    std::set<std::uint64_t> changes;  // ids of those pending when it was asked for
  };
  Result<AskedSync> AskSyncDirectory(const std::string& path, std::string_view why);
  Status SyncDirectory(const std::string& path, std::string_view why);
  Result<std::uint64_t> FreeBytes(const std::string& path);

  /// Marks an inode that was opened before as locked.
  Status TakeLock(std::uint64_t number, const std::string& path);
  void ReleaseLock(std::uint64_t number);
  bool IsUnused(const std::string& path);

  // --- by inode, of an open handle ---

  std::size_t Read(std::uint64_t number, std::uint64_t offset, std::span<std::byte> into);

  /// The id of the pending write, for a queue that leaves it in flight until it is reaped; 0 for
  /// one without bytes.
  Result<std::uint64_t> Write(std::uint64_t number, const std::string& path, std::uint64_t offset,
                              std::span<const std::byte> bytes, bool in_flight);
  void Completed(std::uint64_t write);
  Status Truncate(std::uint64_t number, const std::string& path, std::uint64_t bytes);
  Status Allocate(std::uint64_t number, const std::string& path, std::uint64_t bytes);
  Result<FsStat> StatHandle(std::uint64_t number);
  /// Writes of a queue that were not reaped are not among what it covers.
  AskedSync AskSync(std::uint64_t number, const std::string& path, std::string_view why);
  Status Sync(std::uint64_t number, const std::string& path, std::string_view why);
  /// Makes durable what was asked for.
  void Do(const AskedSync& sync) EXCLUDES(mu_);
  Status DropUnsynced(std::uint64_t number);

 private:
  /// Where a path leads. `inode` is 0 when the name is free; `name` is empty for the root.
  struct Place {
    std::uint64_t parent = 0;
    std::string name;
    std::uint64_t inode = 0;
  };
  Result<Place> Find(std::string_view op, const std::string& path) REQUIRES(mu_);
  const SimInode& Get(std::uint64_t number) REQUIRES(mu_);
  SimInode& Mutable(std::uint64_t number) REQUIRES(mu_);
  std::uint64_t AddInode(bool is_directory) REQUIRES(mu_);
  static FsStat StatOf(const SimInode& inode);
  void AddLink(std::uint64_t number) REQUIRES(mu_);
  void DropLink(std::uint64_t number) REQUIRES(mu_);
  void SetEntry(std::uint64_t directory, const std::string& name, std::uint64_t number)
      REQUIRES(mu_);
  void RemoveEntry(std::uint64_t directory, const std::string& name) REQUIRES(mu_);
  void MoveEntry(std::uint64_t directory, const std::string& from, const std::string& to,
                 std::uint64_t number) REQUIRES(mu_);
  void Apply(SimInode* directory, SimPendingEntry entry) REQUIRES(mu_);

  /// Whether directory `inside` is `outer` or lies below it.
  bool Contains(std::uint64_t outer, std::uint64_t inside) REQUIRES(mu_);

  /// Charges the file for a size of `bytes`, or ResourceExhausted.
  Status Reserve(std::uint64_t number, std::string_view op, const std::string& path,
                 std::uint64_t bytes, bool allocate = false) REQUIRES(mu_);

  /// The growth was reserved before.
  void DoTruncate(std::uint64_t number, std::uint64_t bytes) REQUIRES(mu_);

  /// Logs the sync; true when it is to be ignored.
  bool NoteSync(SimSync::Kind kind, std::string_view why, const std::string& path) EXCLUDES(mu_);

  /// Frees inodes that no live, durable or pending name reaches and nobody has open.
  void CollectWhenMany() REQUIRES(mu_);

  static constexpr std::size_t kCollectStep = 256;

  Mutex mu_;
  SimImage image_ GUARDED_BY(mu_);
  std::uint64_t epoch_ GUARDED_BY(mu_);  // inodes of others are shared with an image
  std::uint64_t used_ GUARDED_BY(mu_) = 0;
  std::uint64_t last_change_ GUARDED_BY(mu_) = 0;
  std::size_t collect_at_ GUARDED_BY(mu_) = kCollectStep;
  std::map<std::uint64_t, int> open_ GUARDED_BY(mu_);  // handles per inode
  std::set<std::uint64_t> locked_ GUARDED_BY(mu_);
  std::set<std::uint64_t> in_flight_ GUARDED_BY(mu_);  // writes that no sync covers yet
  std::set<SimSync> sync_log_ GUARDED_BY(mu_);
  std::shared_ptr<const SimFs::Hook> hook_ GUARDED_BY(mu_);  // shared with calls under way
  std::shared_ptr<const SimFs::SyncPredicate> ignore_ GUARDED_BY(mu_);
};

}  // namespace cairn

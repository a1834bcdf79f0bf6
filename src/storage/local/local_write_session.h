#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "storage/fs.h"
#include "storage/local/aligned_buffer.h"
#include "storage/local/dirty_directories.h"
#include "storage/local/write_trial.h"
#include "storage/store.h"

namespace cairn {

class LocalStore;

/// Writes files of a local store. For one thread at a time.
///
/// A file's blocks are reserved when it is opened and its size is set, because direct writes that
/// make a file longer are done one at a time by the kernel. Parts go out with O_DIRECT straight
/// from the caller's memory, or through an aligned copy when address or length is odd; the last
/// part is written up to the next 4 KiB and the file cut to its size before its sync. The sync of a
/// closed file is queued like its parts, and runs while the next file is written. Those of names
/// and of a prepared object go the same way: a journal makes many syncs durable in one go, but only
/// those that are asked for at the same time.
///
/// Where O_DIRECT is refused, or is the slower way, parts go through the page cache, which is
/// written back and emptied behind them.
///
/// A file that is resumed is what a session left under its name, with holes or old bytes where a
/// part had not arrived: parts are read back for the caller to judge.
///
/// After an error nothing is in flight any more and every call returns that error; the files that
/// were opened are still there, and the caller deletes them.
class LocalWriteSession final : public WriteSession {
 public:
  static constexpr int kSyncsInFlight = 8;

  /// `queue` has room for the store's queue_depth parts and kSyncsInFlight syncs.
  LocalWriteSession(LocalStore* store, WriteMode mode, std::unique_ptr<IoQueue> queue);
  ~LocalWriteSession() override;
  LocalWriteSession(const LocalWriteSession&) = delete;
  LocalWriteSession& operator=(const LocalWriteSession&) = delete;

  std::size_t part_bytes() const override;
  ObjectParts PartsOf(std::uint64_t bytes) const override;
  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override;
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override;
  Status Close(std::uint32_t object) override;
  Result<std::uint64_t> WaitPart() override;
  Status Drain() override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Result<std::unique_ptr<PreparedObject>> Prepare(const std::string& name,
                                                  std::string_view bytes) override;
  Result<bool> ReadLeft(std::uint32_t object, std::span<std::byte> into) override;
  Result<bool> KeepLeft(std::uint32_t object, std::span<const std::byte> part) override;

 private:
  struct Object {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t appended = 0;
    std::unique_ptr<FsFile> buffered;
    std::unique_ptr<FsFile> direct;  // null: all parts go through the page cache
    int writes = 0;                  // in flight
    bool reused = false;
    bool cached = false;  // has pages in the cache
    bool closed = false;
    std::uint64_t left_bytes = 0;  // of a file that is resumed
    int parts_missing = 0;         // in a row, before the next part
    bool read_back = false;        // the next part
    std::string_view why = "data file";
    std::shared_ptr<bool> durable;  // of a prepared object: who creates it looks here
  };
  /// A directory whose names are to be durable.
  struct Names {
    DirtyDirectories::Marked marked;
    std::string why;
  };
  /// What a sync is for: an object, or names.
  struct SyncTarget {
    bool names = false;
    std::size_t index = 0;
  };
  /// An operation in flight, addressed by the queue's tag.
  struct Transfer {
    std::uint32_t object = 0;
    std::optional<SyncTarget> sync;
    bool direct = false;
    bool reported = false;  // the tag was given back already
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
    std::optional<AlignedBuffer> copy;
  };
  struct CachedRange {
    std::uint32_t object = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  Result<std::uint32_t> OpenUnchecked(const std::string& name, const NewObject& object);
  /// The pool's file under its new name, or null when it is not there (any more) or not ours alone.
  Result<std::unique_ptr<FsFile>> TakeFromPool(const std::string& name, const std::string& reuse);
  /// The file that a session left under the name, or null when it is not there.
  Result<std::unique_ptr<FsFile>> TakeUnfinished(const std::string& name, std::uint64_t* bytes);
  Status Reserve(Object* object);
  Result<bool> ReadLeftUnchecked(std::uint32_t id, std::span<std::byte> into);
  Status AppendUnchecked(std::uint32_t id, std::span<const std::byte> part, std::uint64_t tag);
  Status WriteOddEnd(std::uint32_t id, std::uint64_t offset, std::span<const std::byte> bytes);
  Status SubmitPart(Transfer transfer);
  /// Makes `transfer` write an aligned copy of its bytes.
  Status CopyPart(Transfer* transfer);
  Status CloseUnchecked(std::uint32_t id);
  /// Submits the sync of closed objects whose parts are written, as far as there is room.
  Status SubmitSyncs();
  Status SubmitSync(SyncTarget target, std::size_t slot);
  /// Waits for one operation and does what follows from it.
  Status Reap();
  Status PartDone(Transfer transfer, Status status);
  Status SyncDone(SyncTarget target, Status status);
  Status NamesSynced(const Names& names, Status status);
  void CacheWritten(std::uint32_t id, std::uint64_t offset, std::uint64_t bytes);
  Status WaitForParts();

  bool UseDirect(const Object& object) const;
  Status MaybeBeginTrial(const Object& object);
  Status TrialPartSubmitted(std::uint32_t id, std::uint64_t bytes);

  /// Remembers the error for all later calls, and waits for what is in flight: after an error the
  /// caller's memory is its own again.
  Status Condemn(Status status);

  LocalStore* const store_;
  const WriteMode mode_;
  Status condemned_;
  std::vector<Object> objects_;
  std::vector<Names> names_;
  std::deque<SyncTarget> to_sync_;     // objects closed and all parts written; names
  std::size_t unsynced_ = 0;           // closed objects and names whose sync has not ended
  std::deque<std::uint64_t> written_;  // tags to be given back by WaitPart
  std::deque<CachedRange> cache_;      // written back, not dropped yet; oldest first
  std::uint64_t cache_bytes_ = 0;
  std::uint64_t announced_bytes_ = 0;
  std::optional<WriteTrial> trial_;
  std::vector<std::uint32_t> trial_objects_;  // that the current stretch wrote to

  std::vector<AlignedBuffer> spare_copies_;
  std::vector<Transfer> transfers_;
  std::vector<std::size_t> free_transfers_;
  int parts_in_flight_ = 0;
  int syncs_in_flight_ = 0;
  std::unique_ptr<IoQueue> queue_;  // last, so that it is destroyed first: it waits
};

}  // namespace cairn

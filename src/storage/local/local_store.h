#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "storage/adopting_store.h"
#include "storage/append_object.h"
#include "storage/fs.h"
#include "storage/local/dirty_directories.h"
#include "storage/local/object_path.h"
#include "storage/local/tailed_object.h"
#include "storage/store.h"

namespace cairn {

/// How bulk reads reach the disk.
enum class ReadMode {
  kAuto,      // direct for aligned ranges of 1 MiB and more where the file system allows it
  kDirect,    // direct for every aligned range
  kBuffered,  // always through the page cache
};

struct LocalStoreOptions {
  /// The store's directory.
  std::string root;
  /// Where the files are. Borrowed.
  Fs* fs = nullptr;
  /// Names of temporary files. Borrowed.
  IdSource* ids = IdSource::System();
  /// For WriteMode::kAuto, which times both ways of writing. Borrowed.
  Clock* clock = Clock::System();
  /// Make the root and the directories above it when missing; otherwise a missing root is NotFound.
  bool create = true;
  /// Fixes the way of writing for sessions that ask for kAuto.
  WriteMode write_mode = WriteMode::kAuto;
  ReadMode read_mode = ReadMode::kAuto;
  /// Size of a write session's parts, a multiple of 4 KiB. Larger parts cost memory (queue_depth of
  /// them are in flight), smaller ones throughput.
  std::size_t part_bytes = 4u << 20;
  /// Parts in flight in a write session. Enough that the disk has work while the thread that hands
  /// them over waits for a processor; they are the caller's memory, or copies of odd parts.
  int queue_depth = 16;
  /// Objects smaller than this are written through the page cache: not worth a second descriptor.
  std::uint64_t direct_from_bytes = 1u << 20;
  /// WriteMode::kAuto compares both ways in the first session that announced so many bytes …
  std::uint64_t trial_from_bytes = 256u << 20;
  /// … on four stretches of so many bytes each: direct, buffered, buffered, direct.
  std::uint64_t trial_stretch_bytes = 32u << 20;

  Status Validate() const;
};

/// A directory of a local or network file system as a Store.
///
/// It touches the disk through Fs only. Objects are files of the same names; what Create and Put
/// are writing has the name ".cairn-tmp-<uuid>" beside its destination until it is whole.
///
/// May be called from several threads, and several processes may use one directory. A failed call
/// leaves at most a temporary file behind, which is never listed and which PruneDirectories
/// removes, once nobody has it open, together with an otherwise empty directory.
class LocalStore final : public Store, public AppendingStore, public AdoptingStore {
 public:
  using Options = LocalStoreOptions;

  static Result<std::unique_ptr<LocalStore>> Open(Options options);

  std::string Describe() const override { return options_.root; }
  StoreTraits traits() const override;

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash crash) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override;
  Result<ObjectInfo> Stat(const std::string& name) override;
  Result<Listing> List(const std::string& prefix) override;
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Status SyncDirectory(const std::string& directory, std::string_view why) override;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override;
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Adopt(const std::string& from, const std::string& to) override;
  Result<std::uint64_t> LinkCount(const std::string& name) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override;
  Result<std::optional<std::uint64_t>> FreeBytes() override;
  Status Refresh(const std::string& prefix) override;
  Result<std::unique_ptr<AppendObject>> OpenAppend(const std::string& name) override;
  Result<std::unique_ptr<AppendObject>> OpenTailed(const std::string& name,
                                                   const std::string& tail) override;
  Status RecoverTail(const std::string& tail) override;

  /// What kAuto has chosen, or kAuto while nothing was measured.
  WriteMode chosen_write_mode() const { return chosen_write_mode_.load(); }

 private:
  friend class LocalPreparedObject;
  friend class LocalWriteSession;

  static constexpr int kDirectoryAttempts = 8;
  static bool IsNotFound(const Status& status) { return status.Is(Code::kNotFound); }
  template <typename T>
  static bool IsNotFound(const Result<T>& result) {
    return result.status().Is(Code::kNotFound);
  }

  explicit LocalStore(Options options)
      : options_(std::move(options)), directories_(options_.fs, options_.root) {}

  std::string PathOf(std::string_view name) const;
  /// The tail of that name, which stays open.
  Result<std::shared_ptr<AppendTail>> TailAt(const std::string& name) EXCLUDES(tails_mu_);
  /// Makes the missing directories from the root down to `directory`.
  Status MakeDirectories(std::string_view directory);
  /// Runs `operation`, which needs the directory of `name`; when it fails with NotFound, makes the
  /// directory and runs it again, a few times: another process may prune it in between.
  template <typename Operation>
  auto InDirectoryOf(std::string_view name, Operation operation) -> decltype(operation()) {
    auto result = operation();
    if (ParentOf(name).empty()) return result;
    for (int i = 0; i < kDirectoryAttempts && IsNotFound(result); ++i) {
      Status made = MakeDirectories(ParentOf(name));
      if (!made.ok() && !made.Is(Code::kNotFound)) return made;
      result = operation();
    }
    return result;
  }
  /// A file beside an object's final name. It stays open until the object has its name,
  /// which tells PruneDirectories in any process that it is not what a crash left.
  struct Temporary {
    std::string name;
    std::unique_ptr<FsFile> file;
  };
  static constexpr std::string_view kRecordBytes = "record bytes";
  /// `why` "": the bytes need not be durable.
  Result<Temporary> WriteTemporary(const std::string& name, std::string_view bytes,
                                   std::string_view why);
  /// What Create syncs.
  struct Syncs {
    bool bytes = true;
    bool name = true;
  };
  Status CreateNew(const std::string& name, std::string_view bytes, Syncs syncs);
  Status CreateOnce(const std::string& name, std::string_view bytes, Syncs syncs);
  /// The rest of it: from the temporary name to the final one, and what makes that durable.
  Status NameTemporary(const Temporary& temporary, const std::string& name, bool durable);
  void RemoveTemporary(const std::string& temporary);
  /// NotFound instead of `status` when `name` is a directory or leads through a file: on other
  /// stores such a name is simply not there.
  Status Absence(const std::string& name, Status status);
  Result<bool> PruneDirectory(const std::string& directory);

  /// Opens `name` with O_DIRECT beside an ordinary descriptor; null where it is refused.
  Result<std::unique_ptr<FsFile>> OpenDirect(const std::string& name, bool write);

  const Options options_;
  bool network_ = false;
  DirtyDirectories directories_;
  // Found out by trying. Only ever change from true to false.
  std::atomic<bool> hard_links_{true};
  std::atomic<bool> locks_{true};
  std::atomic<bool> direct_io_{true};
  std::atomic<WriteMode> chosen_write_mode_{WriteMode::kAuto};
  std::atomic<bool> trial_taken_{false};  // by the one session that compares the ways of writing
  Mutex tails_mu_;
  // By name. Shared: with the objects that have them.
  std::map<std::string, std::shared_ptr<AppendTail>> tails_ GUARDED_BY(tails_mu_);
};

/// The directory as a store of the process's real file system.
Result<std::unique_ptr<Store>> OpenLocalStore(const std::string& path, bool create = true);

}  // namespace cairn

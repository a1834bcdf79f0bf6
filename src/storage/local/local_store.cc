#include "storage/local/local_store.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "storage/local/local_reader.h"
#include "storage/local/local_write_session.h"
#include "storage/local/object_path.h"
#include "storage/local/posix_fs.h"

namespace cairn {
namespace {

constexpr std::size_t kBlock = 4096;

bool IsTemporary(std::string_view component) { return component.starts_with(kTemporaryPrefix); }

class LocalLock final : public StoreLock {
 public:
  explicit LocalLock(std::unique_ptr<FsLock> lock) : lock_(std::move(lock)) {}
  void Renew() override { lock_->Renew(); }

 private:
  std::unique_ptr<FsLock> lock_;
};

class LocalAppendObject final : public AppendObject {
 public:
  LocalAppendObject(std::unique_ptr<FsFile> file, std::uint64_t bytes)
      : file_(std::move(file)),
        bytes_(bytes),
        begun_(bytes),
        reserved_(bytes),
        started_(bytes),
        dropped_(bytes) {}
  ~LocalAppendObject() override {
    // Blocks that were reserved and not needed; the size stays.
    if (reserved_ > bytes_ && Condemned().ok()) {
      file_->Truncate(bytes_).IgnoreError("they go with the object otherwise");
    }
  }

  std::uint64_t bytes() const override { return bytes_; }
  Status Append(std::string_view bytes) override {
    RETURN_IF_ERROR(Condemned());
    const std::uint64_t at = bytes_;
    ReserveFor(at + bytes.size());
    const Status written = file_->WriteAt(at, std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (!written.ok()) return Condemn(written);
    bytes_ = at + bytes.size();
    // A sync that comes seldom would otherwise find everything still to be written. The last page
    // may yet grow.
    const std::uint64_t whole = WholePages();
    if (whole >= started_ + kAtOnce) {
      file_->StartWriteback(started_, whole - started_);
      started_ = whole;
    }
    return Status::Ok();
  }
  Status Sync(std::string_view why) override EXCLUDES(syncing_) {
    // One after the other: the kernel tells an open file of a failed write-back only once.
    const MutexLock one(&syncing_);
    RETURN_IF_ERROR(Condemned());
    const std::uint64_t whole = WholePages();
    const Status synced = file_->Sync(why);
    if (!synced.ok()) return Condemn(synced);
    // What grows this fast is read again only after a death, if ever. Its pages serve the next
    // bytes sooner than memory that nobody used for long.
    if (whole >= dropped_ + kAtOnce) {
      file_->DropCache(dropped_, whole - dropped_);
      dropped_ = whole;
    }
    return Status::Ok();
  }

 private:
  static constexpr std::uint64_t kAtOnce = 8 << 20;
  static constexpr std::uint64_t kGrowsFast = 1 << 20;

  /// What grows fast gets its blocks many at a time, which costs each append less.
  void ReserveFor(std::uint64_t end) {
    if (!reserves_ || end <= reserved_ || end - begun_ < kGrowsFast) return;
    reserves_ = file_->Allocate(end + kAtOnce).ok();  // no matter why not: it is only sooner
    reserved_ = end + kAtOnce;
  }
  std::uint64_t WholePages() const { return bytes_ & ~std::uint64_t{kBlock - 1}; }
  Status Condemned() EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    return condemned_;
  }
  /// The first error stays.
  Status Condemn(const Status& why) EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    if (condemned_.ok()) condemned_ = why;
    return condemned_;
  }

  const std::unique_ptr<FsFile> file_;
  std::atomic<std::uint64_t> bytes_;  // grows in Append alone
  // Of Append.
  const std::uint64_t begun_;  // bytes when it was opened
  bool reserves_ = true;       // it can
  std::uint64_t reserved_;     // up to here there are blocks
  std::uint64_t started_;      // up to here the disk was told to write
  Mutex syncing_;
  std::uint64_t dropped_ GUARDED_BY(syncing_);  // up to here the kernel's copies were given up
  Mutex mu_;
  Status condemned_ GUARDED_BY(mu_);
};

/// Makes `path` and what is missing above it, and syncs each directory that got a new name in it.
/// The directory above the first that existed is synced too, if allowed: another process may have
/// made that one a moment ago.
Status MakeRoot(Fs* fs, const std::string& path) {
  const std::string_view trimmed =
      std::string_view(path).substr(0, std::max<std::size_t>(1, path.find_last_not_of('/') + 1));
  const std::size_t slash = trimmed.rfind('/');
  const std::string parent = slash == std::string_view::npos ? "."
                             : slash == 0                    ? "/"
                                          : std::string(trimmed.substr(0, slash));
  Status made = fs->MakeDirectory(path);
  if (made.Is(Code::kNotFound) && parent != path) {
    RETURN_IF_ERROR(MakeRoot(fs, parent));
    made = fs->MakeDirectory(path);
  }
  if (made.Is(Code::kAlreadyExists)) {
    fs->SyncDirectory(parent, "store root")
        .IgnoreError("not our name; often a directory we may not even read");
    return Status::Ok();
  }
  RETURN_IF_ERROR(made);
  return fs->SyncDirectory(parent, "store root");
}

}  // namespace

Status LocalStoreOptions::Validate() const {
  if (root.empty()) return InvalidArgumentError("local store: the directory's name is empty");
  if (root.find('\0') != std::string::npos) {
    return InvalidArgumentError("local store: the directory's name contains a NUL");
  }
  if (fs == nullptr || ids == nullptr || clock == nullptr) {
    return InvalidArgumentError("local store: fs, ids and clock must be given");
  }
  if (part_bytes == 0 || part_bytes % kBlock != 0 || part_bytes > (1u << 30)) {
    return InvalidArgumentError(fmt::format(
        "local store: part_bytes {} must be a multiple of 4096 and at most 1 GiB", part_bytes));
  }
  if (queue_depth < 1 || queue_depth > 256) {
    return InvalidArgumentError(
        fmt::format("local store: queue_depth {} must be between 1 and 256", queue_depth));
  }
  return Status::Ok();
}

Result<std::unique_ptr<LocalStore>> LocalStore::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  Fs* const fs = options.fs;
  Result<FsStat> stat = fs->Stat(options.root);
  if (!stat.ok() && !stat.status().Is(Code::kNotFound)) return stat.status();
  if (!stat.ok() && !options.create) {
    return NotFoundError(fmt::format("store \"{}\": no such directory", options.root));
  }
  if (stat.ok() && !stat->is_directory) {
    return InvalidArgumentError(
        fmt::format("store \"{}\": is a file, not a directory", options.root));
  }
  if (options.create) {
    RETURN_IF_ERROR(MakeRoot(fs, options.root));
    // MakeRoot takes a file of that name for a directory that was there.
    ASSIGN_OR_RETURN(const FsStat made, fs->Stat(options.root));
    if (!made.is_directory) {
      return InvalidArgumentError(
          fmt::format("store \"{}\": is a file, not a directory", options.root));
    }
  }
  std::unique_ptr<LocalStore> store(new LocalStore(std::move(options)));
  store->network_ = fs->IsNetwork(store->options_.root);
  return store;
}

StoreTraits LocalStore::traits() const {
  return StoreTraits{.create_only = hard_links_.load(),
                     .hard_links = hard_links_.load(),
                     .locks = locks_.load(),
                     .direct_io = direct_io_.load(),
                     .directories = true,
                     // Whoever resumes a file then gives it another name.
                     .resumes = hard_links_.load()};
}

std::string LocalStore::PathOf(std::string_view name) const {
  return JoinPath(options_.root, name);
}

Status LocalStore::MakeDirectories(std::string_view directory) {
  if (directory.empty()) return Status::Ok();  // the root was there; whoever removed it meant it
  Status made = options_.fs->MakeDirectory(PathOf(directory));
  if (made.Is(Code::kNotFound)) {
    RETURN_IF_ERROR(MakeDirectories(ParentOf(directory)));
    made = options_.fs->MakeDirectory(PathOf(directory));
  }
  if (made.ok()) directories_.Made(directory);
  return made.Is(Code::kAlreadyExists) ? Status::Ok() : made;
}

Result<LocalStore::Temporary> LocalStore::WriteTemporary(const std::string& name,
                                                         std::string_view bytes,
                                                         std::string_view why) {
  Temporary temporary;
  temporary.name =
      JoinPath(ParentOf(name), fmt::format("{}-{}", kTemporaryPrefix, options_.ids->NewUuid()));
  Result<std::unique_ptr<FsFile>> file = InDirectoryOf(name, [&] {
    return options_.fs->Open(PathOf(temporary.name),
                             {.write = true, .create = true, .exclusive = true});
  });
  if (!file.ok()) return file.status();
  temporary.file = *std::move(file);
  Status written = temporary.file->WriteAt(0, std::as_bytes(std::span(bytes)));
  // On a network file system the sync is also what sends the bytes to the others: without it they
  // could see the name before what it stands for.
  if (why.empty() && network_) why = "record bytes for other machines";
  if (written.ok() && !why.empty()) written = temporary.file->Sync(why);
  if (!written.ok()) {
    RemoveTemporary(temporary.name);
    return written;
  }
  return temporary;
}

void LocalStore::RemoveTemporary(const std::string& temporary) {
  options_.fs->Unlink(PathOf(temporary)).IgnoreError("garbage that nothing lists or refers to");
  directories_.NamesChanged(ParentOf(temporary));
}

// The steps, in this order, each for its reason:
//  1. write a temporary name and sync its bytes: the final name must never lead to torn bytes;
//  2. link it to the final name, which of all callers one alone achieves (also on NFS, where
//     O_EXCL and rename do not promise as much);
//  3. remove the temporary name, so that the next step's sync covers that too;
//  4. sync the directory, and those above it whose names may be new: only then is it durable.
// A volatile object goes without the sync of 4, and perhaps without that of 1. A prepared one
// (WriteSession::Prepare) has 1 done by its session, whose Drain waits for that sync as well.
Status LocalStore::CreateOnce(const std::string& name, std::string_view bytes, Syncs syncs) {
  ASSIGN_OR_RETURN(const Temporary temporary,
                   WriteTemporary(name, bytes, syncs.bytes ? kRecordBytes : ""));
  return NameTemporary(temporary, name, syncs.name);
}

Status LocalStore::NameTemporary(const Temporary& temporary, const std::string& name,
                                 bool durable) {
  Status linked = options_.fs->Link(PathOf(temporary.name), PathOf(name));
  if (!linked.ok() && !linked.Is(Code::kUnimplemented) && !linked.Is(Code::kNotFound)) {
    // A network file system that lost the answer to the first request says "exists" to the second.
    // Nobody else knows the temporary name: a second link of it is ours.
    const Result<FsStat> stat = temporary.file->Stat();
    if (stat.ok() && stat->links >= 2) linked = Status::Ok();
  }
  RemoveTemporary(temporary.name);
  if (linked.Is(Code::kUnimplemented)) {
    hard_links_.store(false);
    return UnimplementedError(fmt::format(
        "create \"{}\" in {}: {}: the file system has no hard links, which a repository needs for "
        "its records; use a directory on another one (ext4, XFS, Btrfs, NFS …)",
        name, Describe(), linked.message()));
  }
  RETURN_IF_ERROR(linked);
  if (!durable) return Status::Ok();
  return directories_.SyncPath(ParentOf(name), "record name", "record path");
}

Status LocalStore::Create(const std::string& name, std::string_view bytes) {
  return CreateNew(name, bytes, {});
}

Status LocalStore::CreateVolatile(const std::string& name, std::string_view bytes,
                                  AfterCrash crash) {
  return CreateNew(name, bytes, {.bytes = crash == AfterCrash::kWholeOrNothing, .name = false});
}

Status LocalStore::CreateNew(const std::string& name, std::string_view bytes, Syncs syncs) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Status created;
  for (int i = 0; i < kDirectoryAttempts; ++i) {
    created = CreateOnce(name, bytes, syncs);
    // NotFound: somebody removed the directory with our temporary file in it.
    if (!created.Is(Code::kNotFound)) break;
  }
  return created;
}

Status LocalStore::Put(const std::string& name, std::string_view bytes) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Status put;
  for (int i = 0; i < kDirectoryAttempts; ++i) {
    ASSIGN_OR_RETURN(const Temporary temporary, WriteTemporary(name, bytes, "put bytes"));
    put = options_.fs->Rename(PathOf(temporary.name), PathOf(name));
    if (put.ok()) {
      directories_.NamesChanged(ParentOf(name));
      put = directories_.SyncPath(ParentOf(name), "put name", "put path");
    } else {
      RemoveTemporary(temporary.name);
    }
    if (!put.Is(Code::kNotFound)) break;
  }
  return put;
}

Status LocalStore::Absence(const std::string& name, Status status) {
  if (!status.Is(Code::kInvalidArgument) && !status.Is(Code::kPermissionDenied)) return status;
  const Result<FsStat> itself = options_.fs->Stat(PathOf(name));
  if (itself.ok() && itself->is_directory) {
    return NotFoundError(fmt::format("\"{}\" in {}: is a directory", name, Describe()));
  }
  for (std::string_view d = ParentOf(name); !d.empty(); d = ParentOf(d)) {
    const Result<FsStat> above = options_.fs->Stat(PathOf(d));
    if (above.ok() && !above->is_directory) {
      return NotFoundError(fmt::format("\"{}\" in {}: \"{}\" is a file", name, Describe(), d));
    }
    if (above.ok()) break;
  }
  // A FIFO, or links that go round in a circle: whatever it was, nothing can be read there.
  return status.Is(Code::kInvalidArgument) ? NotFoundError(std::string(status.message())) : status;
}

Result<std::string> LocalStore::Get(const std::string& name, std::uint64_t limit) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Result<std::unique_ptr<FsFile>> file = options_.fs->Open(PathOf(name), {});
  if (!file.ok()) return Absence(name, file.status());
  ASSIGN_OR_RETURN(const FsStat stat, (*file)->Stat());
  if (stat.is_directory) {
    return NotFoundError(fmt::format("\"{}\" in {}: is a directory", name, Describe()));
  }
  if (stat.bytes > limit) {
    return ResourceExhaustedError(fmt::format("\"{}\" in {}: has {} bytes, at most {} are read",
                                              name, Describe(), stat.bytes, limit));
  }
  std::string bytes(stat.bytes, '\0');
  ASSIGN_OR_RETURN(const std::size_t read,
                   (*file)->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  if (read != bytes.size()) {
    return CorruptionError(fmt::format("\"{}\" in {}: short read: {} of {} bytes", name, Describe(),
                                       read, bytes.size()));
  }
  return bytes;
}

Result<ObjectInfo> LocalStore::Stat(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const Result<FsStat> stat = options_.fs->Stat(PathOf(name));
  if (!stat.ok()) return Absence(name, stat.status());
  if (stat->is_directory) {
    return NotFoundError(fmt::format("\"{}\" in {}: is a directory", name, Describe()));
  }
  return ObjectInfo{.name = name, .bytes = stat->bytes};
}

Result<Listing> LocalStore::List(const std::string& prefix) {
  if (!prefix.empty()) RETURN_IF_ERROR(ValidateObjectName(prefix));
  const Result<std::vector<FsEntry>> entries = options_.fs->List(PathOf(prefix));
  if (!entries.ok()) {
    const Status status = Absence(prefix, entries.status());
    if (status.Is(Code::kNotFound) && !prefix.empty()) return Listing{};
    if (entries.status().Is(Code::kInvalidArgument)) {
      const Result<FsStat> stat = options_.fs->Stat(PathOf(prefix));
      if (stat.ok() && !stat->is_directory) return Listing{};  // an object, with nothing below it
    }
    return status;
  }
  Listing listing;
  for (const FsEntry& entry : *entries) {
    std::string name = JoinPath(prefix, entry.name);
    if (!ValidateObjectName(name).ok()) continue;  // ours in the making, or foreign and unnameable
    if (entry.is_directory) {
      listing.prefixes.push_back(std::move(name));
      continue;
    }
    const Result<FsStat> stat = options_.fs->Stat(PathOf(name));
    if (!stat.ok() && entry.is_link) {
      listing.unreachable.push_back(std::move(name));
      continue;
    }
    if (stat.status().Is(Code::kNotFound)) continue;  // gone meanwhile
    // Of our own files none may be passed over: a listing without them would say that they are
    // gone.
    if (!stat.ok()) return stat.status();
    listing.objects.push_back({.name = std::move(name), .bytes = stat->bytes});
  }
  return listing;
}

Status LocalStore::Delete(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Status removed = options_.fs->Unlink(PathOf(name));
  if (removed.Is(Code::kNotFound)) return removed;
  directories_.NamesChanged(ParentOf(name));
  return Absence(name, std::move(removed));
}

Result<bool> LocalStore::PruneDirectory(const std::string& directory) {
  const Result<std::vector<FsEntry>> entries = options_.fs->List(PathOf(directory));
  if (entries.status().Is(Code::kNotFound)) return true;
  if (!entries.ok()) return entries.status();
  bool empty = true;
  std::vector<std::string> temporaries;
  for (const FsEntry& entry : *entries) {
    std::string name = JoinPath(directory, entry.name);
    if (entry.is_directory) {
      const Result<bool> pruned = PruneDirectory(name);
      // Somebody else's: of our own we may look into all.
      if (!pruned.ok() && !pruned.status().Is(Code::kPermissionDenied)) return pruned.status();
      empty = empty && pruned.ok() && *pruned;
    } else if (IsTemporary(entry.name) && options_.fs->IsUnused(PathOf(name))) {
      temporaries.push_back(std::move(name));
    } else {
      empty = false;
    }
  }
  if (!empty || directory.empty()) return false;
  // What a crash left.
  for (const std::string& temporary : temporaries) RemoveTemporary(temporary);
  Status removed = options_.fs->RemoveDirectory(PathOf(directory));
  if (removed.Is(Code::kFailedPrecondition)) return false;  // filled meanwhile
  if (removed.Is(Code::kInvalidArgument)) return false;     // a symbolic link to a directory
  if (!removed.ok() && !removed.Is(Code::kNotFound)) return removed;
  directories_.Removed(directory);
  return true;
}

Status LocalStore::PruneDirectories(const std::string& prefix) {
  if (!prefix.empty()) RETURN_IF_ERROR(ValidateObjectName(prefix));
  const Result<FsStat> stat = options_.fs->Stat(PathOf(prefix));
  if (!stat.ok()) {
    const Status status = Absence(prefix, stat.status());
    return status.Is(Code::kNotFound) ? Status::Ok() : status;
  }
  if (!stat->is_directory) return Status::Ok();
  return PruneDirectory(prefix).status();
}

Status LocalStore::SyncNames(const std::string& prefix, std::string_view why) {
  if (!prefix.empty()) RETURN_IF_ERROR(ValidateObjectName(prefix));
  return directories_.SyncTree(prefix, why);
}

Status LocalStore::SyncDirectory(const std::string& directory, std::string_view why) {
  if (!directory.empty()) RETURN_IF_ERROR(ValidateObjectName(directory));
  return directories_.SyncAlone(directory, why);
}

Result<std::unique_ptr<FsFile>> LocalStore::OpenDirect(const std::string& name, bool write) {
  if (!direct_io_.load()) return std::unique_ptr<FsFile>();
  Result<std::unique_ptr<FsFile>> file =
      options_.fs->Open(PathOf(name), {.write = write, .direct = true});
  if (file.status().Is(Code::kInvalidArgument) || file.status().Is(Code::kUnimplemented)) {
    direct_io_.store(false);
    return std::unique_ptr<FsFile>();
  }
  return file;
}

Result<std::unique_ptr<WriteSession>> LocalStore::NewWriteSession(WriteMode mode) {
  if (mode == WriteMode::kAuto) mode = options_.write_mode;
  // Syncs of finished objects travel in the same queue beside the parts.
  ASSIGN_OR_RETURN(auto queue,
                   options_.fs->NewQueue(options_.queue_depth + LocalWriteSession::kSyncsInFlight));
  return std::unique_ptr<WriteSession>(
      std::make_unique<LocalWriteSession>(this, mode, std::move(queue)));
}

Result<std::unique_ptr<ObjectReader>> LocalStore::OpenReader(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Result<std::unique_ptr<FsFile>> file = options_.fs->Open(PathOf(name), {});
  if (!file.ok()) return Absence(name, file.status());
  ASSIGN_OR_RETURN(const FsStat stat, (*file)->Stat());
  if (stat.is_directory) {
    return NotFoundError(fmt::format("\"{}\" in {}: is a directory", name, Describe()));
  }
  return std::unique_ptr<ObjectReader>(
      std::make_unique<LocalReader>(options_.fs, PathOf(name), name, *std::move(file), stat));
}

Result<std::unique_ptr<ReadQueue>> LocalStore::NewReadQueue(int depth) {
  ASSIGN_OR_RETURN(auto queue, options_.fs->NewQueue(depth));
  return std::unique_ptr<ReadQueue>(
      std::make_unique<LocalReadQueue>(std::move(queue), options_.read_mode));
}

Status LocalStore::Link(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  Status linked = options_.fs->Link(PathOf(from), PathOf(to));
  if (linked.Is(Code::kNotFound)) {
    RETURN_IF_ERROR(Stat(from).status());  // the one missing must be the directory of `to`
    linked = InDirectoryOf(to, [&] { return options_.fs->Link(PathOf(from), PathOf(to)); });
  }
  if (linked.ok()) {
    directories_.NamesChanged(ParentOf(to));
  } else if (!linked.Is(Code::kAlreadyExists)) {
    RETURN_IF_ERROR(Stat(from).status());  // a directory, for one, is not there as an object
  }
  return linked;
}

Status LocalStore::Adopt(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Link(from, to));
  // Whoever wrote it may have ended before it synced the bytes.
  ASSIGN_OR_RETURN(const std::unique_ptr<FsFile> file,
                   options_.fs->Open(PathOf(to), {.write = true}));
  return file->Sync("adopted bytes");
}

Result<std::uint64_t> LocalStore::LinkCount(const std::string& name) {
  RETURN_IF_ERROR(Stat(name).status());
  ASSIGN_OR_RETURN(const FsStat stat, options_.fs->Stat(PathOf(name)));
  return stat.links;
}

Result<bool> LocalStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(ValidateObjectName(pool_name));
  RETURN_IF_ERROR(Stat(name).status());
  const std::string path = PathOf(name);
  const std::string pool_path = PathOf(pool_name);
  const auto is_alone = [&](const std::string& at) -> Result<bool> {
    ASSIGN_OR_RETURN(const FsStat stat, options_.fs->Stat(at));
    return stat.links == 1 && options_.fs->IsUnused(at);
  };
  ASSIGN_OR_RETURN(const bool alone, is_alone(path));
  if (!alone) return false;
  if (Stat(pool_name).ok()) {
    return AlreadyExistsError(fmt::format("\"{}\" in {}: exists", pool_name, Describe()));
  }
  RETURN_IF_ERROR(InDirectoryOf(pool_name, [&] { return options_.fs->Rename(path, pool_path); }));
  directories_.NamesChanged(ParentOf(name));
  directories_.NamesChanged(ParentOf(pool_name));
  // Somebody may have opened or linked it between the look and the rename; nobody can by the old
  // name any more.
  ASSIGN_OR_RETURN(const bool still_alone, is_alone(pool_path));
  if (still_alone) return true;
  RETURN_IF_ERROR(InDirectoryOf(name, [&] { return options_.fs->Rename(pool_path, path); }));
  directories_.NamesChanged(ParentOf(name));
  directories_.NamesChanged(ParentOf(pool_name));
  return false;
}

Result<std::unique_ptr<StoreLock>> LocalStore::TryLock(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Result<std::unique_ptr<FsLock>> lock =
      InDirectoryOf(name, [&] { return options_.fs->TryLock(PathOf(name)); });
  if (lock.status().Is(Code::kUnimplemented)) locks_.store(false);
  if (!lock.ok()) return lock.status();  // a lock file's own name needs no durability
  return std::unique_ptr<StoreLock>(std::make_unique<LocalLock>(*std::move(lock)));
}

Result<std::unique_ptr<AppendObject>> LocalStore::OpenAppend(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Result<std::unique_ptr<FsFile>> file = options_.fs->Open(PathOf(name), {.write = true});
  if (!file.ok()) return Absence(name, file.status());
  ASSIGN_OR_RETURN(const FsStat stat, (*file)->Stat());
  return std::unique_ptr<AppendObject>(
      std::make_unique<LocalAppendObject>(*std::move(file), stat.bytes));
}

Result<std::shared_ptr<AppendTail>> LocalStore::TailAt(const std::string& name) {
  const std::string path = PathOf(name);
  const MutexLock lock(&tails_mu_);
  auto& place = tails_[name];
  // Whoever removed a directory may have removed its tail too.
  if (place == nullptr || !place->IsAt(options_.fs, path)) {
    place = nullptr;
    ASSIGN_OR_RETURN(place, AppendTail::Open(options_.fs, path));
  }
  return place;
}

Result<std::unique_ptr<AppendObject>> LocalStore::OpenTailed(const std::string& name,
                                                             const std::string& tail_name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(ValidateObjectName(tail_name));
  if (auto tail = TailAt(tail_name); tail.ok()) {
    auto object = OpenTailedObject(options_.fs, PathOf(name), *std::move(tail));
    if (object.ok()) return object;
  }
  return OpenAppend(name);  // no matter why not: it only costs more
}

Status LocalStore::RecoverTail(const std::string& tail) {
  RETURN_IF_ERROR(ValidateObjectName(tail));
  return RecoverTailedObject(options_.fs, PathOf(tail));
}

Result<std::optional<std::uint64_t>> LocalStore::FreeBytes() {
  ASSIGN_OR_RETURN(const std::uint64_t bytes, options_.fs->FreeBytes(options_.root));
  return std::optional<std::uint64_t>(bytes);
}

Status LocalStore::Refresh(const std::string& prefix) {
  if (!prefix.empty()) RETURN_IF_ERROR(ValidateObjectName(prefix));
  if (!network_) return Status::Ok();
  // A change of the directory makes the client ask the server anew what is in it.
  const std::string probe =
      PathOf(JoinPath(prefix, fmt::format("{}-{}", kTemporaryPrefix, options_.ids->NewUuid())));
  const Status made =
      options_.fs->Open(probe, {.write = true, .create = true, .exclusive = true}).status();
  if (made.ok()) return options_.fs->Unlink(probe);
  if (made.Is(Code::kNotFound) && !prefix.empty()) {
    // The directory itself may be another machine's news. Asked for by its name afterwards, it is
    // looked for anew; what is in it this machine cannot have asked for before.
    return Refresh(std::string(ParentOf(prefix)));
  }
  // Nothing there to see (a file in its place), or a reader without the right to write: then the
  // cache's own time rules.
  if (made.Is(Code::kNotFound) || made.Is(Code::kInvalidArgument) ||
      made.Is(Code::kPermissionDenied) || made.Is(Code::kResourceExhausted)) {
    return Status::Ok();
  }
  return made;
}

Result<std::unique_ptr<Store>> OpenLocalStore(const std::string& path, bool create) {
  ASSIGN_OR_RETURN(auto store, LocalStore::Open({.root = path, .fs = PosixFs(), .create = create}));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace cairn

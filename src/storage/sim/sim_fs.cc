#include "storage/sim/sim_fs.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <deque>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/memory/seeded_random.h"
#include "storage/sim/sim_image.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxComponentBytes = 255;
constexpr std::size_t kMaxPathBytes = 4096;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 44;

std::string Message(std::string_view op, std::string_view path, std::string_view words) {
  std::string text(op);
  text.append(" ").append(path).append(": ").append(words);
  return text;
}

Status NoEntry(std::string_view op, std::string_view path) {
  return NotFoundError(Message(op, path, "No such file or directory"));
}
Status Exists(std::string_view op, std::string_view path) {
  return AlreadyExistsError(Message(op, path, "File exists"));
}
Status IsADirectory(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Is a directory"));
}
Status NotADirectory(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Not a directory"));
}
Status NotEmpty(std::string_view op, std::string_view path) {
  return FailedPreconditionError(Message(op, path, "Directory not empty"));
}
Status NoSpace(std::string_view op, std::string_view path) {
  return ResourceExhaustedError(Message(op, path, "No space left on device"));
}
Status Refused(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Invalid argument"));
}

/// Components from the root; the process's directory is the root.
Result<std::vector<std::string>> SplitPath(std::string_view op, std::string_view path) {
  if (path.empty()) return NoEntry(op, path);
  if (path.size() > kMaxPathBytes) {
    return InvalidArgumentError(Message(op, path, "File name too long"));
  }
  if (path.find('\0') != std::string_view::npos) return Refused(op, path);
  std::vector<std::string> components;
  std::size_t at = 0;
  while (at <= path.size()) {
    std::size_t end = path.find('/', at);
    if (end == std::string_view::npos) end = path.size();
    const std::string_view component = path.substr(at, end - at);
    at = end + 1;
    if (component.empty() || component == ".") continue;
    if (component == "..") {
      if (!components.empty()) components.pop_back();
      continue;
    }
    if (component.size() > kMaxComponentBytes) {
      return InvalidArgumentError(Message(op, path, "File name too long"));
    }
    components.emplace_back(component);
  }
  return components;
}

/// Distinct among all disks of the process: an inode of a foreign or former epoch is shared with an
/// image and is copied before it is written.
std::uint64_t NewEpoch() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string_view SimOpName(SimOp::Kind kind) {
  switch (kind) {
    case SimOp::Kind::kCreate:
      return "create";
    case SimOp::Kind::kTruncate:
      return "truncate";
    case SimOp::Kind::kWrite:
      return "write";
    case SimOp::Kind::kAllocate:
      return "allocate";
    case SimOp::Kind::kSync:
      return "sync";
    case SimOp::Kind::kMakeDirectory:
      return "mkdir";
    case SimOp::Kind::kRemoveDirectory:
      return "rmdir";
    case SimOp::Kind::kUnlink:
      return "unlink";
    case SimOp::Kind::kLink:
      return "link";
    case SimOp::Kind::kRename:
      return "rename";
    case SimOp::Kind::kSyncDirectory:
      return "sync directory";
  }
  return "unknown";
}

std::string DescribeSimOp(const SimOp& op) {
  std::string text(SimOpName(op.kind));
  text.append(" ").append(op.path);
  if (!op.to.empty()) text.append(" to ").append(op.to);
  if (!op.why.empty()) text.append(" (").append(op.why).append(")");
  if (op.kind == SimOp::Kind::kWrite) {
    text.append(" ").append(std::to_string(op.offset));
    text.append("+").append(std::to_string(op.bytes));
  } else if (op.kind == SimOp::Kind::kTruncate || op.kind == SimOp::Kind::kAllocate) {
    text.append(" ").append(std::to_string(op.bytes));
  }
  return text;
}

std::string NormalizeSimPath(std::string_view path) {
  constexpr std::size_t kUuidChars = 36;
  constexpr std::size_t kLongHex = 16;
  std::string text;
  std::size_t at = 0;
  while (at < path.size()) {
    if (IsUuid(path.substr(at, kUuidChars))) {
      text.push_back('*');
      at += kUuidChars;
      continue;
    }
    std::size_t hex_end = at;
    while (hex_end < path.size() && IsHex(path[hex_end])) ++hex_end;
    if (hex_end - at >= kLongHex) {
      text.push_back('*');
      at = hex_end;
    } else if (IsDigit(path[at])) {
      text.push_back('#');
      while (at < path.size() && IsDigit(path[at])) ++at;
    } else {
      text.push_back(path[at++]);
    }
  }
  return text;
}

/// The state behind a SimFs, shared with its handles. Names found and changed by path; open files
/// by inode number. One lock over all of it, never held while the hook or the predicate runs.
class SimFs::Disk {
 public:
  explicit Disk(SimImage image) : image_(std::move(image)) {
    MutexLock lock(&mu_);
    for (const auto& [number, inode] : image_.inodes) {
      if (!inode->is_directory && inode->links > 0) used_ += inode->charged_bytes();
    }
  }

  void SetHook(Hook hook) {
    MutexLock lock(&mu_);
    hook_ = hook ? std::make_shared<const Hook>(std::move(hook)) : nullptr;
  }

  void Announce(const SimOp& op) EXCLUDES(mu_) {
    std::shared_ptr<const Hook> hook;
    {
      MutexLock lock(&mu_);
      hook = hook_;
    }
    if (hook != nullptr) (*hook)(op);
  }

  std::shared_ptr<const SimImage> Snapshot() {
    MutexLock lock(&mu_);
    epoch_ = NewEpoch();  // whatever the image shares is copied before it is written again
    return std::make_shared<const SimImage>(image_);
  }

  void IgnoreSyncs(SyncPredicate predicate) {
    MutexLock lock(&mu_);
    ignore_ = predicate ? std::make_shared<const SyncPredicate>(std::move(predicate)) : nullptr;
  }

  std::vector<SimSync> SyncLog() {
    MutexLock lock(&mu_);
    return {sync_log_.begin(), sync_log_.end()};
  }

  void SetCapacity(std::uint64_t bytes) {
    MutexLock lock(&mu_);
    image_.options.capacity = bytes;
  }

  Options options() {
    MutexLock lock(&mu_);
    return image_.options;
  }

  // --- by path ---

  /// Opens and counts a handle; the inode's number.
  Result<std::uint64_t> Open(const std::string& path, OpenMode mode) {
    MutexLock lock(&mu_);
    if (mode.direct && !image_.options.direct) return Refused("open", path);
    ASSIGN_OR_RETURN(Place place, Find("open", path));
    if (place.inode == 0) {
      if (!mode.create) return NoEntry("open", path);
      if (place.name.empty()) return IsADirectory("open", path);
      place.inode = AddInode(/*is_directory=*/false);
      SetEntry(place.parent, place.name, place.inode);
    } else {
      if (mode.create && mode.exclusive) return Exists("open", path);
      const SimInode& inode = Get(place.inode);
      if (inode.is_directory) return IsADirectory("open", path);
      if (mode.truncate && mode.write && inode.live.size() > 0) DoTruncate(place.inode, 0);
    }
    ++open_[place.inode];
    return place.inode;
  }

  void CloseHandle(std::uint64_t number) {
    MutexLock lock(&mu_);
    auto found = open_.find(number);
    if (found == open_.end()) return;
    if (--found->second > 0) return;
    open_.erase(found);
    if (Get(number).links == 0) used_ -= Get(number).charged_bytes();
  }

  Status MakeDirectory(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("mkdir", path));
    if (place.inode != 0) return Exists("mkdir", path);
    SetEntry(place.parent, place.name, AddInode(/*is_directory=*/true));
    return Status::Ok();
  }

  Status RemoveDirectory(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("rmdir", path));
    if (place.inode == 0) return NoEntry("rmdir", path);
    const SimInode& inode = Get(place.inode);
    if (!inode.is_directory) return NotADirectory("rmdir", path);
    if (place.inode == kSimRootInode || !inode.entries.empty()) return NotEmpty("rmdir", path);
    RemoveEntry(place.parent, place.name);
    return Status::Ok();
  }

  Status Unlink(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("unlink", path));
    if (place.inode == 0) return NoEntry("unlink", path);
    if (Get(place.inode).is_directory) return IsADirectory("unlink", path);
    RemoveEntry(place.parent, place.name);
    return Status::Ok();
  }

  Status Link(const std::string& from, const std::string& to) {
    MutexLock lock(&mu_);
    if (!image_.options.hard_links) {
      return UnimplementedError(Message("link", to, "Operation not supported"));
    }
    ASSIGN_OR_RETURN(const Place source, Find("link", from));
    if (source.inode == 0) return NoEntry("link", from);
    ASSIGN_OR_RETURN(const Place target, Find("link", to));
    if (target.inode != 0) return Exists("link", to);
    const SimInode& inode = Get(source.inode);
    if (inode.is_directory) {  // EPERM, as from file systems that have no hard links
      return UnimplementedError(Message("link", from, "Operation not permitted"));
    }
    if (inode.links >= image_.options.max_links) {
      return ResourceExhaustedError(Message("link", to, "Too many links"));
    }
    SetEntry(target.parent, target.name, source.inode);
    return Status::Ok();
  }

  Status Rename(const std::string& from, const std::string& to) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place source, Find("rename", from));
    ASSIGN_OR_RETURN(const Place target, Find("rename", to));
    if (source.inode == 0) return NoEntry("rename", from);
    if (source.name.empty() || target.name.empty()) return Refused("rename", from);
    if (source.inode == target.inode) return Status::Ok();  // as POSIX: two names of one file stay
    const bool is_directory = Get(source.inode).is_directory;
    if (is_directory && Contains(source.inode, target.parent)) return Refused("rename", from);
    if (target.inode != 0) {
      const SimInode& replaced = Get(target.inode);
      if (Contains(target.inode, source.parent)) return NotEmpty("rename", to);
      if (is_directory && !replaced.is_directory) return NotADirectory("rename", to);
      if (!is_directory && replaced.is_directory) return IsADirectory("rename", to);
      if (replaced.is_directory && !replaced.entries.empty()) return NotEmpty("rename", to);
    }
    if (source.parent == target.parent) {
      MoveEntry(source.parent, source.name, target.name, source.inode);
    } else {
      SetEntry(target.parent, target.name, source.inode);
      RemoveEntry(source.parent, source.name);
    }
    return Status::Ok();
  }

  Result<FsStat> Stat(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("stat", path));
    if (place.inode == 0) return NoEntry("stat", path);
    return StatOf(Get(place.inode));
  }

  Result<std::vector<FsEntry>> List(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("list", path));
    if (place.inode == 0) return NoEntry("list", path);
    const SimInode& inode = Get(place.inode);
    if (!inode.is_directory) return NotADirectory("list", path);
    std::vector<FsEntry> entries;
    for (const auto& [name, number] : inode.entries) {
      entries.push_back({.name = name, .is_directory = Get(number).is_directory});
    }
    return entries;
  }

  Status SyncDirectory(const std::string& path, std::string_view why) {
    const bool ignored = NoteSync(SimSync::Kind::kDirectory, why, path);
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("fsync", path));
    if (place.inode == 0) return NoEntry("fsync", path);
    if (!Get(place.inode).is_directory) return NotADirectory("fsync", path);
    if (ignored || Get(place.inode).pending_entries.empty()) return Status::Ok();
    SimInode& inode = Mutable(place.inode);
    inode.durable_entries = inode.entries;
    inode.pending_entries.clear();
    CollectWhenMany();
    return Status::Ok();
  }

  Result<std::uint64_t> FreeBytes(const std::string& path) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Place place, Find("statvfs", path));
    if (place.inode == 0) return NoEntry("statvfs", path);
    const std::uint64_t capacity = image_.options.capacity;
    return capacity > used_ ? capacity - used_ : 0;
  }

  /// Marks an inode that was opened before as locked.
  Status TakeLock(std::uint64_t number, const std::string& path) {
    MutexLock lock(&mu_);
    if (!locked_.insert(number).second) {
      return UnavailableError(Message("lock", path, "held by another"));
    }
    return Status::Ok();
  }

  void ReleaseLock(std::uint64_t number) {
    MutexLock lock(&mu_);
    locked_.erase(number);
  }

  bool IsUnused(const std::string& path) {
    MutexLock lock(&mu_);
    const Result<Place> place = Find("lease", path);
    return place.ok() && place->inode != 0 && !Get(place->inode).is_directory &&
           !open_.contains(place->inode);
  }

  // --- by inode, of an open handle ---

  std::size_t Read(std::uint64_t number, std::uint64_t offset, std::span<std::byte> into) {
    MutexLock lock(&mu_);
    return Get(number).live.Read(offset, into);
  }

  /// The id of the pending write, for a queue that leaves it in flight until it is reaped; 0 for
  /// one without bytes.
  Result<std::uint64_t> Write(std::uint64_t number, const std::string& path, std::uint64_t offset,
                              std::span<const std::byte> bytes, bool in_flight) {
    MutexLock lock(&mu_);
    if (bytes.empty()) return std::uint64_t{0};
    if (offset > kMaxFileBytes || bytes.size() > kMaxFileBytes - offset) {
      return InternalError(Message("write", path, "File too large"));
    }
    RETURN_IF_ERROR(Reserve(number, "write", path, offset + bytes.size()));
    SimInode& inode = Mutable(number);
    SimPendingWrite write;
    write.id = ++last_write_;
    write.offset = offset;
    write.bytes = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
    write.ApplyTo(&inode.live);
    inode.pending_writes.push_back(std::move(write));
    if (in_flight) in_flight_.insert(last_write_);
    return last_write_;
  }

  void Completed(std::uint64_t write) {
    MutexLock lock(&mu_);
    in_flight_.erase(write);
  }

  Status Truncate(std::uint64_t number, const std::string& path, std::uint64_t bytes) {
    MutexLock lock(&mu_);
    if (bytes > kMaxFileBytes) return InternalError(Message("truncate", path, "File too large"));
    RETURN_IF_ERROR(Reserve(number, "truncate", path, bytes));
    DoTruncate(number, bytes);
    return Status::Ok();
  }

  Status Allocate(std::uint64_t number, const std::string& path, std::uint64_t bytes) {
    MutexLock lock(&mu_);
    if (bytes > kMaxFileBytes) return InternalError(Message("fallocate", path, "File too large"));
    return Reserve(number, "fallocate", path, bytes, /*allocate=*/true);
  }

  Result<FsStat> StatHandle(std::uint64_t number) {
    MutexLock lock(&mu_);
    return StatOf(Get(number));
  }

  Status Sync(std::uint64_t number, const std::string& path, std::string_view why) {
    const bool ignored = NoteSync(SimSync::Kind::kFile, why, path);
    MutexLock lock(&mu_);
    if (ignored || Get(number).pending_writes.empty()) return Status::Ok();
    SimInode& inode = Mutable(number);
    std::vector<SimPendingWrite> still_in_flight;
    for (const SimPendingWrite& write : inode.pending_writes) {
      if (in_flight_.contains(write.id)) still_in_flight.push_back(write);
    }
    if (still_in_flight.empty() && !inode.diverged) {
      inode.durable = inode.live.Share();
    } else {
      // Overlapping writes that were in flight together have no order, so applying the completed
      // ones first is one of the outcomes a disk may show.
      for (const SimPendingWrite& write : inode.pending_writes) {
        if (!in_flight_.contains(write.id)) write.ApplyTo(&inode.durable);
      }
    }
    inode.pending_writes = std::move(still_in_flight);
    return Status::Ok();
  }

  Status DropUnsynced(std::uint64_t number) {
    MutexLock lock(&mu_);
    if (Get(number).pending_writes.empty()) return Status::Ok();
    SimInode& inode = Mutable(number);
    inode.pending_writes.clear();
    inode.diverged = true;
    return Status::Ok();
  }

 private:
  /// Where a path leads. `inode` is 0 when the name is free; `name` is empty for the root.
  struct Place {
    std::uint64_t parent = 0;
    std::string name;
    std::uint64_t inode = 0;
  };

  Result<Place> Find(std::string_view op, const std::string& path) REQUIRES(mu_) {
    ASSIGN_OR_RETURN(const std::vector<std::string> components, SplitPath(op, path));
    Place place{.parent = kSimRootInode, .name = "", .inode = kSimRootInode};
    for (std::size_t i = 0; i < components.size(); ++i) {
      if (place.inode == 0) return NoEntry(op, path);
      const SimInode& directory = Get(place.inode);
      if (!directory.is_directory) return NotADirectory(op, path);
      place.parent = place.inode;
      place.name = components[i];
      auto found = directory.entries.find(components[i]);
      place.inode = found == directory.entries.end() ? 0 : found->second;
    }
    // "file/" names a directory or nothing.
    if (path.ends_with('/') && place.inode != 0 && !Get(place.inode).is_directory) {
      return NotADirectory(op, path);
    }
    return place;
  }

  const SimInode& Get(std::uint64_t number) REQUIRES(mu_) { return *image_.inodes.at(number); }

  SimInode& Mutable(std::uint64_t number) REQUIRES(mu_) {
    std::shared_ptr<SimInode>& inode = image_.inodes.at(number);
    if (inode->epoch != epoch_) {
      inode = std::make_shared<SimInode>(*inode);
      inode->epoch = epoch_;
    }
    return *inode;
  }

  std::uint64_t AddInode(bool is_directory) REQUIRES(mu_) {
    auto inode = std::make_shared<SimInode>();
    inode->number = image_.next_inode++;
    inode->is_directory = is_directory;
    inode->epoch = epoch_;
    const std::uint64_t number = inode->number;
    image_.inodes.emplace(number, std::move(inode));
    return number;
  }

  static FsStat StatOf(const SimInode& inode) {
    return {.is_directory = inode.is_directory,
            .bytes = inode.is_directory ? PagedBytes::kPageBytes : inode.live.size(),
            .links = inode.links,
            .inode = inode.number};
  }

  void AddLink(std::uint64_t number) REQUIRES(mu_) { ++Mutable(number).links; }

  void DropLink(std::uint64_t number) REQUIRES(mu_) {
    SimInode& inode = Mutable(number);
    --inode.links;
    if (inode.links == 0 && !inode.is_directory && !open_.contains(number)) {
      used_ -= inode.charged_bytes();
    }
  }

  void SetEntry(std::uint64_t directory, const std::string& name, std::uint64_t number)
      REQUIRES(mu_) {
    AddLink(number);
    SimInode& parent = Mutable(directory);
    auto found = parent.entries.find(name);
    if (found != parent.entries.end()) DropLink(found->second);
    Apply(&parent, {.kind = SimPendingEntry::Kind::kSet, .name = name, .inode = number});
  }

  void RemoveEntry(std::uint64_t directory, const std::string& name) REQUIRES(mu_) {
    SimInode& parent = Mutable(directory);
    DropLink(parent.entries.at(name));
    Apply(&parent, {.kind = SimPendingEntry::Kind::kRemove, .name = name});
  }

  void MoveEntry(std::uint64_t directory, const std::string& from, const std::string& to,
                 std::uint64_t number) REQUIRES(mu_) {
    SimInode& parent = Mutable(directory);
    auto found = parent.entries.find(to);
    if (found != parent.entries.end()) DropLink(found->second);
    Apply(&parent,
          {.kind = SimPendingEntry::Kind::kMove, .name = to, .from = from, .inode = number});
  }

  static void Apply(SimInode* directory, SimPendingEntry entry) {
    entry.ApplyTo(&directory->entries);
    directory->pending_entries.push_back(std::move(entry));
  }

  /// Whether directory `inside` is `outer` or lies below it.
  bool Contains(std::uint64_t outer, std::uint64_t inside) REQUIRES(mu_) {
    if (outer == inside) return true;
    const SimInode& inode = Get(outer);
    if (!inode.is_directory) return false;
    return std::any_of(inode.entries.begin(), inode.entries.end(),
                       [&](const auto& entry) NO_THREAD_SAFETY_ANALYSIS {
                         return Get(entry.second).is_directory && Contains(entry.second, inside);
                       });
  }

  /// Charges the file for a size of `bytes`, or ResourceExhausted.
  Status Reserve(std::uint64_t number, std::string_view op, const std::string& path,
                 std::uint64_t bytes, bool allocate = false) REQUIRES(mu_) {
    const std::uint64_t charged = Get(number).charged_bytes();
    if (bytes > charged) {
      const std::uint64_t more = bytes - charged;
      const std::uint64_t capacity = image_.options.capacity;
      if (used_ > capacity || more > capacity - used_) return NoSpace(op, path);
      used_ += more;
    }
    if (allocate && bytes > Get(number).allocated) Mutable(number).allocated = bytes;
    return Status::Ok();
  }

  /// The growth was reserved before.
  void DoTruncate(std::uint64_t number, std::uint64_t bytes) REQUIRES(mu_) {
    SimInode& inode = Mutable(number);
    if (bytes < inode.live.size()) {
      const std::uint64_t before = inode.charged_bytes();
      used_ -= before - bytes;
      inode.allocated = std::min(inode.allocated, bytes);  // truncation frees what lies beyond
    }
    SimPendingWrite write;
    write.id = ++last_write_;
    write.truncate = true;
    write.offset = bytes;
    write.ApplyTo(&inode.live);
    inode.pending_writes.push_back(std::move(write));
  }

  /// Logs the sync; true when it is to be ignored.
  bool NoteSync(SimSync::Kind kind, std::string_view why, const std::string& path) EXCLUDES(mu_) {
    const SimSync sync{.kind = kind, .why = std::string(why), .path = path};
    std::shared_ptr<const SyncPredicate> ignore;
    {
      MutexLock lock(&mu_);
      sync_log_.insert({.kind = kind, .why = sync.why, .path = NormalizeSimPath(path)});
      ignore = ignore_;
    }
    return ignore != nullptr && (*ignore)(sync);
  }

  /// Frees inodes that no live, durable or pending name reaches and nobody has open.
  void CollectWhenMany() REQUIRES(mu_) {
    if (image_.inodes.size() < collect_at_) return;
    std::unordered_set<std::uint64_t> reached;
    std::vector<std::uint64_t> todo = {kSimRootInode};
    for (const auto& [number, count] : open_) todo.push_back(number);
    while (!todo.empty()) {
      const std::uint64_t number = todo.back();
      todo.pop_back();
      if (!reached.insert(number).second) continue;
      const SimInode& inode = Get(number);
      for (const auto& [name, child] : inode.entries) todo.push_back(child);
      for (const auto& [name, child] : inode.durable_entries) todo.push_back(child);
      for (const SimPendingEntry& entry : inode.pending_entries) {
        if (entry.kind != SimPendingEntry::Kind::kRemove) todo.push_back(entry.inode);
      }
    }
    std::erase_if(image_.inodes, [&](const auto& entry) { return !reached.contains(entry.first); });
    collect_at_ = 2 * image_.inodes.size() + kCollectStep;
  }

  static constexpr std::size_t kCollectStep = 256;

  Mutex mu_;
  SimImage image_ GUARDED_BY(mu_);
  std::uint64_t epoch_ GUARDED_BY(mu_) = NewEpoch();  // inodes of others are shared with an image
  std::uint64_t used_ GUARDED_BY(mu_) = 0;
  std::uint64_t last_write_ GUARDED_BY(mu_) = 0;
  std::size_t collect_at_ GUARDED_BY(mu_) = kCollectStep;
  std::map<std::uint64_t, int> open_ GUARDED_BY(mu_);  // handles per inode
  std::set<std::uint64_t> locked_ GUARDED_BY(mu_);
  std::set<std::uint64_t> in_flight_ GUARDED_BY(mu_);  // writes that no sync covers yet
  std::set<SimSync> sync_log_ GUARDED_BY(mu_);
  std::shared_ptr<const Hook> hook_ GUARDED_BY(mu_);  // shared with calls under way
  std::shared_ptr<const SyncPredicate> ignore_ GUARDED_BY(mu_);
};

/// A counted handle of an inode.
class SimFs::File final : public FsFile {
 public:
  File(std::shared_ptr<Disk> disk, std::uint64_t inode, std::string path, OpenMode mode)
      : disk_(std::move(disk)), inode_(inode), path_(std::move(path)), mode_(mode) {
    if (mode.direct) alignment_ = disk_->options().direct_alignment;
  }
  ~File() override { disk_->CloseHandle(inode_); }

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) override {
    RETURN_IF_ERROR(CheckAligned("read", offset, into.data(), into.size()));
    return disk_->Read(inode_, offset, into);
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const Result<std::uint64_t> write = Write(offset, bytes, /*in_flight=*/false);
    return write.status();
  }

  /// For the queue: as WriteAt, but the write counts as in flight until Disk::Completed.
  Result<std::uint64_t> Write(std::uint64_t offset, std::span<const std::byte> bytes,
                              bool in_flight) {
    RETURN_IF_ERROR(CheckWritable("write"));
    RETURN_IF_ERROR(CheckAligned("write", offset, bytes.data(), bytes.size()));
    disk_->Announce(
        {.kind = SimOp::Kind::kWrite, .path = path_, .offset = offset, .bytes = bytes.size()});
    return disk_->Write(inode_, path_, offset, bytes, in_flight);
  }

  Status Sync(std::string_view why) override {
    disk_->Announce({.kind = SimOp::Kind::kSync, .path = path_, .why = std::string(why)});
    return disk_->Sync(inode_, path_, why);
  }

  Status Truncate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(CheckWritable("truncate"));
    disk_->Announce({.kind = SimOp::Kind::kTruncate, .path = path_, .bytes = bytes});
    return disk_->Truncate(inode_, path_, bytes);
  }

  Status Allocate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(CheckWritable("fallocate"));
    disk_->Announce({.kind = SimOp::Kind::kAllocate, .path = path_, .bytes = bytes});
    return disk_->Allocate(inode_, path_, bytes);
  }

  Result<FsStat> Stat() override { return disk_->StatHandle(inode_); }
  void StartWriteback(std::uint64_t, std::uint64_t) override {}
  void DropCache(std::uint64_t, std::uint64_t) override {}

  const std::shared_ptr<Disk>& disk() const { return disk_; }
  std::uint64_t inode() const { return inode_; }

 private:
  Status CheckWritable(std::string_view op) const {
    if (mode_.write) return Status::Ok();
    return InternalError(Message(op, path_, "Bad file descriptor (opened for reading)"));
  }

  Status CheckAligned(std::string_view op, std::uint64_t offset, const void* address,
                      std::size_t bytes) const {
    if (alignment_ == 0) return Status::Ok();
    const bool aligned = offset % alignment_ == 0 && bytes % alignment_ == 0 &&
                         reinterpret_cast<std::uintptr_t>(address) % alignment_ == 0;
    return aligned ? Status::Ok() : Refused(op, path_);
  }

  const std::shared_ptr<Disk> disk_;  // shared: a handle may outlive its SimFs
  const std::uint64_t inode_;
  const std::string path_;
  const OpenMode mode_;
  std::size_t alignment_ = 0;  // 0: any
};

/// Executes at submission; hands completions out in order, or in a seeded one.
class SimFs::Queue final : public IoQueue {
 public:
  Queue(std::shared_ptr<Disk> disk, int depth, std::optional<std::uint64_t> seed)
      : disk_(std::move(disk)), depth_(depth) {
    if (seed.has_value()) random_.emplace(*seed);
  }
  ~Queue() override {
    for (const Completion& completion : completions_) disk_->Completed(completion.write);
  }

  int depth() const override { return depth_; }
  int in_flight() const override { return static_cast<int>(completions_.size()); }

  Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                    std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    Result<std::size_t> bytes = sim->ReadAt(offset, into);
    Add(tag, bytes.status(), bytes.ok() ? *bytes : 0);
    return Status::Ok();
  }

  Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                     std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    Result<std::uint64_t> write = sim->Write(offset, bytes, /*in_flight=*/true);
    Add(tag, write.status(), write.ok() ? bytes.size() : 0, write.ok() ? *write : 0);
    return Status::Ok();
  }

  Status SubmitSync(FsFile* file, std::string_view why, std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    Add(tag, sim->Sync(why), 0);
    return Status::Ok();
  }

  Result<Done> Wait() override {
    if (completions_.empty()) return InvalidArgumentError("nothing is in flight");
    const std::size_t index =
        random_.has_value() ? static_cast<std::size_t>(random_->Below(completions_.size())) : 0;
    Completion completion = std::move(completions_[index]);
    completions_.erase(completions_.begin() + static_cast<std::ptrdiff_t>(index));
    disk_->Completed(completion.write);
    return std::move(completion.done);
  }

 private:
  struct Completion {
    Done done;
    std::uint64_t write = 0;  // the pending write, 0 for others
  };

  Result<File*> Admit(FsFile* file) const {
    if (in_flight() >= depth_) {
      return InvalidArgumentError("the queue is full: " + std::to_string(depth_) + " in flight");
    }
    auto* sim = dynamic_cast<File*>(file);
    if (sim == nullptr || sim->disk() != disk_) {
      return InvalidArgumentError("the file belongs to another file system");
    }
    return sim;
  }

  void Add(std::uint64_t tag, Status status, std::size_t bytes, std::uint64_t write = 0) {
    completions_.push_back(
        {.done = {.tag = tag, .status = std::move(status), .bytes = bytes}, .write = write});
  }

  const std::shared_ptr<Disk> disk_;  // shared: a queue may outlive its SimFs
  const int depth_;
  std::optional<SeededRandom> random_;
  std::deque<Completion> completions_;
};

class SimFs::Lock final : public FsLock {
 public:
  Lock(std::shared_ptr<Disk> disk, std::uint64_t inode) : disk_(std::move(disk)), inode_(inode) {}
  ~Lock() override {
    disk_->ReleaseLock(inode_);
    disk_->CloseHandle(inode_);
  }

 private:
  const std::shared_ptr<Disk> disk_;  // shared: a lock may outlive its SimFs
  const std::uint64_t inode_;
};

namespace {

SimImage EmptyImage(SimFs::Options options) {
  SimImage image;
  image.options = std::move(options);
  auto root = std::make_shared<SimInode>();
  root->number = kSimRootInode;
  root->is_directory = true;
  root->links = 1;
  image.inodes.emplace(kSimRootInode, std::move(root));
  return image;
}

}  // namespace

SimFs::SimFs() : SimFs(Options()) {}
SimFs::SimFs(Options options) : SimFs(EmptyImage(std::move(options))) {}
SimFs::SimFs(SimImage image) : disk_(std::make_shared<Disk>(std::move(image))) {}
SimFs::~SimFs() = default;

void SimFs::SetHook(Hook hook) { disk_->SetHook(std::move(hook)); }
std::shared_ptr<const SimImage> SimFs::Snapshot() const { return disk_->Snapshot(); }
void SimFs::IgnoreSyncs(SyncPredicate predicate) { disk_->IgnoreSyncs(std::move(predicate)); }
std::vector<SimSync> SimFs::SyncLog() const { return disk_->SyncLog(); }
void SimFs::SetCapacity(std::uint64_t bytes) { disk_->SetCapacity(bytes); }

std::unique_ptr<SimFs> SimFs::FromCrash(const SimImage& image, CrashMode mode, std::uint64_t seed) {
  return std::unique_ptr<SimFs>(new SimFs(ImageAfterCrash(image, mode, seed)));
}

std::unique_ptr<SimFs> SimFs::FromKill(const SimImage& image) {
  return std::unique_ptr<SimFs>(new SimFs(SimImage(image)));
}

Status SimFs::DropUnsynced(FsFile* file) {
  auto* sim = dynamic_cast<File*>(file);
  if (sim == nullptr || sim->disk() != disk_) {
    return InvalidArgumentError("the file belongs to another file system");
  }
  return disk_->DropUnsynced(sim->inode());
}

Result<std::unique_ptr<FsFile>> SimFs::Open(const std::string& path, OpenMode mode) {
  if (mode.create) {
    disk_->Announce({.kind = SimOp::Kind::kCreate, .path = path});
  } else if (mode.truncate) {
    disk_->Announce({.kind = SimOp::Kind::kTruncate, .path = path});
  }
  ASSIGN_OR_RETURN(const std::uint64_t inode, disk_->Open(path, mode));
  return std::unique_ptr<FsFile>(std::make_unique<File>(disk_, inode, path, mode));
}

Result<std::unique_ptr<IoQueue>> SimFs::NewQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("the depth of a queue is at least 1");
  return std::unique_ptr<IoQueue>(
      std::make_unique<Queue>(disk_, depth, disk_->options().queue_seed));
}

Status SimFs::MakeDirectory(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kMakeDirectory, .path = path});
  return disk_->MakeDirectory(path);
}

Status SimFs::RemoveDirectory(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kRemoveDirectory, .path = path});
  return disk_->RemoveDirectory(path);
}

Status SimFs::Unlink(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kUnlink, .path = path});
  return disk_->Unlink(path);
}

Status SimFs::Link(const std::string& from, const std::string& to) {
  disk_->Announce({.kind = SimOp::Kind::kLink, .path = from, .to = to});
  return disk_->Link(from, to);
}

Status SimFs::Rename(const std::string& from, const std::string& to) {
  disk_->Announce({.kind = SimOp::Kind::kRename, .path = from, .to = to});
  return disk_->Rename(from, to);
}

Result<FsStat> SimFs::Stat(const std::string& path) { return disk_->Stat(path); }

Result<std::vector<FsEntry>> SimFs::List(const std::string& path) { return disk_->List(path); }

Status SimFs::SyncDirectory(const std::string& path, std::string_view why) {
  disk_->Announce({.kind = SimOp::Kind::kSyncDirectory, .path = path, .why = std::string(why)});
  return disk_->SyncDirectory(path, why);
}

Result<std::uint64_t> SimFs::FreeBytes(const std::string& path) { return disk_->FreeBytes(path); }

Result<std::unique_ptr<FsLock>> SimFs::TryLock(const std::string& path) {
  if (!disk_->options().locks) {
    return UnimplementedError(Message("lock", path, "No locks available"));
  }
  disk_->Announce({.kind = SimOp::Kind::kCreate, .path = path});
  ASSIGN_OR_RETURN(const std::uint64_t inode, disk_->Open(path, {.write = true, .create = true}));
  const Status locked = disk_->TakeLock(inode, path);
  if (!locked.ok()) {
    disk_->CloseHandle(inode);
    return locked;
  }
  return std::unique_ptr<FsLock>(std::make_unique<Lock>(disk_, inode));
}

bool SimFs::IsUnused(const std::string& path) { return disk_->IsUnused(path); }
bool SimFs::IsNetwork(const std::string&) { return disk_->options().network; }

}  // namespace cairn

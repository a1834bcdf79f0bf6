#include "storage/sim/sim_disk.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "base/status_macros.h"
#include "storage/sim/sim_errors.h"

namespace cairn {

using namespace sim_errors;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kMaxComponentBytes = 255;
constexpr std::size_t kMaxPathBytes = 4096;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 44;

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

}  // namespace

SimDisk::SimDisk(SimImage image) : image_(std::move(image)), epoch_(NewEpoch()) {
  MutexLock lock(&mu_);
  for (const auto& [number, inode] : image_.inodes) {
    if (!inode->is_directory && inode->links > 0) used_ += inode->charged_bytes();
    for (const auto& write : inode->pending_writes) last_change_ = std::max(last_change_, write.id);
    for (const auto& entry : inode->pending_entries) {
      last_change_ = std::max(last_change_, entry.id);
    }
  }
}

void SimDisk::SetHook(SimFs::Hook hook) {
  MutexLock lock(&mu_);
  hook_ = hook ? std::make_shared<const SimFs::Hook>(std::move(hook)) : nullptr;
}

void SimDisk::Announce(const SimOp& op) {
  std::shared_ptr<const SimFs::Hook> hook;
  {
    MutexLock lock(&mu_);
    hook = hook_;
  }
  if (hook != nullptr) (*hook)(op);
}

std::shared_ptr<const SimImage> SimDisk::Snapshot() {
  MutexLock lock(&mu_);
  epoch_ = NewEpoch();  // whatever the image shares is copied before it is written again
  return std::make_shared<const SimImage>(image_);
}

void SimDisk::IgnoreSyncs(SimFs::SyncPredicate predicate) {
  MutexLock lock(&mu_);
  ignore_ =
      predicate ? std::make_shared<const SimFs::SyncPredicate>(std::move(predicate)) : nullptr;
}

std::vector<SimSync> SimDisk::SyncLog() {
  MutexLock lock(&mu_);
  return {sync_log_.begin(), sync_log_.end()};
}

void SimDisk::SetCapacity(std::uint64_t bytes) {
  MutexLock lock(&mu_);
  image_.options.capacity = bytes;
}

SimFs::Options SimDisk::options() {
  MutexLock lock(&mu_);
  return image_.options;
}

Result<std::uint64_t> SimDisk::Open(const std::string& path, OpenMode mode) {
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

void SimDisk::CloseHandle(std::uint64_t number) {
  MutexLock lock(&mu_);
  auto found = open_.find(number);
  if (found == open_.end()) return;
  if (--found->second > 0) return;
  open_.erase(found);
  if (Get(number).links == 0) used_ -= Get(number).charged_bytes();
}

Status SimDisk::MakeDirectory(const std::string& path) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("mkdir", path));
  if (place.inode != 0) return Exists("mkdir", path);
  SetEntry(place.parent, place.name, AddInode(/*is_directory=*/true));
  return Status::Ok();
}

Status SimDisk::RemoveDirectory(const std::string& path) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("rmdir", path));
  if (place.inode == 0) return NoEntry("rmdir", path);
  const SimInode& inode = Get(place.inode);
  if (!inode.is_directory) return NotADirectory("rmdir", path);
  if (place.inode == kSimRootInode || !inode.entries.empty()) return NotEmpty("rmdir", path);
  RemoveEntry(place.parent, place.name);
  return Status::Ok();
}

Status SimDisk::Unlink(const std::string& path) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("unlink", path));
  if (place.inode == 0) return NoEntry("unlink", path);
  if (Get(place.inode).is_directory) return IsADirectory("unlink", path);
  RemoveEntry(place.parent, place.name);
  return Status::Ok();
}

Status SimDisk::Link(const std::string& from, const std::string& to) {
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

Status SimDisk::Rename(const std::string& from, const std::string& to) {
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

Result<FsStat> SimDisk::Stat(const std::string& path) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("stat", path));
  if (place.inode == 0) return NoEntry("stat", path);
  return StatOf(Get(place.inode));
}

Result<std::vector<FsEntry>> SimDisk::List(const std::string& path) {
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

Result<SimDisk::AskedSync> SimDisk::AskSyncDirectory(const std::string& path,
                                                     std::string_view why) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("fsync", path));
  if (place.inode == 0) return NoEntry("fsync", path);
  if (!Get(place.inode).is_directory) return NotADirectory("fsync", path);
  AskedSync sync{.kind = SimSync::Kind::kDirectory,
                 .path = path,
                 .why = std::string(why),
                 .inode = place.inode};
  for (const SimPendingEntry& entry : Get(place.inode).pending_entries) {
    sync.changes.insert(entry.id);
  }
  return sync;
}

Status SimDisk::SyncDirectory(const std::string& path, std::string_view why) {
  ASSIGN_OR_RETURN(const AskedSync sync, AskSyncDirectory(path, why));
  Do(sync);
  return Status::Ok();
}

void SimDisk::Do(const AskedSync& sync) {
  const bool ignored = NoteSync(sync.kind, sync.why, sync.path);
  MutexLock lock(&mu_);
  // A directory may have been removed meanwhile, and forgotten.
  if (ignored || sync.changes.empty() || !image_.inodes.contains(sync.inode)) return;
  SimInode& inode = Mutable(sync.inode);
  const auto covered = [&](const auto& change) { return sync.changes.contains(change.id); };
  if (sync.kind == SimSync::Kind::kDirectory) {
    for (const SimPendingEntry& entry : inode.pending_entries) {
      if (covered(entry)) entry.ApplyTo(&inode.durable_entries);
    }
    std::erase_if(inode.pending_entries, covered);
    CollectWhenMany();
    return;
  }
  // Overlapping writes that were in flight together have no order, so applying those that had
  // completed first is one of the outcomes a disk may show.
  const bool all = std::all_of(inode.pending_writes.begin(), inode.pending_writes.end(), covered);
  if (all && !inode.diverged) {
    inode.durable = inode.live.Share();
  } else {
    for (const SimPendingWrite& write : inode.pending_writes) {
      if (covered(write)) write.ApplyTo(&inode.durable);
    }
  }
  std::erase_if(inode.pending_writes, covered);
}

Result<std::uint64_t> SimDisk::FreeBytes(const std::string& path) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Place place, Find("statvfs", path));
  if (place.inode == 0) return NoEntry("statvfs", path);
  const std::uint64_t capacity = image_.options.capacity;
  return capacity > used_ ? capacity - used_ : 0;
}

Status SimDisk::TakeLock(std::uint64_t number, const std::string& path) {
  MutexLock lock(&mu_);
  if (!locked_.insert(number).second) {
    return UnavailableError(Message("lock", path, "held by another"));
  }
  return Status::Ok();
}

void SimDisk::ReleaseLock(std::uint64_t number) {
  MutexLock lock(&mu_);
  locked_.erase(number);
}

bool SimDisk::IsUnused(const std::string& path) {
  MutexLock lock(&mu_);
  const Result<Place> place = Find("lease", path);
  return place.ok() && place->inode != 0 && !Get(place->inode).is_directory &&
         !open_.contains(place->inode);
}

std::size_t SimDisk::Read(std::uint64_t number, std::uint64_t offset, std::span<std::byte> into) {
  MutexLock lock(&mu_);
  return Get(number).live.Read(offset, into);
}

Result<std::uint64_t> SimDisk::Write(std::uint64_t number, const std::string& path,
                                     std::uint64_t offset, std::span<const std::byte> bytes,
                                     bool in_flight) {
  MutexLock lock(&mu_);
  if (bytes.empty()) return std::uint64_t{0};
  if (offset > kMaxFileBytes || bytes.size() > kMaxFileBytes - offset) {
    return InternalError(Message("write", path, "File too large"));
  }
  RETURN_IF_ERROR(Reserve(number, "write", path, offset + bytes.size()));
  SimInode& inode = Mutable(number);
  SimPendingWrite write;
  write.id = ++last_change_;
  write.offset = offset;
  write.bytes = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  write.ApplyTo(&inode.live);
  inode.pending_writes.push_back(std::move(write));
  if (in_flight) in_flight_.insert(last_change_);
  return last_change_;
}

void SimDisk::Completed(std::uint64_t write) {
  MutexLock lock(&mu_);
  in_flight_.erase(write);
}

Status SimDisk::Truncate(std::uint64_t number, const std::string& path, std::uint64_t bytes) {
  MutexLock lock(&mu_);
  if (bytes > kMaxFileBytes) return InternalError(Message("truncate", path, "File too large"));
  RETURN_IF_ERROR(Reserve(number, "truncate", path, bytes));
  DoTruncate(number, bytes);
  return Status::Ok();
}

Status SimDisk::Allocate(std::uint64_t number, const std::string& path, std::uint64_t bytes) {
  MutexLock lock(&mu_);
  if (bytes > kMaxFileBytes) return InternalError(Message("fallocate", path, "File too large"));
  return Reserve(number, "fallocate", path, bytes, /*allocate=*/true);
}

Result<FsStat> SimDisk::StatHandle(std::uint64_t number) {
  MutexLock lock(&mu_);
  return StatOf(Get(number));
}

SimDisk::AskedSync SimDisk::AskSync(std::uint64_t number, const std::string& path,
                                    std::string_view why) {
  MutexLock lock(&mu_);
  AskedSync sync{.path = path, .why = std::string(why), .inode = number};
  for (const SimPendingWrite& write : Get(number).pending_writes) {
    if (!in_flight_.contains(write.id)) sync.changes.insert(write.id);
  }
  return sync;
}

Status SimDisk::Sync(std::uint64_t number, const std::string& path, std::string_view why) {
  Do(AskSync(number, path, why));
  return Status::Ok();
}

Status SimDisk::DropUnsynced(std::uint64_t number) {
  MutexLock lock(&mu_);
  if (Get(number).pending_writes.empty()) return Status::Ok();
  SimInode& inode = Mutable(number);
  inode.pending_writes.clear();
  inode.diverged = true;
  return Status::Ok();
}

Result<SimDisk::Place> SimDisk::Find(std::string_view op, const std::string& path) {
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

const SimInode& SimDisk::Get(std::uint64_t number) { return *image_.inodes.at(number); }

SimInode& SimDisk::Mutable(std::uint64_t number) {
  std::shared_ptr<SimInode>& inode = image_.inodes.at(number);
  if (inode->epoch != epoch_) {
    inode = std::make_shared<SimInode>(*inode);
    inode->epoch = epoch_;
  }
  return *inode;
}

std::uint64_t SimDisk::AddInode(bool is_directory) {
  auto inode = std::make_shared<SimInode>();
  inode->number = image_.next_inode++;
  inode->is_directory = is_directory;
  inode->epoch = epoch_;
  const std::uint64_t number = inode->number;
  image_.inodes.emplace(number, std::move(inode));
  return number;
}

FsStat SimDisk::StatOf(const SimInode& inode) {
  return {.is_directory = inode.is_directory,
          .bytes = inode.is_directory ? PagedBytes::kPageBytes : inode.live.size(),
          .links = inode.links,
          .inode = inode.number};
}

void SimDisk::AddLink(std::uint64_t number) { ++Mutable(number).links; }

void SimDisk::DropLink(std::uint64_t number) {
  SimInode& inode = Mutable(number);
  --inode.links;
  if (inode.links == 0 && !inode.is_directory && !open_.contains(number)) {
    used_ -= inode.charged_bytes();
  }
}

void SimDisk::SetEntry(std::uint64_t directory, const std::string& name, std::uint64_t number) {
  AddLink(number);
  SimInode& parent = Mutable(directory);
  auto found = parent.entries.find(name);
  if (found != parent.entries.end()) DropLink(found->second);
  Apply(&parent, {.kind = SimPendingEntry::Kind::kSet, .name = name, .inode = number});
}

void SimDisk::RemoveEntry(std::uint64_t directory, const std::string& name) {
  SimInode& parent = Mutable(directory);
  DropLink(parent.entries.at(name));
  Apply(&parent, {.kind = SimPendingEntry::Kind::kRemove, .name = name});
}

void SimDisk::MoveEntry(std::uint64_t directory, const std::string& from, const std::string& to,
                        std::uint64_t number) {
  SimInode& parent = Mutable(directory);
  auto found = parent.entries.find(to);
  if (found != parent.entries.end()) DropLink(found->second);
  Apply(&parent, {.kind = SimPendingEntry::Kind::kMove, .name = to, .from = from, .inode = number});
}

void SimDisk::Apply(SimInode* directory, SimPendingEntry entry) {
  entry.id = ++last_change_;
  entry.ApplyTo(&directory->entries);
  directory->pending_entries.push_back(std::move(entry));
}

bool SimDisk::Contains(std::uint64_t outer, std::uint64_t inside) {
  if (outer == inside) return true;
  const SimInode& inode = Get(outer);
  if (!inode.is_directory) return false;
  return std::any_of(inode.entries.begin(), inode.entries.end(),
                     [&](const auto& entry) NO_THREAD_SAFETY_ANALYSIS {
                       return Get(entry.second).is_directory && Contains(entry.second, inside);
                     });
}

Status SimDisk::Reserve(std::uint64_t number, std::string_view op, const std::string& path,
                        std::uint64_t bytes, bool allocate) {
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

void SimDisk::DoTruncate(std::uint64_t number, std::uint64_t bytes) {
  SimInode& inode = Mutable(number);
  if (bytes < inode.live.size()) {
    const std::uint64_t before = inode.charged_bytes();
    used_ -= before - bytes;
    inode.allocated = std::min(inode.allocated, bytes);  // truncation frees what lies beyond
  }
  SimPendingWrite write;
  write.id = ++last_change_;
  write.truncate = true;
  write.offset = bytes;
  write.ApplyTo(&inode.live);
  inode.pending_writes.push_back(std::move(write));
}

bool SimDisk::NoteSync(SimSync::Kind kind, std::string_view why, const std::string& path) {
  const SimSync sync{.kind = kind, .why = std::string(why), .path = path};
  std::shared_ptr<const SimFs::SyncPredicate> ignore;
  {
    MutexLock lock(&mu_);
    sync_log_.insert({.kind = kind, .why = sync.why, .path = NormalizeSimPath(path)});
    ignore = ignore_;
  }
  return ignore != nullptr && (*ignore)(sync);
}

void SimDisk::CollectWhenMany() {
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

}  // namespace cairn

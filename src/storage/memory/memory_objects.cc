#include "storage/memory/memory_objects.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

std::uint64_t NewEpoch() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Status Missing(const std::string& name) { return NotFoundError(InMemory(name, "no such object")); }

}  // namespace

std::string InMemory(const std::string& name, std::string_view what) {
  return "\"" + name + "\" in memory: " + std::string(what);
}

Status TakenInMemory(const std::string& name) {
  return AlreadyExistsError(InMemory(name, "exists"));
}

MemoryObjects::MemoryObjects(MemoryImage image)
    : image_(std::move(image)), options_(image_.options), epoch_(NewEpoch()) {}

std::shared_ptr<const MemoryImage> MemoryObjects::Snapshot() {
  MutexLock lock(&mu_);
  epoch_ = NewEpoch();  // whatever the image shares is copied before it is written again
  return std::make_shared<const MemoryImage>(image_);
}

bool MemoryObjects::Has(const std::string& name) {
  MutexLock lock(&mu_);
  return image_.names.contains(name);
}

void MemoryObjects::Put(const std::string& name, PagedBytes bytes) {
  MutexLock lock(&mu_);
  SetName(name, Add(std::move(bytes)));
}

Status MemoryObjects::Create(const std::string& name, PagedBytes bytes) {
  MutexLock lock(&mu_);
  if (image_.names.contains(name)) return TakenInMemory(name);
  SetName(name, Add(std::move(bytes)));
  return Status::Ok();
}

Result<std::string> MemoryObjects::Get(const std::string& name, std::uint64_t limit) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
  const PagedBytes& bytes = At(id).bytes;
  if (bytes.size() > limit) {
    return ResourceExhaustedError(InMemory(name, "has " + std::to_string(bytes.size()) +
                                                     " bytes, at most " + std::to_string(limit) +
                                                     " are read"));
  }
  std::string text(bytes.size(), '\0');
  bytes.Read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

Result<ObjectInfo> MemoryObjects::Stat(const std::string& name) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
  return ObjectInfo{.name = name, .bytes = At(id).bytes.size()};
}

Listing MemoryObjects::List(const std::string& prefix) {
  MutexLock lock(&mu_);
  const std::string start = prefix.empty() ? "" : prefix + "/";
  Listing listing;
  for (auto at = image_.names.lower_bound(start);
       at != image_.names.end() && at->first.starts_with(start); ++at) {
    const std::string_view rest = std::string_view(at->first).substr(start.size());
    if (rest.starts_with(kTemporaryPrefix)) continue;
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
      listing.objects.push_back({.name = at->first, .bytes = At(at->second).bytes.size()});
      continue;
    }
    std::string below = start + std::string(rest.substr(0, slash));
    if (listing.prefixes.empty() || listing.prefixes.back() != below) {
      listing.prefixes.push_back(std::move(below));
    }
  }
  return listing;
}

std::vector<TaggedObject> MemoryObjects::ListPage(const std::string& prefix,
                                                  const std::string& after) {
  MutexLock lock(&mu_);
  const std::string start = prefix.empty() ? "" : prefix + "/";
  std::vector<TaggedObject> page;
  for (auto at = image_.names.upper_bound(std::max(start, after));
       at != image_.names.end() && at->first.starts_with(start); ++at) {
    if (std::string_view(at->first).substr(start.size()).starts_with(kTemporaryPrefix)) continue;
    if (page.size() == options_.page_objects) break;
    const PagedBytes& bytes = At(at->second).bytes;
    std::string content(bytes.size(), '\0');
    bytes.Read(0, std::as_writable_bytes(std::span(content)));
    page.push_back({.name = at->first,
                    .bytes = bytes.size(),
                    .tag = std::to_string(Xxh3(std::as_bytes(std::span(content))))});
  }
  return page;
}

Status MemoryObjects::Delete(const std::string& name) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(Find(name).status());
  RemoveName(name);
  return Status::Ok();
}

Status MemoryObjects::Link(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(from));
  if (image_.names.contains(to)) return TakenInMemory(to);
  if (At(id).links >= options_.max_links) {
    return ResourceExhaustedError(InMemory(from, "too many links"));
  }
  SetName(to, id);
  return Status::Ok();
}

Result<std::uint64_t> MemoryObjects::LinkCount(const std::string& name) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
  return At(id).links;
}

Result<bool> MemoryObjects::MoveToPool(const std::string& name, const std::string& pool_name) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
  if (At(id).links > 1 || open_.contains(id)) return false;
  if (image_.names.contains(pool_name)) return TakenInMemory(pool_name);
  SetName(pool_name, id);
  RemoveName(name);
  return true;
}

Result<std::uint64_t> MemoryObjects::Pin(const std::string& name, std::uint64_t* bytes) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
  *bytes = At(id).bytes.size();
  ++open_[id];
  return id;
}

void MemoryObjects::Unpin(std::uint64_t id) {
  MutexLock lock(&mu_);
  if (--open_[id] > 0) return;
  open_.erase(id);
  DropIfUnused(id);
}

Result<std::size_t> MemoryObjects::Read(const std::string& name, std::uint64_t id,
                                        std::uint64_t offset, std::span<std::byte> into) {
  MutexLock lock(&mu_);
  if (options_.object_store) {
    auto found = image_.names.find(name);
    if (found == image_.names.end() || found->second != id) return Missing(name);
  }
  return At(id).bytes.Read(offset, into);
}

Result<std::uint64_t> MemoryObjects::OpenInPlace(const std::string& name,
                                                 const std::string& reuse) {
  MutexLock lock(&mu_);
  if (image_.names.contains(name)) return TakenInMemory(name);
  auto pooled = image_.names.find(reuse);
  std::uint64_t id = 0;
  if (pooled != image_.names.end() && At(pooled->second).links == 1) {
    id = pooled->second;
    SetName(name, id);
    RemoveName(reuse);
  } else {
    id = Add(PagedBytes());
    SetName(name, id);
  }
  ++open_[id];
  return id;
}

void MemoryObjects::Write(std::uint64_t id, std::uint64_t offset,
                          std::span<const std::byte> bytes) {
  MutexLock lock(&mu_);
  Mutable(id).bytes.Write(offset, bytes);
}

void MemoryObjects::Resize(std::uint64_t id, std::uint64_t bytes) {
  MutexLock lock(&mu_);
  Mutable(id).bytes.Resize(bytes);
}

bool MemoryObjects::TakeLock(const std::string& name) {
  MutexLock lock(&mu_);
  if (!image_.names.contains(name)) SetName(name, Add(PagedBytes()));
  return locks_.insert(name).second;
}

void MemoryObjects::ReleaseLock(const std::string& name) {
  MutexLock lock(&mu_);
  locks_.erase(name);
}

Result<std::uint64_t> MemoryObjects::Find(const std::string& name) {
  auto found = image_.names.find(name);
  if (found == image_.names.end()) return Missing(name);
  return found->second;
}

MemoryObject& MemoryObjects::Mutable(std::uint64_t id) {
  std::shared_ptr<MemoryObject>& object = image_.objects.at(id);
  if (object->epoch != epoch_) {
    object = std::make_shared<MemoryObject>(*object);
    object->epoch = epoch_;
  }
  return *object;
}

std::uint64_t MemoryObjects::Add(PagedBytes bytes) {
  auto object = std::make_shared<MemoryObject>();
  object->epoch = epoch_;
  object->bytes = std::move(bytes);
  image_.objects.emplace(image_.next_id, std::move(object));
  return image_.next_id++;
}

void MemoryObjects::SetName(const std::string& name, std::uint64_t id) {
  ++Mutable(id).links;
  if (image_.names.contains(name)) RemoveName(name);
  image_.names.emplace(name, id);
}

void MemoryObjects::RemoveName(const std::string& name) {
  auto found = image_.names.find(name);
  const std::uint64_t id = found->second;
  image_.names.erase(found);
  --Mutable(id).links;
  DropIfUnused(id);
}

void MemoryObjects::DropIfUnused(std::uint64_t id) {
  if (At(id).links == 0 && !open_.contains(id)) image_.objects.erase(id);
}

}  // namespace cairn

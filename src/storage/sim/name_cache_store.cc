#include "storage/sim/name_cache_store.h"

#include "base/status_macros.h"
#include "storage/local/object_path.h"

namespace cairn {
namespace {

Status Missing(std::string_view name) {
  return NotFoundError("\"" + std::string(name) + "\" was missing when this machine last asked");
}

}  // namespace

bool NameCacheStore::IsMissing(std::string_view name) const {
  for (; !name.empty(); name = ParentOf(name)) {
    if (missing_.contains(name)) return true;
  }
  return false;
}

void NameCacheStore::RememberMissing(const std::string& name) {
  for (std::size_t at = name.find('/'); at != name.npos; at = name.find('/', at + 1)) {
    const std::string directory = name.substr(0, at);
    const auto listing = inner()->List(directory);
    if (!listing.ok()) return;
    if (!listing->objects.empty() || !listing->prefixes.empty()) continue;
    missing_.insert(directory);
    return;
  }
  missing_.insert(name);
}

void NameCacheStore::ForgetIn(std::string_view directory) {
  if (const auto it = listings_.find(directory); it != listings_.end()) listings_.erase(it);
  std::erase_if(missing_, [&](const std::string& name) { return ParentOf(name) == directory; });
}

void NameCacheStore::RefreshLocked(std::string_view prefix) {
  // Where the directory itself seems to be missing nothing can be changed in it.
  if (!prefix.empty() && IsMissing(prefix)) RefreshLocked(ParentOf(prefix));
  ForgetIn(prefix);
}

void NameCacheStore::Changed(std::string_view name) {
  MutexLock lock(&mu_);
  ForgetIn(ParentOf(name));
  for (; !name.empty(); name = ParentOf(name)) {
    if (const auto it = missing_.find(name); it != missing_.end()) missing_.erase(it);
  }
}

void NameCacheStore::ForgetAll() {
  MutexLock lock(&mu_);
  missing_.clear();
  listings_.clear();
}

Status NameCacheStore::Put(const std::string& name, std::string_view bytes) {
  Changed(name);
  return inner()->Put(name, bytes);
}

Status NameCacheStore::Create(const std::string& name, std::string_view bytes) {
  Changed(name);
  return inner()->Create(name, bytes);
}

Status NameCacheStore::CreateVolatile(const std::string& name, std::string_view bytes,
                                      AfterCrash crash) {
  Changed(name);
  return inner()->CreateVolatile(name, bytes, crash);
}

Result<std::string> NameCacheStore::Get(const std::string& name, std::uint64_t limit) {
  MutexLock lock(&mu_);
  if (IsMissing(name)) return Missing(name);
  auto bytes = inner()->Get(name, limit);
  if (bytes.status().Is(Code::kNotFound)) RememberMissing(name);
  return bytes;
}

Result<ObjectInfo> NameCacheStore::Stat(const std::string& name) {
  MutexLock lock(&mu_);
  if (IsMissing(name)) return Missing(name);
  auto info = inner()->Stat(name);
  if (info.status().Is(Code::kNotFound)) RememberMissing(name);
  return info;
}

Result<Listing> NameCacheStore::List(const std::string& prefix) {
  MutexLock lock(&mu_);
  if (!prefix.empty() && IsMissing(prefix)) return Listing();
  if (const auto it = listings_.find(prefix); it != listings_.end()) return it->second;
  ASSIGN_OR_RETURN(Listing listing, inner()->List(prefix));
  if (!prefix.empty() && listing.objects.empty() && listing.prefixes.empty()) {
    RememberMissing(prefix);
  } else {
    listings_[prefix] = listing;
  }
  return listing;
}

Status NameCacheStore::Delete(const std::string& name) {
  Changed(name);
  return inner()->Delete(name);
}

Status NameCacheStore::PruneDirectories(const std::string& prefix) {
  ForgetAll();
  return inner()->PruneDirectories(prefix);
}

Result<std::unique_ptr<WriteSession>> NameCacheStore::NewWriteSession(WriteMode mode) {
  ForgetAll();  // what it will write is not followed
  return inner()->NewWriteSession(mode);
}

Result<std::unique_ptr<ObjectReader>> NameCacheStore::OpenReader(const std::string& name) {
  MutexLock lock(&mu_);
  if (IsMissing(name)) return Missing(name);
  auto reader = inner()->OpenReader(name);
  if (reader.status().Is(Code::kNotFound)) RememberMissing(name);
  return reader;
}

Status NameCacheStore::Link(const std::string& from, const std::string& to) {
  Changed(to);
  return inner()->Link(from, to);
}

Status NameCacheStore::Refresh(const std::string& prefix) {
  RETURN_IF_ERROR(inner()->Refresh(prefix));
  MutexLock lock(&mu_);
  RefreshLocked(prefix);
  return Status::Ok();
}

}  // namespace cairn

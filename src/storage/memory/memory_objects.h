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
#include "storage/deep_listing.h"
#include "storage/memory/memory_store.h"
#include "storage/memory/paged_bytes.h"
#include "storage/store.h"

namespace cairn {

struct MemoryObject {
  std::uint64_t epoch = 0;  // written in place only by the MemoryObjects whose epoch this is
  std::uint64_t links = 0;
  PagedBytes bytes;
};

/// All that a store holds at an instant. Immutable.
struct MemoryImage {
  MemoryStoreOptions options;
  std::uint64_t next_id = 1;
  std::map<std::string, std::uint64_t> names;
  std::map<std::uint64_t, std::shared_ptr<MemoryObject>> objects;  // never written through an image
};

/// `"name" in memory: what`, the message of an error.
std::string InMemory(const std::string& name, std::string_view what);
/// The name is in use.
Status TakenInMemory(const std::string& name);

/// The objects behind one or several Store objects. One lock over all of it; no hook in here.
class MemoryObjects {
 public:
  explicit MemoryObjects(MemoryImage image);

  const MemoryStoreOptions& options() const { return options_; }
  std::shared_ptr<const MemoryImage> Snapshot();
  bool Has(const std::string& name);
  void Put(const std::string& name, PagedBytes bytes);
  Status Create(const std::string& name, PagedBytes bytes);
  Result<std::string> Get(const std::string& name, std::uint64_t limit);
  Result<ObjectInfo> Stat(const std::string& name);
  Listing List(const std::string& prefix);
  std::vector<TaggedObject> ListPage(const std::string& prefix, const std::string& after);
  Status Delete(const std::string& name);
  Status Link(const std::string& from, const std::string& to);
  Result<std::uint64_t> LinkCount(const std::string& name);
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name);

  /// Pins the object for a handle.
  Result<std::uint64_t> Pin(const std::string& name, std::uint64_t* bytes);
  void Unpin(std::uint64_t id);

  /// As many bytes as there are, at most into.size().
  Result<std::size_t> Read(const std::string& name, std::uint64_t id, std::uint64_t offset,
                           std::span<std::byte> into);

  /// Makes `name` an object to be written, pinned for a session: the one called `reuse`, renamed,
  /// when it is there and has no other name, else a new one.
  Result<std::uint64_t> OpenInPlace(const std::string& name, const std::string& reuse);
  void Write(std::uint64_t id, std::uint64_t offset, std::span<const std::byte> bytes);
  void Resize(std::uint64_t id, std::uint64_t bytes);
  bool TakeLock(const std::string& name);
  void ReleaseLock(const std::string& name);

 private:
  Result<std::uint64_t> Find(const std::string& name) REQUIRES(mu_);
  const MemoryObject& At(std::uint64_t id) REQUIRES(mu_) { return *image_.objects.at(id); }
  MemoryObject& Mutable(std::uint64_t id) REQUIRES(mu_);
  std::uint64_t Add(PagedBytes bytes) REQUIRES(mu_);
  void SetName(const std::string& name, std::uint64_t id) REQUIRES(mu_);
  void RemoveName(const std::string& name) REQUIRES(mu_);
  void DropIfUnused(std::uint64_t id) REQUIRES(mu_);

  Mutex mu_;
  MemoryImage image_ GUARDED_BY(mu_);
  const MemoryStoreOptions options_;
  std::uint64_t epoch_ GUARDED_BY(mu_);                // objects of others are shared with an image
  std::map<std::uint64_t, int> open_ GUARDED_BY(mu_);  // handles per object
  std::set<std::string> locks_ GUARDED_BY(mu_);
};

}  // namespace cairn

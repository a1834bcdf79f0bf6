#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/adopting_store.h"
#include "storage/deep_listing.h"
#include "storage/memory/store_op.h"
#include "storage/store.h"

namespace cairn {

class MemoryHook;
class MemoryObjects;
struct MemoryImage;

struct MemoryStoreOptions {
  /// True: as an object store has it. No links and no locks; what a write session writes appears
  /// whole, one object after the other, while it drains; a reader of a deleted or replaced object
  /// fails with NotFound. False ("plain"): as a local disk has it. Links, pool and locks; an object
  /// in the making is visible with the bytes that arrived so far; readers outlive the name.
  bool object_store = true;
  /// False: as an S3 server without conditional puts. Create looks and then puts, and the hook runs
  /// in between: two callers may both be told that they won.
  bool create_only = true;
  /// Size of the parts of write sessions, a multiple of 4 KiB.
  std::size_t part_bytes = 64u << 10;
  /// Parts a write session borrows before Append waits, which here means: completes the oldest.
  int parts_in_flight = 4;
  /// Names one object may have (plain mode).
  std::uint64_t max_links = 65000;
  /// What ListBelow is worth; by default nobody asks for it.
  DeepListingCosts listing{.many_directories = 0};
  /// Objects of a page of ListBelow: others may come in between.
  std::size_t page_objects = 1000;
  /// Completions of a ReadQueue in a seeded random order instead of the order of submission.
  std::optional<std::uint64_t> queue_seed;

  Status Validate() const;
};

/// A store in memory, for tests: the world in which the commit protocol is explored, as SimFs is
/// the one in which the local store is.
///
/// Every change is durable at once, so what a crash at an instant leaves is Snapshot() of that
/// instant. Borrowed buffers are used as late as the contract allows (parts when their completion
/// is returned, reads likewise), so that a caller who lets go of one too early is found out.
///
/// May be called from several threads. Sessions, readers, queues and locks may outlive the store
/// object. A failed operation changes nothing, except that a failed Drain may have published some
/// of its objects.
class MemoryStore final : public Store, public DeepListingStore, public AdoptingStore {
 public:
  using Options = MemoryStoreOptions;

  static Result<std::unique_ptr<MemoryStore>> Open(Options options);
  /// A store that holds what the image holds, independent of it. No locks are held.
  static std::unique_ptr<MemoryStore> FromSnapshot(const MemoryImage& image);
  ~MemoryStore() override;

  /// Another Store on the same objects, as another process would open it; with a hook of its own.
  std::unique_ptr<MemoryStore> OpenAgain() const;

  /// Called before every operation of this Store object and of its sessions, readers and queues, on
  /// the calling thread and without any lock of the store: the hook may block, take snapshots or
  /// use the store (which calls the hook again). Invalid calls may be announced too.
  using Hook = std::function<void(const StoreOp&)>;
  void SetHook(Hook hook);

  /// What is stored now. Cheap: bytes are shared until they are written again.
  std::shared_ptr<const MemoryImage> Snapshot() const;

  /// Stores an object behind the store's back, also under a name that the interface refuses.
  void Plant(const std::string& name, std::string_view bytes);

  std::string Describe() const override;
  StoreTraits traits() const override;
  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override;
  Result<ObjectInfo> Stat(const std::string& name) override;
  Result<Listing> List(const std::string& prefix) override;
  DeepListingCosts listing_costs() const override;
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override;
  /// One page of that: the objects below `prefix` whose names come after `after`. The tag is a hash
  /// of the bytes, as the ETag of an object that was put in one request is.
  Result<std::vector<TaggedObject>> ListPage(const std::string& prefix, const std::string& after);
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override;
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Adopt(const std::string& from, const std::string& to) override;
  Result<std::uint64_t> LinkCount(const std::string& name) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override;
  Result<std::optional<std::uint64_t>> FreeBytes() override;
  Status Refresh(const std::string& prefix) override;

 private:
  explicit MemoryStore(std::shared_ptr<MemoryObjects> objects);

  std::shared_ptr<MemoryObjects> objects_;  // shared with other Store objects and with handles
  std::shared_ptr<MemoryHook> hook_;        // this object's, shared with its handles
};

}  // namespace cairn

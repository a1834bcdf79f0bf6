#include "storage/memory/memory_store.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "storage/memory/memory_hook.h"
#include "storage/memory/memory_objects.h"
#include "storage/memory/memory_reader.h"
#include "storage/memory/memory_write_session.h"

namespace cairn {
namespace {

constexpr std::size_t kBlock = 4096;

Status ValidatePrefix(const std::string& prefix) {
  return prefix.empty() ? Status::Ok() : ValidateObjectName(prefix);
}

PagedBytes Paged(std::string_view bytes) {
  PagedBytes content;
  content.Write(0, std::as_bytes(std::span(bytes)));
  return content;
}

class MemoryLock final : public StoreLock {
 public:
  MemoryLock(std::shared_ptr<MemoryObjects> objects, std::string name)
      : objects_(std::move(objects)), name_(std::move(name)) {}
  ~MemoryLock() override { objects_->ReleaseLock(name_); }

 private:
  const std::shared_ptr<MemoryObjects> objects_;
  const std::string name_;
};

}  // namespace

Status MemoryStoreOptions::Validate() const {
  if (part_bytes == 0 || part_bytes % kBlock != 0) {
    return InvalidArgumentError("memory store: part_bytes must be a multiple of 4096");
  }
  if (page_objects == 0) return InvalidArgumentError("memory store: page_objects must not be 0");
  if (parts_in_flight < 1) {
    return InvalidArgumentError("memory store: parts_in_flight must be at least 1");
  }
  return Status::Ok();
}

MemoryStore::MemoryStore(std::shared_ptr<MemoryObjects> objects)
    : objects_(std::move(objects)), hook_(std::make_shared<MemoryHook>()) {}
MemoryStore::~MemoryStore() = default;

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  MemoryImage image;
  image.options = options;
  return std::unique_ptr<MemoryStore>(
      new MemoryStore(std::make_shared<MemoryObjects>(std::move(image))));
}

std::unique_ptr<MemoryStore> MemoryStore::FromSnapshot(const MemoryImage& image) {
  MemoryImage copy = image;
  // Objects that only handles of the former store kept alive.
  std::erase_if(copy.objects, [](const auto& entry) { return entry.second->links == 0; });
  return std::unique_ptr<MemoryStore>(
      new MemoryStore(std::make_shared<MemoryObjects>(std::move(copy))));
}

std::unique_ptr<MemoryStore> MemoryStore::OpenAgain() const {
  return std::unique_ptr<MemoryStore>(new MemoryStore(objects_));
}

void MemoryStore::SetHook(Hook hook) { hook_->Set(std::move(hook)); }
std::shared_ptr<const MemoryImage> MemoryStore::Snapshot() const { return objects_->Snapshot(); }

void MemoryStore::Plant(const std::string& name, std::string_view bytes) {
  objects_->Put(name, Paged(bytes));
}

std::string MemoryStore::Describe() const {
  return objects_->options().object_store ? "memory (object store)" : "memory";
}

StoreTraits MemoryStore::traits() const {
  const Options& options = objects_->options();
  return {.create_only = options.create_only,
          .hard_links = !options.object_store,
          .locks = !options.object_store,
          .direct_io = false,
          .directories = false};
}

Status MemoryStore::Put(const std::string& name, std::string_view bytes) {
  hook_->Announce({.kind = StoreOp::Kind::kPut, .name = name, .bytes = bytes.size()});
  RETURN_IF_ERROR(ValidateObjectName(name));
  Plant(name, bytes);
  return Status::Ok();
}

Status MemoryStore::Create(const std::string& name, std::string_view bytes) {
  hook_->Announce({.kind = StoreOp::Kind::kCreate, .name = name, .bytes = bytes.size()});
  RETURN_IF_ERROR(ValidateObjectName(name));
  if (!objects_->options().create_only) {
    if (objects_->Has(name)) return TakenInMemory(name);
    return Put(name, bytes);
  }
  return objects_->Create(name, Paged(bytes));
}

Result<std::string> MemoryStore::Get(const std::string& name, std::uint64_t limit) {
  hook_->Announce({.kind = StoreOp::Kind::kGet, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Get(name, limit);
}

Result<ObjectInfo> MemoryStore::Stat(const std::string& name) {
  hook_->Announce({.kind = StoreOp::Kind::kStat, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Stat(name);
}

Result<Listing> MemoryStore::List(const std::string& prefix) {
  hook_->Announce({.kind = StoreOp::Kind::kList, .name = prefix});
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  return objects_->List(prefix);
}

DeepListingCosts MemoryStore::listing_costs() const { return objects_->options().listing; }

Result<std::vector<TaggedObject>> MemoryStore::ListPage(const std::string& prefix,
                                                        const std::string& after) {
  hook_->Announce({.kind = StoreOp::Kind::kList, .name = after.empty() ? prefix : after});
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  return objects_->ListPage(prefix, after);
}

Result<std::vector<TaggedObject>> MemoryStore::ListBelow(const std::string& prefix,
                                                         std::size_t limit) {
  std::vector<TaggedObject> all;
  for (;;) {
    ASSIGN_OR_RETURN(std::vector<TaggedObject> page,
                     ListPage(prefix, all.empty() ? "" : all.back().name));
    const bool last = page.size() < objects_->options().page_objects;
    std::move(page.begin(), page.end(), std::back_inserter(all));
    if (all.size() > limit) {
      return ResourceExhaustedError(
          InMemory(prefix, "more than " + std::to_string(limit) + " objects"));
    }
    if (last) return all;
  }
}

Status MemoryStore::Delete(const std::string& name) {
  hook_->Announce({.kind = StoreOp::Kind::kDelete, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Delete(name);
}

Status MemoryStore::PruneDirectories(const std::string& prefix) {
  hook_->Announce({.kind = StoreOp::Kind::kPruneDirectories, .name = prefix});
  return ValidatePrefix(prefix);
}

Result<std::unique_ptr<WriteSession>> MemoryStore::NewWriteSession(WriteMode) {
  return std::unique_ptr<WriteSession>(std::make_unique<MemoryWriteSession>(objects_, hook_));
}

Status MemoryStore::SyncNames(const std::string& prefix, std::string_view why) {
  hook_->Announce({.kind = StoreOp::Kind::kSyncNames, .name = prefix, .why = std::string(why)});
  return ValidatePrefix(prefix);
}

Result<std::unique_ptr<ObjectReader>> MemoryStore::OpenReader(const std::string& name) {
  hook_->Announce({.kind = StoreOp::Kind::kOpenReader, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  std::uint64_t bytes = 0;
  ASSIGN_OR_RETURN(const std::uint64_t id, objects_->Pin(name, &bytes));
  return std::unique_ptr<ObjectReader>(
      std::make_unique<MemoryReader>(objects_, hook_, name, id, bytes));
}

Result<std::unique_ptr<ReadQueue>> MemoryStore::NewReadQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("the depth of a queue is at least 1");
  return std::unique_ptr<ReadQueue>(
      std::make_unique<MemoryReadQueue>(depth, objects_->options().queue_seed));
}

Status MemoryStore::Link(const std::string& from, const std::string& to) {
  hook_->Announce({.kind = StoreOp::Kind::kLink, .name = from, .to = to});
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  if (objects_->options().object_store) return UnimplementedError("object stores have no links");
  return objects_->Link(from, to);
}

Status MemoryStore::Adopt(const std::string& from, const std::string& to) {
  hook_->Announce({.kind = StoreOp::Kind::kLink, .name = from, .to = to});
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  return objects_->Link(from, to);  // objects are never changed, so a second name is a copy
}

Result<std::uint64_t> MemoryStore::LinkCount(const std::string& name) {
  hook_->Announce({.kind = StoreOp::Kind::kLinkCount, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->LinkCount(name);
}

Result<bool> MemoryStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  hook_->Announce({.kind = StoreOp::Kind::kMoveToPool, .name = name, .to = pool_name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(ValidateObjectName(pool_name));
  if (objects_->options().object_store) return UnimplementedError("object stores have no pool");
  return objects_->MoveToPool(name, pool_name);
}

Result<std::unique_ptr<StoreLock>> MemoryStore::TryLock(const std::string& name) {
  hook_->Announce({.kind = StoreOp::Kind::kTryLock, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  if (objects_->options().object_store) return UnimplementedError("object stores have no locks");
  if (!objects_->TakeLock(name)) {
    return UnavailableError(InMemory(name, "locked by another"));
  }
  return std::unique_ptr<StoreLock>(std::make_unique<MemoryLock>(objects_, name));
}

Result<std::optional<std::uint64_t>> MemoryStore::FreeBytes() {
  hook_->Announce({.kind = StoreOp::Kind::kFreeBytes});
  return std::optional<std::uint64_t>();
}

Status MemoryStore::Refresh(const std::string& prefix) {
  hook_->Announce({.kind = StoreOp::Kind::kRefresh, .name = prefix});
  return ValidatePrefix(prefix);
}

}  // namespace cairn

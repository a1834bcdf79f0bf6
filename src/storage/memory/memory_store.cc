#include "storage/memory/memory_store.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/memory/paged_bytes.h"
#include "storage/memory/seeded_random.h"

namespace cairn {

struct MemoryObject {
  std::uint64_t epoch = 0;  // written in place only by the Objects whose epoch this is
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

namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

std::uint64_t NewEpoch() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string Quoted(const std::string& name) { return "\"" + name + "\""; }
Status Missing(const std::string& name) {
  return NotFoundError(Quoted(name) + " in memory: no such object");
}
Status Taken(const std::string& name) {
  return AlreadyExistsError(Quoted(name) + " in memory: exists");
}

Status ValidatePrefix(const std::string& prefix) {
  return prefix.empty() ? Status::Ok() : ValidateObjectName(prefix);
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

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

/// The objects behind one or several Store objects. One lock over all of it; no hook in here.
class MemoryStore::Objects {
 public:
  explicit Objects(MemoryImage image) : image_(std::move(image)), options_(image_.options) {}

  const Options& options() const { return options_; }

  std::shared_ptr<const MemoryImage> Snapshot() {
    MutexLock lock(&mu_);
    epoch_ = NewEpoch();  // whatever the image shares is copied before it is written again
    return std::make_shared<const MemoryImage>(image_);
  }

  bool Has(const std::string& name) {
    MutexLock lock(&mu_);
    return image_.names.contains(name);
  }

  void Put(const std::string& name, PagedBytes bytes) {
    MutexLock lock(&mu_);
    SetName(name, Add(std::move(bytes)));
  }

  Status Create(const std::string& name, PagedBytes bytes) {
    MutexLock lock(&mu_);
    if (image_.names.contains(name)) return Taken(name);
    SetName(name, Add(std::move(bytes)));
    return Status::Ok();
  }

  Result<std::string> Get(const std::string& name, std::uint64_t limit) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
    const PagedBytes& bytes = At(id).bytes;
    if (bytes.size() > limit) {
      return ResourceExhaustedError(Quoted(name) + " in memory: has " +
                                    std::to_string(bytes.size()) + " bytes, at most " +
                                    std::to_string(limit) + " are read");
    }
    std::string text(bytes.size(), '\0');
    bytes.Read(0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  Result<ObjectInfo> Stat(const std::string& name) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
    return ObjectInfo{.name = name, .bytes = At(id).bytes.size()};
  }

  Listing List(const std::string& prefix) {
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

  std::vector<TaggedObject> ListPage(const std::string& prefix, const std::string& after) {
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
                      .tag = std::to_string(Xxh3(AsBytes(content)))});
    }
    return page;
  }

  Status Delete(const std::string& name) {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(Find(name).status());
    RemoveName(name);
    return Status::Ok();
  }

  Status Link(const std::string& from, const std::string& to) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(from));
    if (image_.names.contains(to)) return Taken(to);
    if (At(id).links >= options_.max_links) {
      return ResourceExhaustedError(Quoted(from) + " in memory: too many links");
    }
    SetName(to, id);
    return Status::Ok();
  }

  Result<std::uint64_t> LinkCount(const std::string& name) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
    return At(id).links;
  }

  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
    if (At(id).links > 1 || open_.contains(id)) return false;
    if (image_.names.contains(pool_name)) return Taken(pool_name);
    SetName(pool_name, id);
    RemoveName(name);
    return true;
  }

  /// Pins the object for a handle.
  Result<std::uint64_t> Pin(const std::string& name, std::uint64_t* bytes) {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const std::uint64_t id, Find(name));
    *bytes = At(id).bytes.size();
    ++open_[id];
    return id;
  }

  void Unpin(std::uint64_t id) {
    MutexLock lock(&mu_);
    if (--open_[id] > 0) return;
    open_.erase(id);
    DropIfUnused(id);
  }

  /// As many bytes as there are, at most into.size().
  Result<std::size_t> Read(const std::string& name, std::uint64_t id, std::uint64_t offset,
                           std::span<std::byte> into) {
    MutexLock lock(&mu_);
    if (options_.object_store) {
      auto found = image_.names.find(name);
      if (found == image_.names.end() || found->second != id) return Missing(name);
    }
    return At(id).bytes.Read(offset, into);
  }

  /// Makes `name` an object to be written, pinned for a session: the one called `reuse`, renamed,
  /// when it is there and has no other name, else a new one.
  Result<std::uint64_t> OpenInPlace(const std::string& name, const std::string& reuse) {
    MutexLock lock(&mu_);
    if (image_.names.contains(name)) return Taken(name);
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

  void Write(std::uint64_t id, std::uint64_t offset, std::span<const std::byte> bytes) {
    MutexLock lock(&mu_);
    Mutable(id).bytes.Write(offset, bytes);
  }

  void Resize(std::uint64_t id, std::uint64_t bytes) {
    MutexLock lock(&mu_);
    Mutable(id).bytes.Resize(bytes);
  }

  bool TakeLock(const std::string& name) {
    MutexLock lock(&mu_);
    if (!image_.names.contains(name)) SetName(name, Add(PagedBytes()));
    return locks_.insert(name).second;
  }

  void ReleaseLock(const std::string& name) {
    MutexLock lock(&mu_);
    locks_.erase(name);
  }

 private:
  Result<std::uint64_t> Find(const std::string& name) REQUIRES(mu_) {
    auto found = image_.names.find(name);
    if (found == image_.names.end()) return Missing(name);
    return found->second;
  }

  const MemoryObject& At(std::uint64_t id) REQUIRES(mu_) { return *image_.objects.at(id); }

  MemoryObject& Mutable(std::uint64_t id) REQUIRES(mu_) {
    std::shared_ptr<MemoryObject>& object = image_.objects.at(id);
    if (object->epoch != epoch_) {
      object = std::make_shared<MemoryObject>(*object);
      object->epoch = epoch_;
    }
    return *object;
  }

  std::uint64_t Add(PagedBytes bytes) REQUIRES(mu_) {
    auto object = std::make_shared<MemoryObject>();
    object->epoch = epoch_;
    object->bytes = std::move(bytes);
    image_.objects.emplace(image_.next_id, std::move(object));
    return image_.next_id++;
  }

  void SetName(const std::string& name, std::uint64_t id) REQUIRES(mu_) {
    ++Mutable(id).links;
    if (image_.names.contains(name)) RemoveName(name);
    image_.names.emplace(name, id);
  }

  void RemoveName(const std::string& name) REQUIRES(mu_) {
    auto found = image_.names.find(name);
    const std::uint64_t id = found->second;
    image_.names.erase(found);
    --Mutable(id).links;
    DropIfUnused(id);
  }

  void DropIfUnused(std::uint64_t id) REQUIRES(mu_) {
    if (At(id).links == 0 && !open_.contains(id)) image_.objects.erase(id);
  }

  Mutex mu_;
  MemoryImage image_ GUARDED_BY(mu_);
  const Options options_;
  std::uint64_t epoch_ GUARDED_BY(mu_) = NewEpoch();   // objects of others are shared with an image
  std::map<std::uint64_t, int> open_ GUARDED_BY(mu_);  // handles per object
  std::set<std::string> locks_ GUARDED_BY(mu_);
};

/// The hook of one Store object.
class MemoryStore::View {
 public:
  void SetHook(Hook hook) {
    MutexLock lock(&mu_);
    hook_ = hook ? std::make_shared<const Hook>(std::move(hook)) : nullptr;
  }

  void Announce(const StoreOp& op) EXCLUDES(mu_) {
    std::shared_ptr<const Hook> hook;
    {
      MutexLock lock(&mu_);
      hook = hook_;
    }
    if (hook != nullptr) (*hook)(op);
  }

 private:
  Mutex mu_;
  std::shared_ptr<const Hook> hook_ GUARDED_BY(mu_);  // shared with calls under way
};

class MemoryStore::Reader final : public ObjectReader {
 public:
  Reader(std::shared_ptr<Objects> objects, std::shared_ptr<View> view, std::string name,
         std::uint64_t id, std::uint64_t bytes)
      : objects_(std::move(objects)),
        view_(std::move(view)),
        name_(std::move(name)),
        id_(id),
        bytes_(bytes) {}
  ~Reader() override { objects_->Unpin(id_); }

  const std::string& name() const override { return name_; }
  std::uint64_t bytes() const override { return bytes_; }

  Status Read(std::uint64_t offset, std::span<std::byte> into) override {
    ASSIGN_OR_RETURN(const std::size_t count, ReadSome(offset, into));
    if (count == into.size()) return Status::Ok();
    return CorruptionError(Quoted(name_) + " in memory: short read at " + std::to_string(offset) +
                           ": " + std::to_string(count) + " of " + std::to_string(into.size()) +
                           " bytes");
  }

  Result<std::size_t> ReadSome(std::uint64_t offset, std::span<std::byte> into) {
    view_->Announce(
        {.kind = StoreOp::Kind::kRead, .name = name_, .offset = offset, .bytes = into.size()});
    return objects_->Read(name_, id_, offset, into);
  }

 private:
  const std::shared_ptr<Objects> objects_;
  const std::shared_ptr<View> view_;
  const std::string name_;
  const std::uint64_t id_;
  const std::uint64_t bytes_;
};

/// Reads when a completion is asked for.
class MemoryStore::Queue final : public ReadQueue {
 public:
  Queue(int depth, std::optional<std::uint64_t> seed) : depth_(depth) {
    if (seed.has_value()) random_.emplace(*seed);
  }

  int depth() const override { return depth_; }
  int in_flight() const override { return static_cast<int>(pending_.size()); }

  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override {
    if (in_flight() >= depth_) {
      return InvalidArgumentError("the queue is full: " + std::to_string(depth_) + " in flight");
    }
    auto* memory = dynamic_cast<Reader*>(reader);
    if (memory == nullptr) return InvalidArgumentError("the reader belongs to another store");
    pending_.push_back({.reader = memory, .offset = offset, .into = into, .tag = tag});
    return Status::Ok();
  }

  Result<Done> Wait() override {
    if (pending_.empty()) return InvalidArgumentError("nothing is in flight");
    const std::size_t index =
        random_.has_value() ? static_cast<std::size_t>(random_->Below(pending_.size())) : 0;
    const Pending read = pending_[index];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
    Result<std::size_t> count = read.reader->ReadSome(read.offset, read.into);
    return Done{.tag = read.tag, .status = count.status(), .bytes = count.ok() ? *count : 0};
  }

 private:
  struct Pending {
    Reader* reader;
    std::uint64_t offset;
    std::span<std::byte> into;
    std::uint64_t tag;
  };

  const int depth_;
  std::optional<SeededRandom> random_;
  std::deque<Pending> pending_;
};

class MemoryStore::Lock final : public StoreLock {
 public:
  Lock(std::shared_ptr<Objects> objects, std::string name)
      : objects_(std::move(objects)), name_(std::move(name)) {}
  ~Lock() override { objects_->ReleaseLock(name_); }

 private:
  const std::shared_ptr<Objects> objects_;
  const std::string name_;
};

/// In object-store mode objects are gathered here and published by Drain; in plain mode their bytes
/// go straight into the named object. Parts are copied when their completion is returned.
class MemoryStore::Session final : public WriteSession {
 public:
  Session(std::shared_ptr<Objects> objects, std::shared_ptr<View> view)
      : objects_(std::move(objects)), view_(std::move(view)) {}
  ~Session() override {
    for (const Object& object : outgoing_) {
      if (object.id != 0) objects_->Unpin(object.id);
    }
  }

  std::size_t part_bytes() const override { return objects_->options().part_bytes; }

  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override {
    view_->Announce({.kind = StoreOp::Kind::kOpenObject, .name = name, .bytes = object.bytes});
    if (!failed_.ok()) return failed_;
    const Status opened = TryOpen(name, object);
    if (!opened.ok()) return Condemn(opened);
    return static_cast<std::uint32_t>(outgoing_.size() - 1);
  }

  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override {
    view_->Announce({.kind = StoreOp::Kind::kAppend,
                     .name = NameOf(object),
                     .offset = object < outgoing_.size() ? outgoing_[object].appended : 0,
                     .bytes = part.size()});
    if (!failed_.ok()) return failed_;
    return Condemn(TryAppend(object, part, padded, tag));
  }

  Status Close(std::uint32_t object) override {
    view_->Announce({.kind = StoreOp::Kind::kCloseObject, .name = NameOf(object)});
    if (!failed_.ok()) return failed_;
    return Condemn(TryClose(object));
  }

  Result<std::uint64_t> WaitPart() override {
    view_->Announce({.kind = StoreOp::Kind::kWaitPart});
    if (!failed_.ok()) return failed_;
    if (parts_.empty() && tags_.empty()) {
      return InvalidArgumentError("no part is outstanding");
    }
    if (tags_.empty()) CompleteOldest();
    const std::uint64_t tag = tags_.front();
    tags_.pop_front();
    return tag;
  }

  Status Drain() override {
    view_->Announce({.kind = StoreOp::Kind::kDrain});
    if (!failed_.ok()) return failed_;
    while (!parts_.empty()) CompleteOldest();
    tags_.clear();
    if (!objects_->options().object_store) return Status::Ok();
    for (Object& object : outgoing_) {
      if (!object.closed || object.published) continue;
      view_->Announce(
          {.kind = StoreOp::Kind::kPublish, .name = object.name, .bytes = object.bytes});
      const Status published = objects_->Create(object.name, std::move(object.content));
      if (!published.ok()) return Condemn(published);
      object.published = true;
    }
    return Status::Ok();
  }

 private:
  struct Object {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t appended = 0;
    bool closed = false;
    bool published = false;  // object-store mode
    std::uint64_t id = 0;    // plain mode: the object in place
    PagedBytes content;      // object-store mode
  };
  struct Part {
    std::uint32_t object = 0;
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
  };

  Status Condemn(Status status) {
    if (!status.ok()) {
      failed_ = status;
      parts_.clear();
      tags_.clear();
    }
    return status;
  }

  std::string NameOf(std::uint32_t object) const {
    return object < outgoing_.size() ? outgoing_[object].name : std::string();
  }

  Status TryOpen(const std::string& name, const NewObject& object) {
    RETURN_IF_ERROR(ValidateObjectName(name));
    Object made{.name = name, .bytes = object.bytes};
    if (objects_->options().object_store) {
      if (objects_->Has(name)) return Taken(name);
      for (const Object& other : outgoing_) {
        if (other.name == name) return Taken(name);
      }
    } else {
      ASSIGN_OR_RETURN(made.id, objects_->OpenInPlace(name, object.reuse));
    }
    outgoing_.push_back(std::move(made));
    return Status::Ok();
  }

  Status TryAppend(std::uint32_t index, std::span<const std::byte> part, bool padded,
                   std::uint64_t tag) {
    if (index >= outgoing_.size() || outgoing_[index].closed) {
      return InvalidArgumentError("append: no such open object");
    }
    Object& object = outgoing_[index];
    const std::uint64_t left = object.bytes - object.appended;
    if (part.empty() && left == 0) {
      tags_.push_back(tag);
      return Status::Ok();
    }
    if (part.empty() || part.size() > left || part.size() > part_bytes() ||
        (part.size() != part_bytes() && part.size() != left)) {
      return InvalidArgumentError(
          Quoted(object.name) + ": a part of " + std::to_string(part.size()) + " bytes, but " +
          std::to_string(std::min<std::uint64_t>(left, part_bytes())) + " are next");
    }
    if (padded) TouchRoomBehind(part);
    if (parts_.size() >= static_cast<std::size_t>(objects_->options().parts_in_flight)) {
      CompleteOldest();
    }
    parts_.push_back({.object = index, .offset = object.appended, .bytes = part, .tag = tag});
    object.appended += part.size();
    return Status::Ok();
  }

  Status TryClose(std::uint32_t index) {
    if (index >= outgoing_.size() || outgoing_[index].closed) {
      return InvalidArgumentError("close: no such open object");
    }
    Object& object = outgoing_[index];
    if (object.appended != object.bytes) {
      return InvalidArgumentError(Quoted(object.name) + ": closed after " +
                                  std::to_string(object.appended) + " of " +
                                  std::to_string(object.bytes) + " bytes");
    }
    object.closed = true;
    // A reused object may have been longer.
    if (object.id != 0) objects_->Resize(object.id, object.bytes);
    return Status::Ok();
  }

  /// A caller who promised room that is not there is found by the address sanitizer.
  static void TouchRoomBehind(std::span<const std::byte> part) {
    const auto end = reinterpret_cast<std::uintptr_t>(part.data()) + part.size();
    const std::size_t room = (kBlock - end % kBlock) % kBlock;
    if (room > 0)
      (void)*static_cast<const volatile std::byte*>(part.data() + part.size() + room - 1);
  }

  void CompleteOldest() {
    const Part part = parts_.front();
    parts_.pop_front();
    Object& object = outgoing_[part.object];
    if (object.id != 0) {
      objects_->Write(object.id, part.offset, part.bytes);
    } else {
      object.content.Write(part.offset, part.bytes);
    }
    tags_.push_back(part.tag);
  }

  const std::shared_ptr<Objects> objects_;
  const std::shared_ptr<View> view_;
  Status failed_;
  std::vector<Object> outgoing_;    // by handle
  std::deque<Part> parts_;          // borrowed, not copied yet
  std::deque<std::uint64_t> tags_;  // copied, not yet returned by WaitPart
};

MemoryStore::MemoryStore(std::shared_ptr<Objects> objects)
    : objects_(std::move(objects)), view_(std::make_shared<View>()) {}
MemoryStore::~MemoryStore() = default;

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  MemoryImage image;
  image.options = options;
  return std::unique_ptr<MemoryStore>(new MemoryStore(std::make_shared<Objects>(std::move(image))));
}

std::unique_ptr<MemoryStore> MemoryStore::FromSnapshot(const MemoryImage& image) {
  MemoryImage copy = image;
  // Objects that only handles of the former store kept alive.
  std::erase_if(copy.objects, [](const auto& entry) { return entry.second->links == 0; });
  return std::unique_ptr<MemoryStore>(new MemoryStore(std::make_shared<Objects>(std::move(copy))));
}

std::unique_ptr<MemoryStore> MemoryStore::OpenAgain() const {
  return std::unique_ptr<MemoryStore>(new MemoryStore(objects_));
}

void MemoryStore::SetHook(Hook hook) { view_->SetHook(std::move(hook)); }
std::shared_ptr<const MemoryImage> MemoryStore::Snapshot() const { return objects_->Snapshot(); }

void MemoryStore::Plant(const std::string& name, std::string_view bytes) {
  PagedBytes content;
  content.Write(0, AsBytes(bytes));
  objects_->Put(name, std::move(content));
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
  view_->Announce({.kind = StoreOp::Kind::kPut, .name = name, .bytes = bytes.size()});
  RETURN_IF_ERROR(ValidateObjectName(name));
  Plant(name, bytes);
  return Status::Ok();
}

Status MemoryStore::Create(const std::string& name, std::string_view bytes) {
  view_->Announce({.kind = StoreOp::Kind::kCreate, .name = name, .bytes = bytes.size()});
  RETURN_IF_ERROR(ValidateObjectName(name));
  if (!objects_->options().create_only) {
    if (objects_->Has(name)) return Taken(name);
    return Put(name, bytes);
  }
  PagedBytes content;
  content.Write(0, AsBytes(bytes));
  return objects_->Create(name, std::move(content));
}

Result<std::string> MemoryStore::Get(const std::string& name, std::uint64_t limit) {
  view_->Announce({.kind = StoreOp::Kind::kGet, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Get(name, limit);
}

Result<ObjectInfo> MemoryStore::Stat(const std::string& name) {
  view_->Announce({.kind = StoreOp::Kind::kStat, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Stat(name);
}

Result<Listing> MemoryStore::List(const std::string& prefix) {
  view_->Announce({.kind = StoreOp::Kind::kList, .name = prefix});
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  return objects_->List(prefix);
}

DeepListingCosts MemoryStore::listing_costs() const { return objects_->options().listing; }

Result<std::vector<TaggedObject>> MemoryStore::ListPage(const std::string& prefix,
                                                        const std::string& after) {
  view_->Announce({.kind = StoreOp::Kind::kList, .name = after.empty() ? prefix : after});
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
      return ResourceExhaustedError(Quoted(prefix) + " in memory: more than " +
                                    std::to_string(limit) + " objects");
    }
    if (last) return all;
  }
}

Status MemoryStore::Delete(const std::string& name) {
  view_->Announce({.kind = StoreOp::Kind::kDelete, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->Delete(name);
}

Status MemoryStore::PruneDirectories(const std::string& prefix) {
  view_->Announce({.kind = StoreOp::Kind::kPruneDirectories, .name = prefix});
  return ValidatePrefix(prefix);
}

Result<std::unique_ptr<WriteSession>> MemoryStore::NewWriteSession(WriteMode) {
  return std::unique_ptr<WriteSession>(std::make_unique<Session>(objects_, view_));
}

Status MemoryStore::SyncNames(const std::string& prefix, std::string_view why) {
  view_->Announce({.kind = StoreOp::Kind::kSyncNames, .name = prefix, .why = std::string(why)});
  return ValidatePrefix(prefix);
}

Result<std::unique_ptr<ObjectReader>> MemoryStore::OpenReader(const std::string& name) {
  view_->Announce({.kind = StoreOp::Kind::kOpenReader, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  std::uint64_t bytes = 0;
  ASSIGN_OR_RETURN(const std::uint64_t id, objects_->Pin(name, &bytes));
  return std::unique_ptr<ObjectReader>(std::make_unique<Reader>(objects_, view_, name, id, bytes));
}

Result<std::unique_ptr<ReadQueue>> MemoryStore::NewReadQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("the depth of a queue is at least 1");
  return std::unique_ptr<ReadQueue>(std::make_unique<Queue>(depth, objects_->options().queue_seed));
}

Status MemoryStore::Link(const std::string& from, const std::string& to) {
  view_->Announce({.kind = StoreOp::Kind::kLink, .name = from, .to = to});
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  if (objects_->options().object_store) return UnimplementedError("object stores have no links");
  return objects_->Link(from, to);
}

Status MemoryStore::Adopt(const std::string& from, const std::string& to) {
  view_->Announce({.kind = StoreOp::Kind::kLink, .name = from, .to = to});
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  return objects_->Link(from, to);  // objects are never changed, so a second name is a copy
}

Result<std::uint64_t> MemoryStore::LinkCount(const std::string& name) {
  view_->Announce({.kind = StoreOp::Kind::kLinkCount, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  return objects_->LinkCount(name);
}

Result<bool> MemoryStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  view_->Announce({.kind = StoreOp::Kind::kMoveToPool, .name = name, .to = pool_name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(ValidateObjectName(pool_name));
  if (objects_->options().object_store) return UnimplementedError("object stores have no pool");
  return objects_->MoveToPool(name, pool_name);
}

Result<std::unique_ptr<StoreLock>> MemoryStore::TryLock(const std::string& name) {
  view_->Announce({.kind = StoreOp::Kind::kTryLock, .name = name});
  RETURN_IF_ERROR(ValidateObjectName(name));
  if (objects_->options().object_store) return UnimplementedError("object stores have no locks");
  if (!objects_->TakeLock(name)) {
    return UnavailableError(Quoted(name) + " in memory: locked by another");
  }
  return std::unique_ptr<StoreLock>(std::make_unique<Lock>(objects_, name));
}

Result<std::optional<std::uint64_t>> MemoryStore::FreeBytes() {
  view_->Announce({.kind = StoreOp::Kind::kFreeBytes});
  return std::optional<std::uint64_t>();
}

Status MemoryStore::Refresh(const std::string& prefix) {
  view_->Announce({.kind = StoreOp::Kind::kRefresh, .name = prefix});
  return ValidatePrefix(prefix);
}

}  // namespace cairn

#include "tests/interleaving/scheduled_store.h"

#include <map>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/forwarding_store.h"

namespace cairn::interleaving {
namespace {

using Kind = StoreOp::Kind;

Status Stopped() { return CancelledError("the actor was stopped"); }

std::uint64_t CodeOf(const Status& status) { return static_cast<std::uint64_t>(status.code()); }

/// One that nobody deletes. Start records are swept, by who opens later.
bool IsLastingRecord(const std::string& name) {
  if (name == "cairn.json") return true;
  constexpr std::string_view kPrefix = "generations/";
  if (!name.starts_with(kPrefix) || name.find('/', kPrefix.size()) != name.npos) return false;
  return name.find(".start", kPrefix.size()) == name.npos;
}

bool IsManifest(const std::string& name) { return name.ends_with("/manifest.json"); }

class ScheduledSession final : public WriteSession {
 public:
  ScheduledSession(Actor* actor, std::unique_ptr<WriteSession> session, bool in_place)
      : actor_(actor), session_(std::move(session)), in_place_(in_place) {}

  std::size_t part_bytes() const override { return session_->part_bytes(); }

  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override {
    if (!actor_->Enter({.kind = Kind::kOpenObject, .name = name}, /*point=*/in_place_)) {
      return Stopped();
    }
    World* world = actor_->world();
    const bool reused = in_place_ && !object.reuse.empty() && world->Has(object.reuse);
    auto opened = session_->Open(name, object);
    actor_->Observe(Kind::kOpenObject, name, CodeOf(opened.status()));
    if (!opened.ok()) return opened;
    Outgoing& outgoing = outgoing_[*opened];
    outgoing.name = name;
    outgoing.digest = MixHash(actor_->history(), 1);
    if (in_place_) {
      if (reused) world->SetObject(actor_->number(), object.reuse, std::nullopt);
      world->SetObject(actor_->number(), name, outgoing.digest);
      outgoing.in_place = outgoing.digest;
    }
    return opened;
  }

  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override {
    if (!actor_->Enter({.kind = Kind::kAppend}, false)) return Stopped();
    outgoing_[object].digest = MixHash(outgoing_[object].digest, Xxh3(part));
    return session_->Append(object, part, padded, tag);
  }
  Status Close(std::uint32_t object) override {
    if (!actor_->Enter({.kind = Kind::kCloseObject}, false)) return Stopped();
    return session_->Close(object);
  }
  Result<std::uint64_t> WaitPart() override {
    if (!actor_->Enter({.kind = Kind::kWaitPart}, false)) return Stopped();
    return session_->WaitPart();
  }

  Status Drain() override {
    const std::string first = outgoing_.empty() ? "" : outgoing_.begin()->second.name;
    if (!actor_->Enter({.kind = Kind::kDrain, .name = first}, /*point=*/!in_place_)) {
      return Stopped();
    }
    Status drained = actor_->world()->WritesFail(actor_->number())
                         ? UnavailableError("the network is down")
                         : session_->Drain();
    actor_->Observe(Kind::kDrain, first, CodeOf(drained));
    World* world = actor_->world();
    for (auto& [handle, object] : outgoing_) {
      if (in_place_) {
        // Unless the name was taken away meanwhile: then the bytes have no name.
        const auto it = world->objects().find(object.name);
        if (it == world->objects().end() || it->second != object.in_place) continue;
      } else if (!drained.ok() && world->Has(object.name)) {
        continue;
      }
      if (in_place_ || drained.ok()) {
        world->SetObject(actor_->number(), object.name, object.digest);
      }
    }
    outgoing_.clear();
    return drained;
  }

 private:
  struct Outgoing {
    std::string name;
    std::uint64_t digest = 0;
    std::uint64_t in_place = 0;
  };

  Actor* const actor_;
  const std::unique_ptr<WriteSession> session_;
  const bool in_place_;
  std::map<std::uint32_t, Outgoing> outgoing_;
};

class ScheduledReader final : public ObjectReader {
 public:
  ScheduledReader(Actor* actor, std::unique_ptr<ObjectReader> reader)
      : actor_(actor), reader_(std::move(reader)) {}

  const std::string& name() const override { return reader_->name(); }
  std::uint64_t bytes() const override { return reader_->bytes(); }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override {
    if (!actor_->Enter({.kind = Kind::kRead, .name = name()}, true)) return Stopped();
    Status read = reader_->Read(offset, into);
    actor_->Observe(Kind::kRead, name(), CodeOf(read));
    return read;
  }
  ObjectReader* inner() const { return reader_.get(); }

 private:
  Actor* const actor_;
  const std::unique_ptr<ObjectReader> reader_;
};

class ScheduledQueue final : public ReadQueue {
 public:
  ScheduledQueue(Actor* actor, std::unique_ptr<ReadQueue> queue)
      : actor_(actor), queue_(std::move(queue)) {}

  int depth() const override { return queue_->depth(); }
  int in_flight() const override { return queue_->in_flight(); }
  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override {
    names_[tag] = reader->name();
    return queue_->Submit(static_cast<ScheduledReader*>(reader)->inner(), offset, into, tag);
  }
  Result<Done> Wait() override {
    const std::string name = names_.empty() ? "" : names_.begin()->second;
    if (!actor_->Enter({.kind = Kind::kRead, .name = name}, true)) return Stopped();
    auto done = queue_->Wait();
    if (done.ok()) {
      actor_->Observe(Kind::kRead, names_[done->tag], CodeOf(done->status) * 1000 + done->bytes);
      names_.erase(done->tag);
    }
    return done;
  }

 private:
  Actor* const actor_;
  const std::unique_ptr<ReadQueue> queue_;
  std::map<std::uint64_t, std::string> names_;
};

class ScheduledStore final : public ForwardingStore {
 public:
  explicit ScheduledStore(Actor* actor) : ScheduledStore(actor, actor->world()->NewView()) {}

  Status Put(const std::string& name, std::string_view bytes) override {
    if (!actor_->Enter({.kind = Kind::kPut, .name = name}, true)) return Stopped();
    Status put = store_->Put(name, bytes);
    actor_->Observe(Kind::kPut, name, CodeOf(put));
    if (put.ok()) Wrote(name, bytes);
    return put;
  }
  Status Create(const std::string& name, std::string_view bytes) override {
    if (!actor_->Enter({.kind = Kind::kCreate, .name = name}, true)) return Stopped();
    Status created = store_->Create(name, bytes);
    actor_->Observe(Kind::kCreate, name, CodeOf(created));
    if (created.ok()) Wrote(name, bytes);
    return created;
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash) override {
    return Create(name, bytes);  // no machine crashes here
  }
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    if (!actor_->Enter({.kind = Kind::kGet, .name = name}, !Settled(name))) return Stopped();
    auto bytes = store_->Get(name, limit);
    actor_->Observe(Kind::kGet, name, bytes.ok() ? Xxh3(*bytes) : CodeOf(bytes.status()));
    if (bytes.ok() && IsManifest(name)) actor_->SawManifest(name);
    return bytes;
  }
  Result<ObjectInfo> Stat(const std::string& name) override {
    if (!actor_->Enter({.kind = Kind::kStat, .name = name}, !Settled(name))) return Stopped();
    auto info = store_->Stat(name);
    actor_->Observe(Kind::kStat, name, info.ok() ? 1000 + info->bytes : CodeOf(info.status()));
    return info;
  }
  Result<Listing> List(const std::string& prefix) override {
    if (!actor_->Enter({.kind = Kind::kList, .name = prefix}, true)) return Stopped();
    auto listing = store_->List(prefix);
    std::string seen;
    if (listing.ok()) {
      for (const ObjectInfo& object : listing->objects) seen += object.name + "\n";
      for (const std::string& below : listing->prefixes) seen += below + "/\n";
    }
    actor_->Observe(Kind::kList, prefix, Xxh3(seen));
    return listing;
  }
  /// Each page is an operation of its own.
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override {
    std::vector<TaggedObject> all;
    for (;;) {
      const std::string after = all.empty() ? "" : all.back().name;
      if (!actor_->Enter({.kind = Kind::kList, .name = "(all) " + after}, true)) return Stopped();
      ASSIGN_OR_RETURN(const std::vector<TaggedObject> page, store_->ListPage(prefix, after));
      std::string seen;
      for (const TaggedObject& object : page) seen += object.name + "=" + object.tag + "\n";
      actor_->Observe(Kind::kList, "(all) " + after, Xxh3(seen));
      if (page.empty()) return all;
      all.insert(all.end(), page.begin(), page.end());
      if (all.size() > limit) return ResourceExhaustedError("more objects than are asked for");
    }
  }
  Status Delete(const std::string& name) override {
    if (!actor_->Enter({.kind = Kind::kDelete, .name = name}, true)) return Stopped();
    Status deleted = store_->Delete(name);
    actor_->Observe(Kind::kDelete, name, CodeOf(deleted));
    if (deleted.ok()) {
      world_->ledger().Deleted(actor_->number(), name);
      world_->SetObject(actor_->number(), name, std::nullopt);
    }
    return deleted;
  }
  Status PruneDirectories(const std::string& prefix) override {
    if (!actor_->Enter({.kind = Kind::kPruneDirectories, .name = prefix}, false)) return Stopped();
    return store_->PruneDirectories(prefix);
  }
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override {
    ASSIGN_OR_RETURN(auto session, store_->NewWriteSession(mode));
    return std::unique_ptr<WriteSession>(std::make_unique<ScheduledSession>(
        actor_, std::move(session), /*in_place=*/store_->traits().hard_links));
  }
  Status SyncNames(const std::string& prefix, std::string_view why) override {
    if (!actor_->Enter({.kind = Kind::kSyncNames, .name = prefix}, false)) return Stopped();
    return store_->SyncNames(prefix, why);
  }
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override {
    if (!actor_->Enter({.kind = Kind::kOpenReader, .name = name}, true)) return Stopped();
    auto reader = store_->OpenReader(name);
    actor_->Observe(Kind::kOpenReader, name, CodeOf(reader.status()));
    if (!reader.ok()) return reader.status();
    return std::unique_ptr<ObjectReader>(
        std::make_unique<ScheduledReader>(actor_, *std::move(reader)));
  }
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override {
    ASSIGN_OR_RETURN(auto queue, store_->NewReadQueue(depth));
    return std::unique_ptr<ReadQueue>(std::make_unique<ScheduledQueue>(actor_, std::move(queue)));
  }
  Status Link(const std::string& from, const std::string& to) override {
    if (!actor_->Enter({.kind = Kind::kLink, .name = from, .to = to}, true)) return Stopped();
    Status linked = store_->Link(from, to);
    actor_->Observe(Kind::kLink, from, CodeOf(linked));
    if (linked.ok()) world_->SetObject(actor_->number(), to, world_->objects().at(from));
    return linked;
  }
  Result<std::uint64_t> LinkCount(const std::string& name) override {
    if (!actor_->Enter({.kind = Kind::kLinkCount, .name = name}, false)) return Stopped();
    auto count = store_->LinkCount(name);
    actor_->Observe(Kind::kLinkCount, name, count.ok() ? 1000 + *count : CodeOf(count.status()));
    return count;
  }
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override {
    if (!actor_->Enter({.kind = Kind::kMoveToPool, .name = name, .to = pool_name}, true)) {
      return Stopped();
    }
    auto moved = store_->MoveToPool(name, pool_name);
    actor_->Observe(Kind::kMoveToPool, name, moved.ok() && *moved ? 1 : 0);
    if (moved.ok() && *moved) {
      world_->SetObject(actor_->number(), pool_name, world_->objects().at(name));
      world_->SetObject(actor_->number(), name, std::nullopt);
    }
    return moved;
  }
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override {
    if (!actor_->Enter({.kind = Kind::kTryLock, .name = name}, false)) return Stopped();
    return store_->TryLock(name);
  }
  Status Refresh(const std::string& prefix) override {
    if (!actor_->Enter({.kind = Kind::kRefresh, .name = prefix}, false)) return Stopped();
    return store_->Refresh(prefix);
  }

 private:
  ScheduledStore(Actor* actor, std::unique_ptr<MemoryStore> view)
      : ForwardingStore(view.get()),
        actor_(actor),
        world_(actor->world()),
        store_(std::move(view)) {}

  /// Whether the answer of a read can no longer change.
  bool Settled(const std::string& name) const {
    return world_->rules().create_only_records && world_->Has(name) && IsLastingRecord(name);
  }
  void Wrote(const std::string& name, std::string_view bytes) {
    world_->ledger().Wrote(actor_->number(), name, bytes);
    world_->SetObject(actor_->number(), name, Xxh3(bytes));
    if (IsManifest(name)) actor_->SawManifest(name);
  }

  Actor* const actor_;
  World* const world_;
  const std::unique_ptr<MemoryStore> store_;
};

}  // namespace

std::unique_ptr<Store> NewScheduledStore(Actor* actor) {
  return std::make_unique<ScheduledStore>(actor);
}

}  // namespace cairn::interleaving

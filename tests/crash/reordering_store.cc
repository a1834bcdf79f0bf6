#include "tests/crash/reordering_store.h"

#include <utility>

namespace cairn::crash {

using Kind = StoreOp::Kind;

/// An object whose creation is done in the order that the test breaks. A store that refuses to
/// create what was not drained is asked in the other way then: it is the enumeration that has to
/// notice, not that guard.
class ReorderingStore::Prepared final : public PreparedObject {
 public:
  Prepared(ReorderingStore* store, std::string name, std::string_view bytes,
           std::shared_ptr<PreparedObject> inner)
      : store_(store), name_(std::move(name)), bytes_(bytes), inner_(std::move(inner)) {}

  Status Create() override {
    return store_->Run({.kind = Kind::kCreate, .name = name_},
                       [store = store_, name = name_, bytes = bytes_, inner = inner_] {
                         const Status created = inner->Create();
                         if (!created.Is(Code::kFailedPrecondition)) return created;
                         return store->inner()->Create(name, bytes);
                       });
  }

 private:
  ReorderingStore* const store_;
  const std::string name_;
  const std::string bytes_;
  const std::shared_ptr<PreparedObject> inner_;  // shared with what is postponed
};

/// Close, Drain and SyncNames can be postponed; the inner session then lives until they are done.
/// The memory of its parts does too: it is the committer's, who uses it again only for the next
/// save.
class ReorderingStore::Session final : public WriteSession {
 public:
  Session(ReorderingStore* store, std::shared_ptr<WriteSession> inner)
      : store_(store), inner_(std::move(inner)) {}

  std::size_t part_bytes() const override { return inner_->part_bytes(); }
  ObjectParts PartsOf(std::uint64_t bytes) const override { return inner_->PartsOf(bytes); }
  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override {
    auto opened = inner_->Open(name, object);
    store_->Done({.kind = Kind::kOpenObject, .name = name});
    return opened;
  }
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override {
    return inner_->Append(object, part, padded, tag);
  }
  Status Close(std::uint32_t object) override {
    return store_->Run({.kind = Kind::kCloseObject},
                       [inner = inner_, object] { return inner->Close(object); });
  }
  Result<std::uint64_t> WaitPart() override { return inner_->WaitPart(); }
  Status Drain() override {
    return store_->Run({.kind = Kind::kDrain}, [inner = inner_] { return inner->Drain(); });
  }
  Status SyncNames(const std::string& prefix, std::string_view why) override {
    return store_->Run(
        {.kind = Kind::kSyncNames, .name = prefix, .why = std::string(why)},
        [inner = inner_, prefix, why = std::string(why)] { return inner->SyncNames(prefix, why); });
  }
  Result<std::unique_ptr<PreparedObject>> Prepare(const std::string& name,
                                                  std::string_view bytes) override {
    auto prepared = inner_->Prepare(name, bytes);
    if (!prepared.ok() || *prepared == nullptr) return prepared;
    return std::unique_ptr<PreparedObject>(std::make_unique<Prepared>(
        store_, name, bytes, std::shared_ptr<PreparedObject>(*std::move(prepared))));
  }
  Result<bool> ReadLeft(std::uint32_t object, std::span<std::byte> into) override {
    return inner_->ReadLeft(object, into);
  }
  Result<bool> KeepLeft(std::uint32_t object, std::span<const std::byte> part) override {
    return inner_->KeepLeft(object, part);
  }
  void LeaveUnfinished(bool leave) override { inner_->LeaveUnfinished(leave); }

 private:
  ReorderingStore* const store_;
  const std::shared_ptr<WriteSession> inner_;  // shared with what is postponed
};

ReorderingStore::ReorderingStore(std::shared_ptr<Store> inner, BrokenOrder order,
                                 std::function<void()> on_postponed)
    : ForwardingStore(inner.get()),
      owned_(std::move(inner)),
      order_(std::move(order)),
      on_postponed_(std::move(on_postponed)) {}

ReorderingStore::~ReorderingStore() = default;

Status ReorderingStore::Run(const StoreOp& op, Action action) {
  if (order_.first(op)) {
    on_postponed_();
    MutexLock lock(&mu_);
    postponed_.push_back(std::move(action));
    return Status::Ok();
  }
  Status status = action();
  Done(op);
  return status;
}

void ReorderingStore::Done(const StoreOp& op) {
  if (order_.then && order_.then(op)) Flush();
}

void ReorderingStore::BeginStep(std::string_view step) {
  if (!order_.then_step.empty() && step == order_.then_step) Flush();
}

void ReorderingStore::Flush() {
  std::vector<Action> actions;
  {
    MutexLock lock(&mu_);
    actions = std::exchange(postponed_, {});
  }
  for (const Action& action : actions) {
    action().IgnoreError("too late: the engine was told that it had worked");
  }
}

Status ReorderingStore::Put(const std::string& name, std::string_view bytes) {
  return Run({.kind = Kind::kPut, .name = name},
             [this, name, bytes = std::string(bytes)] { return inner()->Put(name, bytes); });
}

Status ReorderingStore::Create(const std::string& name, std::string_view bytes) {
  return Run({.kind = Kind::kCreate, .name = name},
             [this, name, bytes = std::string(bytes)] { return inner()->Create(name, bytes); });
}

Status ReorderingStore::CreateVolatile(const std::string& name, std::string_view bytes,
                                       AfterCrash crash) {
  return Run({.kind = Kind::kCreate, .name = name},
             [this, name, bytes = std::string(bytes), crash] {
               return inner()->CreateVolatile(name, bytes, crash);
             });
}

Status ReorderingStore::Delete(const std::string& name) {
  return Run({.kind = Kind::kDelete, .name = name}, [this, name] { return inner()->Delete(name); });
}

Result<std::unique_ptr<WriteSession>> ReorderingStore::NewWriteSession(WriteMode mode) {
  auto session = inner()->NewWriteSession(mode);
  if (!session.ok()) return session.status();
  return std::unique_ptr<WriteSession>(
      std::make_unique<Session>(this, std::shared_ptr<WriteSession>(*std::move(session))));
}

Status ReorderingStore::SyncNames(const std::string& prefix, std::string_view why) {
  return Run({.kind = Kind::kSyncNames, .name = prefix, .why = std::string(why)},
             [this, prefix, why = std::string(why)] { return inner()->SyncNames(prefix, why); });
}

Status ReorderingStore::SyncDirectory(const std::string& directory, std::string_view why) {
  return Run(
      {.kind = Kind::kSyncNames, .name = directory, .why = std::string(why)},
      [this, directory, why = std::string(why)] { return inner()->SyncDirectory(directory, why); });
}

Result<bool> ReorderingStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  const StoreOp op{.kind = Kind::kMoveToPool, .name = name, .to = pool_name};
  auto moved = inner()->MoveToPool(name, pool_name);
  Done(op);
  return moved;
}

}  // namespace cairn::crash

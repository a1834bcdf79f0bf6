#include "storage/sim/faulty_store.h"

#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_annotations.h"

namespace cairn {

/// The plan, and what its hits mean. Shared by the store, its sessions, readers and queues.
class FaultyStore::Faults {
 public:
  void Arm(StoreFault fault) {
    if (fault.status.ok()) fault.status = UnavailableError("injected");
    {
      MutexLock lock(&mu_);
      fault_ = fault;
    }
    plan_.Arm(fault.trigger);
  }

  FaultPlan<StoreOp::Kind>& plan() { return plan_; }

  /// The fault that hits the next operation, if one does.
  std::optional<StoreFault> Next(StoreOp::Kind kind) EXCLUDES(mu_) {
    if (!plan_.Next(kind)) return std::nullopt;
    plan_.CountHit();
    MutexLock lock(&mu_);
    return fault_;
  }

  template <typename Operation>
  auto Run(StoreOp::Kind kind, const Operation& operation) -> decltype(operation()) {
    const std::optional<StoreFault> fault = Next(kind);
    if (!fault.has_value()) return operation();
    if (fault->when == StoreFault::When::kAfter) {
      const auto lost = operation();
      (void)lost;
    }
    return fault->status;
  }

 private:
  FaultPlan<StoreOp::Kind> plan_;
  Mutex mu_;
  StoreFault fault_ GUARDED_BY(mu_);
};

class FaultyStore::Session final : public WriteSession {
 public:
  Session(Faults* faults, std::unique_ptr<WriteSession> inner)
      : faults_(faults), part_bytes_(inner->part_bytes()), inner_(std::move(inner)) {}

  std::size_t part_bytes() const override { return part_bytes_; }
  ObjectParts PartsOf(std::uint64_t bytes) const override {
    return inner_ != nullptr ? inner_->PartsOf(bytes) : WriteSession::PartsOf(bytes);
  }

  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override {
    return Run<Result<std::uint32_t>>(StoreOp::Kind::kOpenObject,
                                      [&] { return inner_->Open(name, object); });
  }
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override {
    return Run<Status>(StoreOp::Kind::kAppend,
                       [&] { return inner_->Append(object, part, padded, tag); });
  }
  Status Close(std::uint32_t object) override {
    return Run<Status>(StoreOp::Kind::kCloseObject, [&] { return inner_->Close(object); });
  }
  Result<std::uint64_t> WaitPart() override {
    return Run<Result<std::uint64_t>>(StoreOp::Kind::kWaitPart, [&] { return inner_->WaitPart(); });
  }
  Status Drain() override {
    return Run<Status>(StoreOp::Kind::kDrain, [&] { return inner_->Drain(); });
  }

 private:
  template <typename Outcome, typename Operation>
  Outcome Run(StoreOp::Kind kind, const Operation& operation) {
    if (!failed_.ok()) return failed_;
    const std::optional<StoreFault> fault = faults_->Next(kind);
    if (!fault.has_value()) return operation();
    if (fault->when == StoreFault::When::kAfter) {
      const auto lost = operation();
      (void)lost;
    }
    failed_ = fault->status;
    inner_.reset();  // waits for what is in flight: borrowed memory goes back to the caller
    return failed_;
  }

  Faults* const faults_;
  const std::size_t part_bytes_;
  Status failed_;
  std::unique_ptr<WriteSession> inner_;
};

class FaultyStore::Reader final : public ObjectReader {
 public:
  Reader(Faults* faults, std::unique_ptr<ObjectReader> inner)
      : faults_(faults), inner_(std::move(inner)) {}

  const std::string& name() const override { return inner_->name(); }
  std::uint64_t bytes() const override { return inner_->bytes(); }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override {
    return faults_->Run(StoreOp::Kind::kRead, [&] { return inner_->Read(offset, into); });
  }

  ObjectReader* inner() { return inner_.get(); }

 private:
  Faults* const faults_;
  const std::unique_ptr<ObjectReader> inner_;
};

/// Hands failures out before the completions of the inner queue.
class FaultyStore::Queue final : public ReadQueue {
 public:
  Queue(Faults* faults, std::unique_ptr<ReadQueue> inner)
      : faults_(faults), inner_(std::move(inner)) {}

  int depth() const override { return inner_->depth(); }
  int in_flight() const override { return inner_->in_flight() + static_cast<int>(failed_.size()); }

  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override {
    if (in_flight() >= depth()) {
      return InvalidArgumentError("the queue is full: " + std::to_string(depth()) + " in flight");
    }
    auto* faulty = dynamic_cast<Reader*>(reader);
    if (faulty == nullptr) return InvalidArgumentError("the reader belongs to another store");
    const std::optional<StoreFault> fault = faults_->Next(StoreOp::Kind::kRead);
    if (fault.has_value()) {
      failed_.push_back({.tag = tag, .status = fault->status});
      return Status::Ok();
    }
    return inner_->Submit(faulty->inner(), offset, into, tag);
  }

  Result<Done> Wait() override {
    if (failed_.empty()) return inner_->Wait();
    Done done = std::move(failed_.front());
    failed_.pop_front();
    return done;
  }

 private:
  Faults* const faults_;
  const std::unique_ptr<ReadQueue> inner_;
  std::deque<Done> failed_;
};

FaultyStore::FaultyStore(Store* inner)
    : ForwardingStore(inner), faults_(std::make_unique<Faults>()) {}
FaultyStore::~FaultyStore() = default;

void FaultyStore::Arm(StoreFault fault) { faults_->Arm(std::move(fault)); }
void FaultyStore::Disarm() { faults_->plan().Disarm(); }
void FaultyStore::SetDelay(Clock* clock, FaultPlan<StoreOp::Kind>::Delay delay) {
  faults_->plan().SetDelay(clock, std::move(delay));
}
std::uint64_t FaultyStore::operations() const { return faults_->plan().operations(); }
std::uint64_t FaultyStore::operations(StoreOp::Kind kind) const {
  return faults_->plan().operations(kind);
}
std::uint64_t FaultyStore::failures() const { return faults_->plan().hits(); }

Status FaultyStore::Put(const std::string& name, std::string_view bytes) {
  return faults_->Run(StoreOp::Kind::kPut, [&] { return inner()->Put(name, bytes); });
}

Status FaultyStore::Create(const std::string& name, std::string_view bytes) {
  return faults_->Run(StoreOp::Kind::kCreate, [&] { return inner()->Create(name, bytes); });
}

Status FaultyStore::CreateVolatile(const std::string& name, std::string_view bytes,
                                   AfterCrash crash) {
  return faults_->Run(StoreOp::Kind::kCreate,
                      [&] { return inner()->CreateVolatile(name, bytes, crash); });
}

Result<std::string> FaultyStore::Get(const std::string& name, std::uint64_t limit) {
  return faults_->Run(StoreOp::Kind::kGet, [&] { return inner()->Get(name, limit); });
}

Result<ObjectInfo> FaultyStore::Stat(const std::string& name) {
  return faults_->Run(StoreOp::Kind::kStat, [&] { return inner()->Stat(name); });
}

Result<Listing> FaultyStore::List(const std::string& prefix) {
  return faults_->Run(StoreOp::Kind::kList, [&] { return inner()->List(prefix); });
}

Result<std::vector<TaggedObject>> FaultyStore::ListBelow(const std::string& prefix,
                                                         std::size_t limit) {
  return faults_->Run(StoreOp::Kind::kList,
                      [&] { return ForwardingStore::ListBelow(prefix, limit); });
}

Status FaultyStore::Delete(const std::string& name) {
  return faults_->Run(StoreOp::Kind::kDelete, [&] { return inner()->Delete(name); });
}

Status FaultyStore::PruneDirectories(const std::string& prefix) {
  return faults_->Run(StoreOp::Kind::kPruneDirectories,
                      [&] { return inner()->PruneDirectories(prefix); });
}

Result<std::unique_ptr<WriteSession>> FaultyStore::NewWriteSession(WriteMode mode) {
  ASSIGN_OR_RETURN(auto session, inner()->NewWriteSession(mode));
  return std::unique_ptr<WriteSession>(
      std::make_unique<Session>(faults_.get(), std::move(session)));
}

Status FaultyStore::SyncNames(const std::string& prefix, std::string_view why) {
  return faults_->Run(StoreOp::Kind::kSyncNames, [&] { return inner()->SyncNames(prefix, why); });
}

Status FaultyStore::SyncDirectory(const std::string& directory, std::string_view why) {
  return faults_->Run(StoreOp::Kind::kSyncNames,
                      [&] { return inner()->SyncDirectory(directory, why); });
}

Result<std::unique_ptr<ObjectReader>> FaultyStore::OpenReader(const std::string& name) {
  const std::optional<StoreFault> fault = faults_->Next(StoreOp::Kind::kOpenReader);
  if (fault.has_value()) return fault->status;
  ASSIGN_OR_RETURN(auto reader, inner()->OpenReader(name));
  return std::unique_ptr<ObjectReader>(std::make_unique<Reader>(faults_.get(), std::move(reader)));
}

Result<std::unique_ptr<ReadQueue>> FaultyStore::NewReadQueue(int depth) {
  ASSIGN_OR_RETURN(auto queue, inner()->NewReadQueue(depth));
  return std::unique_ptr<ReadQueue>(std::make_unique<Queue>(faults_.get(), std::move(queue)));
}

Status FaultyStore::Link(const std::string& from, const std::string& to) {
  return faults_->Run(StoreOp::Kind::kLink, [&] { return inner()->Link(from, to); });
}

Result<std::uint64_t> FaultyStore::LinkCount(const std::string& name) {
  return faults_->Run(StoreOp::Kind::kLinkCount, [&] { return inner()->LinkCount(name); });
}

Result<bool> FaultyStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  return faults_->Run(StoreOp::Kind::kMoveToPool,
                      [&] { return inner()->MoveToPool(name, pool_name); });
}

Result<std::vector<std::string>> FaultyStore::ListUnfinished(const std::string& prefix) {
  return faults_->Run(StoreOp::Kind::kList, [&] { return inner()->ListUnfinished(prefix); });
}

Status FaultyStore::AbandonUnfinished(const std::string& name) {
  return faults_->Run(StoreOp::Kind::kDelete, [&] { return inner()->AbandonUnfinished(name); });
}

Result<std::unique_ptr<StoreLock>> FaultyStore::TryLock(const std::string& name) {
  return faults_->Run(StoreOp::Kind::kTryLock, [&] { return inner()->TryLock(name); });
}

Result<std::optional<std::uint64_t>> FaultyStore::FreeBytes() {
  return faults_->Run(StoreOp::Kind::kFreeBytes, [&] { return inner()->FreeBytes(); });
}

Status FaultyStore::Refresh(const std::string& prefix) {
  return faults_->Run(StoreOp::Kind::kRefresh, [&] { return inner()->Refresh(prefix); });
}

}  // namespace cairn

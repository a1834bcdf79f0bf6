#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "storage/forwarding_store.h"
#include "storage/memory/store_op.h"
#include "storage/sim/fault_plan.h"

namespace cairn {

struct StoreFault {
  enum class When {
    kBefore,  // the operation is not done
    kAfter,   // the operation is done, and only its answer is lost
  };
  Status status;  // what the caller gets; not OK
  When when = When::kBefore;
  FaultTrigger<StoreOp::Kind> trigger;
};

/// A store that fails, delays and counts: for sweeps that fail the 1st, 2nd, … operation, and for
/// requests that went through although their answer was lost (a create-only put that is then
/// retried finds its own object).
///
/// Counted are the operations of the store, of its write sessions (Open, Append, Close, WaitPart,
/// Drain), readers and read queues (at submission; the failure comes with the completion). A
/// session hit by a fault is condemned, as by any error, and holds no borrowed memory any more.
///
/// May be called from several threads; which operation is the n-th is then a matter of timing.
/// Sessions, readers and queues may not outlive it.
class FaultyStore final : public ForwardingStore {
 public:
  /// `inner` is borrowed.
  explicit FaultyStore(Store* inner);
  ~FaultyStore() override;

  /// Sets the fault; operations are counted from 0 again.
  void Arm(StoreFault fault);
  void Disarm();
  /// Every operation first sleeps as long as `delay` says for its kind.
  void SetDelay(Clock* clock, FaultPlan<StoreOp::Kind>::Delay delay);

  /// Operations since the last Arm, or since the beginning.
  std::uint64_t operations() const;
  std::uint64_t operations(StoreOp::Kind kind) const;
  /// How many were made to fail.
  std::uint64_t failures() const;

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash crash) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override;
  Result<ObjectInfo> Stat(const std::string& name) override;
  Result<Listing> List(const std::string& prefix) override;
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override;
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Status SyncDirectory(const std::string& directory, std::string_view why) override;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override;
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override;
  Status Link(const std::string& from, const std::string& to) override;
  Result<std::uint64_t> LinkCount(const std::string& name) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;
  Result<std::vector<std::string>> ListUnfinished(const std::string& prefix) override;
  Status AbandonUnfinished(const std::string& name) override;
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override;
  Result<std::optional<std::uint64_t>> FreeBytes() override;
  Status Refresh(const std::string& prefix) override;

 private:
  class Faults;
  class Session;
  class Reader;
  class Queue;

  const std::unique_ptr<Faults> faults_;
};

}  // namespace cairn

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "storage/forwarding_store.h"
#include "storage/memory/store_op.h"

namespace cairn::crash {

/// An order that the protocol keeps, to be broken: what `first` matches is done only after an
/// operation that `then` matches, or after the step `then_step` has begun.
struct BrokenOrder {
  std::function<bool(const StoreOp&)> first;
  std::function<bool(const StoreOp&)> then;
  std::string then_step;
};

/// A store that breaks one order: operations are answered with OK and done later. What changes
/// objects can be postponed: Put, Create (also of what was prepared), Delete, SyncNames,
/// SyncDirectory, and Close, Drain and SyncNames of write sessions. May be called from several
/// threads; what is postponed is done in order, by the thread that releases it.
class ReorderingStore final : public ForwardingStore {
 public:
  /// `on_postponed` is told whenever something is.
  ReorderingStore(std::shared_ptr<Store> inner, BrokenOrder order,
                  std::function<void()> on_postponed);
  ~ReorderingStore() override;

  void BeginStep(std::string_view step);

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash crash) override;
  Status Delete(const std::string& name) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Status SyncDirectory(const std::string& directory, std::string_view why) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;

 private:
  class Prepared;
  class Session;
  using Action = std::function<Status()>;

  Status Run(const StoreOp& op, Action action) EXCLUDES(mu_);
  /// Does what was postponed, if `op` is what it waits for.
  void Done(const StoreOp& op) EXCLUDES(mu_);
  void Flush() EXCLUDES(mu_);

  const std::shared_ptr<Store>
      owned_;  // the inner one; shared: the manager's environment shares stores
  const BrokenOrder order_;
  const std::function<void()> on_postponed_;
  Mutex mu_;
  std::vector<Action> postponed_ GUARDED_BY(mu_);
};

}  // namespace cairn::crash

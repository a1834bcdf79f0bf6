#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/faulty_store.h"
#include "tests/crash/machine.h"

namespace cairn::crash {

/// A fault that can be made to hit the n-th operation.
struct FaultKind {
  std::string name;
  std::function<FsFault(FaultTrigger<FsOpKind>)> on_disk;  // one of the two is set
  std::function<StoreFault(FaultTrigger<StoreOp::Kind>)> in_bucket;
  std::optional<FsOpKind> only;  // hit only these
};

/// What can go wrong on a machine of that kind.
std::vector<FaultKind> Faults(Machine::Kind kind);

/// One process of the job on a machine, with a layer in between that fails. For one thread.
class Process {
 public:
  Process(Machine* machine, IdSource* ids, Clock* clock);
  ~Process();

  void Arm(const FaultKind& kind, std::uint64_t at, bool from_then_on);
  void Disarm();
  std::uint64_t failures() const;
  /// Whether the fault's turn came.
  bool Reached(const FaultKind& kind, std::uint64_t at) const;

  /// Closes what was open, and opens anew.
  Status Open(ManagerOptions options);
  void Close() { manager_.reset(); }
  CheckpointManager* manager() { return manager_.get(); }

 private:
  Machine* const machine_;
  IdSource* const ids_;
  Clock* const clock_;
  std::unique_ptr<FaultyFs> disk_;
  std::shared_ptr<Store> inner_;
  std::shared_ptr<FaultyStore> bucket_;         // shared: the manager's environment holds it too
  std::unique_ptr<CheckpointManager> manager_;  // last: it goes first
};

/// Ends the test when nothing happened for long: a call that hangs is a finding too.
class Watchdog {
 public:
  Watchdog() : thread_([this](std::stop_token stop) { Watch(std::move(stop)); }) {}
  void Now(std::string what) {
    MutexLock lock(&mu_);
    what_ = std::move(what);
    ++count_;
  }

 private:
  void Watch(std::stop_token stop);

  Mutex mu_;
  std::string what_ GUARDED_BY(mu_);
  std::uint64_t count_ GUARDED_BY(mu_) = 0;
  std::jthread thread_;
};

}  // namespace cairn::crash

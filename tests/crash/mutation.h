#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/machine.h"
#include "tests/crash/reordering_store.h"
#include "tests/crash/sync_point.h"

namespace cairn::crash {

/// The protocol with one sync or one order left out.
struct Mutation {
  std::string name;
  /// Syncs for which this says true do nothing. On disks.
  std::function<bool(const SyncPoint&)> ignore;
  /// Unless one of these is given: then they are made late, when the next operation of the disk
  /// that is described so has been done, or when the step has begun.
  std::string late_operation;
  std::string late_step;
  /// An order of operations of the store that is broken. On disks and in buckets.
  std::optional<BrokenOrder> order;

  bool late() const { return !late_operation.empty() || !late_step.empty(); }
};

/// The protocol without that sync.
Mutation WithoutSync(const SyncPoint& point);

/// The orders that the protocol keeps, each broken, on a machine of that kind. `likely` names the
/// scenario that should notice.
struct OrderMutation {
  Mutation mutation;
  std::string likely;
};
std::vector<OrderMutation> OrderMutations(Machine::Kind kind);

}  // namespace cairn::crash

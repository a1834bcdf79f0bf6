#pragma once

#include <string>
#include <string_view>

#include "storage/sim/sim_fs.h"

namespace cairn::crash {

/// A sync as the mutation suite tells them apart: what it is for, of what (the path normalised),
/// and, for records, in which protocol step.
struct SyncPoint {
  SimSync sync;
  std::string step;

  auto operator<=>(const SyncPoint&) const = default;
};

/// The point of a sync that the calling thread is making.
SyncPoint PointOf(const SimSync& sync);
std::string DescribeSync(const SyncPoint& point);

/// The protocol step of the calling thread: the engine's threads begin a step and then do its
/// operations.
void SetCurrentStep(std::string_view step);

}  // namespace cairn::crash

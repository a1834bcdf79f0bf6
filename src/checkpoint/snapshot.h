#pragma once

#include <cstddef>

#include <cairn/checkpoint_manager.h>

#include "base/worker_pool.h"
#include "checkpoint/layout.h"

namespace cairn {

/// Copies the plan's heads and tensors to their places in the arena, on all threads of the pool:
/// afterwards the arena holds the files as they will stand on disk.
void CopyIntoArena(const SaveRequest& request, const SavePlan& plan, std::byte* arena,
                   WorkerPool* pool);

}  // namespace cairn

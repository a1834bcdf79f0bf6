#pragma once

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

namespace cairn {

/// For trainings that go on without any table where there were some: their next checkpoints would
/// have no rows, and those that have them are removed in time. A Mismatch that names the tables. In
/// RestoreRequest::prepare, before anything is changed.
Status RefuseLostTables(const Restored& head);

}  // namespace cairn

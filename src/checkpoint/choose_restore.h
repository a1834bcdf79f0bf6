#pragma once

#include <string>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/repository.h"
#include "storage/store.h"

namespace cairn {

/// What a look at all bytes of one checkpoint shows, without what it builds on; empty: nothing is
/// wrong with it.
Result<std::string> FindDamage(Store* store, const Checkpoint& checkpoint);

/// What several participants restore together: the newest of `sealed` (oldest first) that is whole,
/// with what it builds on; null when none is. Whole: every file is there with its size. One that a
/// participant reported as damaged is read and compared with its checksums first; when there is
/// nothing wrong with it, the report is void (a copy was put back, or the reader's memory was bad).
Result<const Checkpoint*> ChooseRestore(Store* store, const std::vector<Checkpoint>& sealed);

}  // namespace cairn

#pragma once

#include <cstdint>
#include <vector>

#include "catalog/catalog.h"
#include "trial/event_log.h"
#include "trial/trial_record.h"

namespace cairn {

/// The events of a catalog from `from` on.
std::vector<Event> ReplayAll(EventLog* log, std::uint64_t from = 1);
/// Fails where a table says something else than the fold of the events.
void ExpectTablesAgree(Catalog* catalog, const TrialRecords& records);

}  // namespace cairn

#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

#include "trial/trial_record.h"

namespace cairn {

/// The fold of events as bytes, for the summary of an event log (docs/format/events.md). Equal
/// records are equal bytes.
std::string EncodeRecords(const TrialRecords& records);
/// Corruption for what is none; Unimplemented when a newer program wrote it.
Result<TrialRecords> DecodeRecords(std::string_view bytes);

}  // namespace cairn

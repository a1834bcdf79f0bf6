#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <cairn/status.h>
#include <cairn/value.h>

#include "trial/event_log.h"
#include "trial/trial_record.h"
#include "tune/tuner_record.h"

namespace cairn::tune {

/// What the events of an experiment came to, up to one of them: kept beside the journal, so that
/// opening takes as long as what is known is large, and not as what happened was long
/// (docs/format/tune.md, "The summary"). The journal keeps all events and stays the truth: a
/// summary that is missing, damaged or of another journal costs time and nothing else.
struct TunerSummary {
  EventPosition position;  // the last event that it stands for
  TunerRecord tuner;
  TrialRecords trials;
  /// What the policy was made from, and its state; null when that comes by replay alone.
  Value policy;
  Value policy_state;
};

/// Its name in the experiment's directory.
inline constexpr char kSummaryName[] = "summary";

std::string EncodeSummary(const TunerSummary& summary);
/// Corruption for what is none; Unimplemented when a newer program wrote it.
Result<TunerSummary> DecodeSummary(std::string_view bytes);
/// Of a summary only up to which event it is, and what the experiment is: in no time.
Result<std::pair<EventPosition, Value>> DecodeSummaryHead(std::string_view bytes);

}  // namespace cairn::tune

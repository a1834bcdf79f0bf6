#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <cairn/value.h>

#include "trial/event.h"
#include "trial/trial_record.h"
#include "tune/tuner_record.h"

namespace cairn::tune {

/// What an event says to those who only watch (TuneNews in tuner.h); nothing for most kinds.
std::optional<Value> NewsOf(Event event);

/// Its reports that count: a run that went back reports again what came after. None of null.
/// With `former` of a trial, those that were made with other hyperparameters have them as `config`.
Value::List ResultsOf(const TrialRecord* record,
                      std::span<const std::pair<std::uint64_t, Value>> former = {});

/// What is known of a trial, for results. `record`: the engine's; null when it knows none.
Value DescribeTrial(const TuneTrial& trial, const std::string& status, const TrialRecord* record,
                    bool with_results);

}  // namespace cairn::tune

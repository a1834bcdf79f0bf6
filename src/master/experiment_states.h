#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "master/adaptive_search.h"
#include "trial/trial_state.h"

namespace cairn::master {

/// What an experiment is, given how many of its trials are in which state.
std::string ExperimentState(const std::map<std::string, std::uint64_t>& trials,
                            std::uint64_t max_trials, bool paused, bool canceled);
/// COMPLETED, CANCELED, ERROR.
bool IsEndedState(std::string_view state);
/// The names of all others.
std::vector<std::string> LivingStates();
/// QUEUED, STARTING, RUNNING.
bool IsActive(TrialState state);

/// The message of a trial that cannot begin: `why` is what its storage said.
std::string WaitMessage(const std::string& why);
/// What users asked for and what the searcher knows, as the catalog keeps it. `search` may be null.
std::string IntentText(bool paused, bool canceled, const AdaptiveSearch* search = nullptr);

}  // namespace cairn::master

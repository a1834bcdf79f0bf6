#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "master/adaptive_search.h"
#include "trial/trial_state.h"

namespace cairn::master {

/// What users asked of an experiment.
struct Intent {
  bool paused = false;
  bool canceled = false;
  /// Of the trials that are not made yet, once one of a paused or canceled experiment was activated
  /// by itself: they stay what they were, as its other trials do.
  bool rest_paused = false;
  bool rest_canceled = false;

  bool makes_trials() const { return !paused && !canceled && !rest_paused && !rest_canceled; }
  /// When one trial is activated.
  Intent AfterActivatingOne() const;
  /// When all are.
  Intent AfterActivating() const;
  bool operator==(const Intent&) const = default;
};

/// What an experiment is, given how many of its trials are in which state.
std::string ExperimentState(const std::map<std::string, std::uint64_t>& trials,
                            std::uint64_t max_trials, const Intent& intent);
/// COMPLETED, CANCELED, ERROR.
bool IsEndedState(std::string_view state);
/// The names of all others.
std::vector<std::string> LivingStates();
/// QUEUED, STARTING, RUNNING.
bool IsActive(TrialState state);

/// The message of a trial that cannot begin: `why` is what its storage said.
std::string WaitMessage(const std::string& why);
/// What users asked for and what the searcher knows, as the catalog keeps it. `search` may be null.
std::string IntentText(const Intent& intent, const AdaptiveSearch* search = nullptr);
/// What users asked for, of such a text.
Intent IntentIn(const Value& kept);

}  // namespace cairn::master

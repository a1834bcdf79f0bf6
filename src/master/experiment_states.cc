#include "master/experiment_states.h"

#include <utility>

#include "format/json.h"

namespace cairn::master {

bool IsEndedState(std::string_view state) {
  return state == "COMPLETED" || state == "CANCELED" || state == "ERROR";
}

Intent Intent::AfterActivatingOne() const {
  return {.rest_paused = paused || rest_paused, .rest_canceled = canceled || rest_canceled};
}

Intent Intent::AfterActivating() const {
  return {.canceled = canceled, .rest_canceled = rest_canceled};
}

std::string ExperimentState(const std::map<std::string, std::uint64_t>& trials,
                            std::uint64_t max_trials, const Intent& intent) {
  const auto count = [&](std::string_view state) {
    const auto found = trials.find(std::string(state));
    return found == trials.end() ? std::uint64_t{0} : found->second;
  };
  for (const std::string_view state :
       {"RUNNING", "STARTING", "PAUSING", "STOPPING", "QUEUED", "PAUSED"}) {
    if (count(state) > 0) return std::string(state);
  }
  std::uint64_t total = 0;
  for (const auto& [state, number] : trials) total += number;
  const bool whole = total >= max_trials;
  const bool canceled = intent.canceled || (intent.rest_canceled && !whole);
  if (!canceled && !whole) return intent.paused || intent.rest_paused ? "PAUSED" : "QUEUED";
  if (canceled && max_trials > 1) return "CANCELED";
  for (const std::string_view state : {"COMPLETED", "ERROR"}) {
    if (count(state) > 0) return std::string(state);
  }
  return "CANCELED";
}

std::vector<std::string> LivingStates() {
  return {"QUEUED", "STARTING", "RUNNING", "PAUSING", "PAUSED", "STOPPING"};
}

bool IsActive(TrialState state) {
  return state == TrialState::kQueued || state == TrialState::kStarting ||
         state == TrialState::kRunning;
}

std::string WaitMessage(const std::string& why) { return "waits for its storage: " + why; }

std::string IntentText(const Intent& intent, const AdaptiveSearch* search) {
  Value::Object members{{"paused", intent.paused}, {"canceled", intent.canceled}};
  if (intent.rest_paused) members["rest_paused"] = true;
  if (intent.rest_canceled) members["rest_canceled"] = true;
  if (search != nullptr) members["search"] = search->Save();
  return EncodeJson(Value(std::move(members)));
}

Intent IntentIn(const Value& kept) {
  const auto flag = [&](std::string_view name) {
    const Value* found = kept.Find(name);
    return found != nullptr && found->if_bool() != nullptr && *found->if_bool();
  };
  return {.paused = flag("paused"),
          .canceled = flag("canceled"),
          .rest_paused = flag("rest_paused"),
          .rest_canceled = flag("rest_canceled")};
}

}  // namespace cairn::master

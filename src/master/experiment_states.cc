#include "master/experiment_states.h"

#include <utility>

#include "format/json.h"

namespace cairn::master {

bool IsEndedState(std::string_view state) {
  return state == "COMPLETED" || state == "CANCELED" || state == "ERROR";
}

std::string ExperimentState(const std::map<std::string, std::uint64_t>& trials,
                            std::uint64_t max_trials, bool paused, bool canceled) {
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
  if (!canceled && total < max_trials) return paused ? "PAUSED" : "QUEUED";
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

std::string IntentText(bool paused, bool canceled, const AdaptiveSearch* search) {
  Value::Object members{{"paused", paused}, {"canceled", canceled}};
  if (search != nullptr) members["search"] = search->Save();
  return EncodeJson(Value(std::move(members)));
}

}  // namespace cairn::master

#include "master/prometheus.h"

#include <fmt/format.h>

#include "base/status_macros.h"

namespace cairn::master {
namespace {

constexpr std::string_view kStates[] = {"QUEUED",   "STARTING",  "RUNNING",  "PAUSING", "PAUSED",
                                        "STOPPING", "COMPLETED", "CANCELED", "ERROR"};

class Figures {
 public:
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  void Add(double value, std::string_view labels = "") {
    text_ += labels.empty() ? fmt::format("{} {}\n", name_, value)
                            : fmt::format("{}{{{}}} {}\n", name_, labels, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

}  // namespace

Result<std::string> PrometheusText(const ApiParts& parts) {
  Figures out;
  out.Begin("cairn_build_info", "gauge", "The master's version.");
  out.Add(1, fmt::format("version=\"{}\"", parts.version));
  out.Begin("cairn_experiments", "gauge", "Experiments by state.");
  for (const std::string_view state : kStates) {
    ASSIGN_OR_RETURN(const auto page, parts.catalog->experiments().List(
                                          {.states = {std::string(state)}, .limit = 1}));
    out.Add(static_cast<double>(page.total), fmt::format("state=\"{}\"", state));
  }
  out.Begin("cairn_trials", "gauge", "Trials by state.");
  for (const std::string_view state : kStates) {
    ASSIGN_OR_RETURN(const auto page,
                     parts.catalog->trials().List({.states = {std::string(state)}, .limit = 1}));
    out.Add(static_cast<double>(page.total), fmt::format("state=\"{}\"", state));
  }
  ASSIGN_OR_RETURN(const std::vector<LaunchInfo> launches, parts.launcher->List());
  int used = 0;
  int queued = 0;
  for (const LaunchInfo& launch : launches) {
    if (HasSlotsHere(launch)) used += launch.slots;
    if (launch.state == LaunchState::kQueued) ++queued;
  }
  out.Begin("cairn_slots", "gauge", "Slots of this machine.");
  out.Add(parts.slots);
  out.Begin("cairn_slots_used", "gauge", "Slots that running trials have.");
  out.Add(used);
  out.Begin("cairn_runs_queued", "gauge", "Runs that wait for slots.");
  out.Add(queued);
  ASSIGN_OR_RETURN(const auto usage, parts.catalog->trials().StorageUsage());
  double bytes = 0;
  double checkpoints = 0;
  for (const auto& one : usage) {
    bytes += static_cast<double>(one.bytes);
    checkpoints += static_cast<double>(one.checkpoints);
  }
  out.Begin("cairn_checkpoints", "gauge", "Checkpoints that are kept.");
  out.Add(checkpoints);
  out.Begin("cairn_checkpoint_bytes", "gauge", "Bytes of checkpoints that are kept.");
  out.Add(bytes);
  ASSIGN_OR_RETURN(const std::uint64_t last, parts.catalog->LastEvent());
  out.Begin("cairn_events_total", "counter", "Events that were recorded.");
  out.Add(static_cast<double>(last));
  out.Begin("cairn_event_listeners", "gauge", "Open streams of events.");
  out.Add(static_cast<double>(parts.feed->subscribers()));
  out.Begin("cairn_requests_waiting", "gauge", "Requests that wait for a thread.");
  out.Add(static_cast<double>(parts.threads->waiting()));
  return out.Take();
}

}  // namespace cairn::master

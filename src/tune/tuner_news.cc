#include "tune/tuner_news.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "format/json.h"
#include "tune/value_members.h"

namespace cairn::tune {

std::optional<Value> NewsOf(Event event) {
  Value::Object news{{"trial", event.trial}, {"time", event.time}, {"run", event.run}};
  const auto take = [&](const char* from, const char* as) {
    if (event.body.Find(from) != nullptr) news[as] = TakeMember(&event.body, from);
  };
  switch (event.kind) {
    case EventKind::kRunStarted: {
      news["what"] = "run";
      const Value* from = event.body.Find("from");
      news["iteration"] = from == nullptr ? 0 : IntOf(*from, "steps_completed");
      return news;
    }
    case EventKind::kRunReady:
      news["what"] = "started";
      return news;
    case EventKind::kReport:
      news["what"] = "result";
      take("metrics", "result");
      RestoreNonFinite(&news["result"]);
      take("decision", "decision");
      return news;
    case EventKind::kCheckpointCompleted:
      news["what"] = "checkpoint";
      news["checkpoint"] = std::move(event.body);
      return news;
    case EventKind::kNote: {
      const std::string what = TextOf(event.body, "what");
      if (what == "suggest") {
        news["what"] = "added";
        take("config", "config");
      } else if (what == "choose") {
        const Value* choice = event.body.Find("choice");
        if (choice == nullptr || TextOf(*choice, "donor").empty()) return std::nullopt;
        news["what"] = "exploit";
        news["donor"] = TextOf(*choice, "donor");
        news["config"] = *choice->Find("config");
        take("iteration", "iteration");
      } else if (what == "failure") {
        news["what"] = "failure";
        take("error", "error");
      } else if (what == "paused") {
        news["what"] = "paused";
      } else if (what == "end") {
        news["what"] = "ended";
        take("error", "failed");
      } else {
        return std::nullopt;
      }
      return news;
    }
    default:
      return std::nullopt;
  }
}

Value::List ResultsOf(const TrialRecord* record,
                      std::span<const std::pair<std::uint64_t, Value>> former) {
  Value::List results;
  if (record == nullptr) return results;
  std::vector<const MetricPoint*> points;
  for (const MetricPoint& point : record->reports) {
    while (!points.empty() && points.back()->steps >= point.steps) points.pop_back();
    points.push_back(&point);
  }
  for (const MetricPoint* point : points) {
    Value::Object* const result = results.emplace_back(point->values).if_object();
    const auto then =
        std::ranges::find_if(former, [&](const auto& one) { return point->run <= one.first; });
    if (result != nullptr && then != former.end()) (*result)["config"] = then->second;
  }
  return results;
}

Value DescribeTrial(const TuneTrial& trial, const std::string& status, const TrialRecord* record,
                    bool with_results) {
  Value::Object out{
      {"trial", trial.id},    {"config", trial.config},       {"status", status},
      {"error", trial.error}, {"iteration", trial.iteration}, {"last_result", trial.last_result}};
  Value::List checkpoints;
  if (record != nullptr) {
    out["run"] = record->core.run;
    for (const CheckpointRecord& one : record->checkpoints) {
      if (one.state == CheckpointState::kCompleted) checkpoints.push_back(cairn::ToValue(one));
    }
  }
  if (with_results) out["results"] = ResultsOf(record);
  out["checkpoints"] = std::move(checkpoints);
  return out;
}

}  // namespace cairn::tune

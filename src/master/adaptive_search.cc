#include "master/adaptive_search.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/member_reader.h"

namespace cairn::master {
namespace {

constexpr const char* kSteps = "steps_completed";

/// Rungs at max_length, max_length / divisor, …: as many as asked for, but none below one step.
tune::AshaOptions AshaOf(const SearcherConfig& config) {
  const auto length = static_cast<double>(config.max_length);
  int rungs = 1;
  double first = length;
  while (rungs < config.max_rungs && first / config.divisor >= 1) {
    first /= config.divisor;
    ++rungs;
  }
  const int brackets = config.mode == SearcherConfig::Mode::kAggressive ? 1
                       : config.mode == SearcherConfig::Mode::kStandard ? (rungs - 1) / 2 + 1
                                                                        : rungs;
  return {.score = {.metric = config.metric,
                    .maximize = !config.smaller_is_better,
                    .time_attr = kSteps},
          // Divided down and multiplied up again, the last rung may miss the length by a bit.
          .max_t = length * (1 + 1e-9),
          .grace_period = first,
          .reduction_factor = config.divisor,
          .brackets = brackets,
          .stop_last_trials = false,
          .seed = config.seed};
}

}  // namespace

Result<std::unique_ptr<AdaptiveSearch>> AdaptiveSearch::Make(const SearcherConfig& config,
                                                             const Value& saved) {
  ASSIGN_OR_RETURN(auto scheduler, tune::MakeAshaScheduler(AshaOf(config)));
  std::unique_ptr<AdaptiveSearch> search(new AdaptiveSearch(std::move(scheduler)));
  if (!saved.is_null()) RETURN_IF_ERROR(search->Load(saved).WithContext("searcher"));
  return search;
}

Status AdaptiveSearch::AddTrial(const std::string& trial) {
  if (trials_.contains(trial)) return Status::Ok();
  RETURN_IF_ERROR(scheduler_->OnTrialAdd(trial, Value::Object{}));
  trials_.insert(trial);
  changed_ = true;
  return Status::Ok();
}

Status AdaptiveSearch::OnValidation(std::uint64_t seq, const std::string& trial, std::int64_t steps,
                                    Value metrics) {
  if (seq <= seq_) return Status::Ok();
  seq_ = seq;
  if (!trials_.contains(trial) || !metrics.is_object()) return Status::Ok();
  const auto [at, first] = steps_.emplace(trial, steps);
  if (!first && steps <= at->second) return Status::Ok();
  at->second = steps;
  (*metrics.if_object())[kSteps] = steps;
  const Value before = scheduler_->Save();
  ASSIGN_OR_RETURN(const tune::Decision decision, scheduler_->OnResult(trial, metrics));
  if (decision.action == tune::TrialAction::kStop) to_stop_.insert(trial);
  changed_ = changed_ || !(scheduler_->Save() == before);
  return Status::Ok();
}

void AdaptiveSearch::OnStopped(const std::string& trial) {
  if (to_stop_.erase(trial) > 0) changed_ = true;
}

Value AdaptiveSearch::Save() const {
  Value::Object steps;
  for (const auto& [trial, number] : steps_) steps[trial] = number;
  return Value::Object{{"seq", seq_},
                       {"trials", Value::List(trials_.begin(), trials_.end())},
                       {"to_stop", Value::List(to_stop_.begin(), to_stop_.end())},
                       {"steps", std::move(steps)},
                       {"scheduler", scheduler_->Save()}};
}

Status AdaptiveSearch::Load(const Value& saved) {
  if (!saved.is_object()) return CorruptionError("its state is no object");
  const MemberReader members(*saved.if_object());
  std::vector<std::string> trials;
  std::vector<std::string> to_stop;
  RETURN_IF_ERROR(members.Uint("seq", &seq_));
  RETURN_IF_ERROR(members.Texts("trials", &trials));
  RETURN_IF_ERROR(members.Texts("to_stop", &to_stop));
  const Value* steps = saved.Find("steps");
  const Value* scheduler = saved.Find("scheduler");
  if (scheduler == nullptr || steps == nullptr || !steps->is_object()) {
    return CorruptionError("its state is not whole");
  }
  RETURN_IF_ERROR(scheduler_->Load(*scheduler));
  trials_ = {trials.begin(), trials.end()};
  to_stop_ = {to_stop.begin(), to_stop.end()};
  for (const auto& [trial, number] : *steps->if_object()) steps_[trial] = number.AsInt();
  return Status::Ok();
}

}  // namespace cairn::master

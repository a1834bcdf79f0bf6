// The median stopping rule (Golovin et al., "Google Vizier"): a trial whose best result up to now
// is worse than the median of what the others had on average by the same time has no prospect.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "tune/roster.h"
#include "tune/scheduler.h"
#include "tune/score.h"

namespace cairn::tune {
namespace {

/// What a trial has reported.
struct Curve {
  Value best = std::numeric_limits<double>::quiet_NaN();
  double last_pause = 0;
  // Of results at or after the grace period: time, and the sum of the scores up to then.
  std::vector<double> times;
  std::vector<double> sums;
  double last_time = 0;
};

class MedianScheduler : public Scheduler {
 public:
  explicit MedianScheduler(MedianStoppingOptions options) : options_(std::move(options)) {}

  Status OnTrialAdd(const std::string& trial, const Value& config) override {
    (void)config;
    return roster_.Add(trial);
  }

  Result<Decision> OnResult(const std::string& trial, const Value& result) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    ASSIGN_OR_RETURN(const double time, TimeOf(result, options_.score.time_attr));
    ASSIGN_OR_RETURN(const Value score, MetricOf(result, options_.score.metric));
    roster_.Set(trial, Roster::State::kRunning);
    if (score.is_null()) return Decision{};
    Curve& curve = curves_[trial];
    Take(time, score, &curve);
    Decision decision;
    if (time >= options_.grace_period) decision.action = Judge(trial, time, &curve);
    if (decision.action == TrialAction::kStop) roster_.Set(trial, Roster::State::kEnded);
    if (decision.action == TrialAction::kPause) {
      roster_.Set(trial, Roster::State::kWaiting);
      curve.last_pause = time;
    }
    return decision;
  }

  Status Check(const Value& result) const override {
    RETURN_IF_ERROR(TimeOf(result, options_.score.time_attr).status());
    return MetricOf(result, options_.score.metric).status();
  }

  Status OnRestart(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    curves_.erase(trial);
    poor_.erase(trial);
    roster_.Set(trial, Roster::State::kRunning);
    return Status::Ok();
  }

  Status OnComplete(const std::string& trial, const Value& result) override {
    (void)result;
    return OnError(trial);
  }

  Status OnError(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    roster_.Set(trial, Roster::State::kEnded);
    return Status::Ok();
  }

  Result<Choice> ChooseTrialToRun(const Candidates& candidates) override {
    auto run = [&](const std::string& trial) {
      roster_.Set(trial, Roster::State::kRunning);
      return Choice{Choice::Kind::kRun, trial, {}, {}};
    };
    if (!candidates.pending.empty()) return run(candidates.pending.front());
    for (const std::string& trial : candidates.paused) {
      if (!poor_.contains(trial)) return run(trial);
    }
    // Those that were found poor wait for all others.
    if (!candidates.paused.empty()) return run(candidates.paused.front());
    return Choice{};
  }

  Value Save() const override {
    Value::Object curves;
    for (const auto& [trial, curve] : curves_) {
      Value::List times(curve.times.begin(), curve.times.end());
      Value::List sums(curve.sums.begin(), curve.sums.end());
      curves[trial] = Value::List{curve.best, curve.last_pause, curve.last_time, std::move(times),
                                  std::move(sums)};
    }
    return Value::Object{{"roster", roster_.Save()},
                         {"curves", std::move(curves)},
                         {"poor", Value::List(poor_.begin(), poor_.end())}};
  }

  Status Load(const Value& state) override {
    const Status damaged = CorruptionError("state of the median stopping rule: damaged");
    const Value* roster = state.Find("roster");
    const Value* curves = state.Find("curves");
    const Value* poor = state.Find("poor");
    if (roster == nullptr || curves == nullptr || !curves->is_object() || poor == nullptr ||
        !poor->is_list())
      return damaged;
    Roster loaded;
    RETURN_IF_ERROR(loaded.Load(*roster));
    std::map<std::string, Curve, std::less<>> all;
    for (const auto& [trial, value] : *curves->if_object()) {
      const Value::List* parts = value.if_list();
      if (parts == nullptr || parts->size() != 5) return damaged;
      Curve curve;
      curve.best = NumberFrom((*parts)[0]);
      curve.last_pause = (*parts)[1].AsDouble();
      curve.last_time = (*parts)[2].AsDouble();
      const Value::List* times = (*parts)[3].if_list();
      const Value::List* sums = (*parts)[4].if_list();
      if (curve.best.is_null() || times == nullptr || sums == nullptr ||
          times->size() != sums->size())
        return damaged;
      for (const Value& time : *times) curve.times.push_back(time.AsDouble());
      for (const Value& sum : *sums) curve.sums.push_back(NumberFrom(sum).AsDouble());
      all.emplace(trial, std::move(curve));
    }
    std::set<std::string> poor_ones;
    for (const Value& trial : *poor->if_list()) {
      if (!trial.is_string()) return damaged;
      poor_ones.insert(*trial.if_string());
    }
    roster_ = std::move(loaded);
    curves_ = std::move(all);
    poor_ = std::move(poor_ones);
    return Status::Ok();
  }

 private:
  void Take(double time, const Value& score, Curve* curve) const {
    if (CompareScores(score, curve->best, options_.score.maximize) > 0) curve->best = score;
    // A trial that went back to a checkpoint reports again what was lost.
    while (!curve->times.empty() && curve->times.back() >= time) {
      curve->times.pop_back();
      curve->sums.pop_back();
    }
    curve->last_time = time;
    if (time < options_.grace_period) return;
    const double before = curve->sums.empty() ? 0 : curve->sums.back();
    curve->times.push_back(time);
    curve->sums.push_back(before + score.AsDouble());
  }

  TrialAction Judge(const std::string& trial, double time, Curve* curve) {
    std::vector<Value> means;
    for (const auto& [other, its] : curves_) {
      if (other == trial || its.last_time < time) continue;
      const auto past =
          static_cast<std::size_t>(std::ranges::upper_bound(its.times, time) - its.times.begin());
      if (past > 0) means.emplace_back(its.sums[past - 1] / static_cast<double>(past));
    }
    if (means.size() < static_cast<std::size_t>(options_.min_samples_required)) {
      const bool pause = options_.min_time_slice > 0 && roster_.waiting() > 0 &&
                         time - curve->last_pause > options_.min_time_slice;
      return pause ? TrialAction::kPause : TrialAction::kContinue;
    }
    const Value median = Median(std::move(means));
    if (IsNan(median) || CompareScores(curve->best, median, options_.score.maximize) >= 0) {
      poor_.erase(trial);
      return TrialAction::kContinue;
    }
    if (options_.hard_stop) return TrialAction::kStop;
    poor_.insert(trial);
    return OthersHaveProspects() ? TrialAction::kPause : TrialAction::kContinue;
  }

  bool OthersHaveProspects() const {
    return std::ranges::any_of(roster_.order(), [&](const std::string& trial) {
      return roster_.StateOf(trial) == Roster::State::kWaiting && !poor_.contains(trial);
    });
  }

  Value Median(std::vector<Value> means) const {
    std::ranges::sort(means, [&](const Value& a, const Value& b) {
      return CompareScores(a, b, options_.score.maximize) < 0;
    });
    const std::size_t middle = means.size() / 2;
    if (means.size() % 2 == 1) return means[middle];
    return means[middle - 1].AsDouble() / 2 + means[middle].AsDouble() / 2;
  }

  const MedianStoppingOptions options_;
  Roster roster_;
  std::map<std::string, Curve, std::less<>> curves_;
  std::set<std::string> poor_;  // found worse than the median, when that only pauses
};

}  // namespace

Result<std::unique_ptr<Scheduler>> MakeMedianStoppingScheduler(MedianStoppingOptions options) {
  RETURN_IF_ERROR(Validate(options.score));
  if (!(options.grace_period >= 0))
    return InvalidArgumentError("grace_period must not be negative");
  if (options.min_samples_required < 1)
    return InvalidArgumentError("min_samples_required must be at least 1");
  if (!(options.min_time_slice >= 0))
    return InvalidArgumentError("min_time_slice must not be negative");
  return std::unique_ptr<Scheduler>(std::make_unique<MedianScheduler>(std::move(options)));
}

}  // namespace cairn::tune

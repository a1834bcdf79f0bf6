#include "tune/stopper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "tune/description_reader.h"
#include "tune/score.h"

namespace cairn::tune {
namespace {

Status Damaged() { return CorruptionError("state of a stopper: damaged"); }

Result<Value> NeedMetric(const Value& result, std::string_view metric) {
  ASSIGN_OR_RETURN(Value number, MetricOf(result, metric));
  if (number.is_null()) {
    return InvalidArgumentError(fmt::format(
        "the result has no metric {}, by which trials are stopped", QuoteForMessage(metric)));
  }
  return number;
}

/// Of the whole population. NaN when any of them is.
double Deviation(const std::vector<double>& values) {
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

Result<std::vector<double>> LoadNumbers(const Value& list) {
  if (!list.is_list()) return Damaged();
  std::vector<double> out;
  for (const Value& item : *list.if_list()) {
    const Value number = NumberFrom(item);
    if (number.is_null()) return Damaged();
    out.push_back(number.AsDouble());
  }
  return out;
}

class BoundsStopper : public Stopper {
 public:
  explicit BoundsStopper(Value::Object bounds) : bounds_(std::move(bounds)) {}
  Result<bool> ShouldStop(const std::string&, const Value& result) override {
    bool stop = false;
    for (const auto& [metric, bound] : bounds_) {
      ASSIGN_OR_RETURN(const Value number, NeedMetric(result, metric));
      if (!IsNan(number) && CompareNumbers(number, bound) >= 0) stop = true;
    }
    return stop;
  }
  Status Check(const Value& result) const override {
    for (const auto& [metric, bound] : bounds_) {
      RETURN_IF_ERROR(NeedMetric(result, metric).status());
    }
    return Status::Ok();
  }
  Value Save() const override { return Value::Object{}; }
  Status Load(const Value& state) override { return state.is_object() ? Status::Ok() : Damaged(); }

 private:
  const Value::Object bounds_;
};

class MaximumIterationStopper : public Stopper {
 public:
  explicit MaximumIterationStopper(std::int64_t max_iter) : max_iter_(max_iter) {}
  Result<bool> ShouldStop(const std::string& trial, const Value&) override {
    return ++counts_[trial] >= max_iter_;
  }
  void OnRestart(const std::string& trial) override { counts_.erase(trial); }
  Value Save() const override {
    Value::Object counts;
    for (const auto& [trial, count] : counts_) counts[trial] = count;
    return counts;
  }
  Status Load(const Value& state) override {
    if (!state.is_object()) return Damaged();
    std::map<std::string, std::int64_t> counts;
    for (const auto& [trial, count] : *state.if_object()) {
      if (count.AsInt(-1) < 0) return Damaged();
      counts[trial] = count.AsInt();
    }
    counts_ = std::move(counts);
    return Status::Ok();
  }

 private:
  const std::int64_t max_iter_;
  std::map<std::string, std::int64_t> counts_;
};

class TrialPlateauStopper : public Stopper {
 public:
  explicit TrialPlateauStopper(TrialPlateauOptions options) : options_(std::move(options)) {}

  Result<bool> ShouldStop(const std::string& trial, const Value& result) override {
    ASSIGN_OR_RETURN(const Value number, NeedMetric(result, options_.metric));
    Window& window = windows_[trial];
    ++window.count;
    window.values.push_back(number.AsDouble());
    if (window.values.size() > static_cast<std::size_t>(options_.num_results))
      window.values.erase(window.values.begin());
    if (window.count < options_.grace_period) return false;
    if (window.values.size() < static_cast<std::size_t>(options_.num_results)) return false;
    if (!options_.metric_threshold.is_null() &&
        CompareScores(number, options_.metric_threshold, options_.maximize) < 0) {
      return false;
    }
    return Deviation(window.values) <= options_.std;
  }
  Status Check(const Value& result) const override {
    return NeedMetric(result, options_.metric).status();
  }
  void OnRestart(const std::string& trial) override { windows_.erase(trial); }

  Value Save() const override {
    Value::Object windows;
    for (const auto& [trial, window] : windows_) {
      windows[trial] =
          Value::List{window.count, Value::List(window.values.begin(), window.values.end())};
    }
    return windows;
  }
  Status Load(const Value& state) override {
    if (!state.is_object()) return Damaged();
    std::map<std::string, Window> windows;
    for (const auto& [trial, value] : *state.if_object()) {
      const Value::List* parts = value.if_list();
      if (parts == nullptr || parts->size() != 2 || (*parts)[0].AsInt(-1) < 0) return Damaged();
      ASSIGN_OR_RETURN(std::vector<double> values, LoadNumbers((*parts)[1]));
      windows[trial] = {(*parts)[0].AsInt(), std::move(values)};
    }
    windows_ = std::move(windows);
    return Status::Ok();
  }

 private:
  struct Window {
    std::int64_t count = 0;
    std::vector<double> values;  // the newest num_results
  };
  const TrialPlateauOptions options_;
  std::map<std::string, Window> windows_;
};

class ExperimentPlateauStopper : public Stopper {
 public:
  explicit ExperimentPlateauStopper(ExperimentPlateauOptions options)
      : options_(std::move(options)) {}

  Result<bool> ShouldStop(const std::string&, const Value& result) override {
    ASSIGN_OR_RETURN(const Value number, NeedMetric(result, options_.metric));
    if (!IsNan(number)) {
      top_.push_back(number.AsDouble());
      std::ranges::stable_sort(
          top_, [&](double a, double b) { return options_.maximize ? a > b : a < b; });
      if (top_.size() > static_cast<std::size_t>(options_.top)) top_.pop_back();
    }
    const bool flat =
        top_.size() == static_cast<std::size_t>(options_.top) && Deviation(top_) <= options_.std;
    flat_for_ = flat ? flat_for_ + 1 : 0;
    return StopAll();
  }
  Status Check(const Value& result) const override {
    return NeedMetric(result, options_.metric).status();
  }
  bool StopAll() override { return flat_for_ > options_.patience; }

  Value Save() const override {
    return Value::Object{{"top", Value::List(top_.begin(), top_.end())}, {"flat_for", flat_for_}};
  }
  Status Load(const Value& state) override {
    const Value* top = state.Find("top");
    const Value* flat_for = state.Find("flat_for");
    if (top == nullptr || flat_for == nullptr || flat_for->AsInt(-1) < 0) return Damaged();
    ASSIGN_OR_RETURN(top_, LoadNumbers(*top));
    flat_for_ = flat_for->AsInt();
    return Status::Ok();
  }

 private:
  const ExperimentPlateauOptions options_;
  std::vector<double> top_;    // the best, best first
  std::int64_t flat_for_ = 0;  // reports in a row
};

class TimeoutStopper : public Stopper {
 public:
  TimeoutStopper(std::chrono::nanoseconds timeout, Clock* clock)
      : timeout_(timeout), clock_(clock), start_(clock->Now()) {}
  Result<bool> ShouldStop(const std::string&, const Value&) override { return StopAll(); }
  bool StopAll() override { return Elapsed() >= timeout_; }
  void OnElapsed(std::chrono::nanoseconds before) override {
    before_ = before;
    start_ = clock_->Now();
  }
  Value Save() const override {
    return Value::Object{{"elapsed_ns", static_cast<std::int64_t>(Elapsed().count())}};
  }
  Status Load(const Value& state) override {
    const Value* elapsed = state.Find("elapsed_ns");
    if (elapsed == nullptr || elapsed->AsInt(-1) < 0) return Damaged();
    before_ = std::chrono::nanoseconds(elapsed->AsInt());
    start_ = clock_->Now();
    return Status::Ok();
  }

 private:
  std::chrono::nanoseconds Elapsed() const { return before_ + (clock_->Now() - start_); }

  const std::chrono::nanoseconds timeout_;
  Clock* const clock_;
  Clock::Duration start_;
  std::chrono::nanoseconds before_{0};  // in earlier processes
};

class CombinedStopper : public Stopper {
 public:
  explicit CombinedStopper(std::vector<std::unique_ptr<Stopper>> stoppers)
      : stoppers_(std::move(stoppers)) {}
  Result<bool> ShouldStop(const std::string& trial, const Value& result) override {
    RETURN_IF_ERROR(Check(result));
    bool stop = false;
    for (const auto& stopper : stoppers_) {
      ASSIGN_OR_RETURN(const bool one, stopper->ShouldStop(trial, result));
      stop = stop || one;
    }
    return stop;
  }
  Status Check(const Value& result) const override {
    for (const auto& stopper : stoppers_) RETURN_IF_ERROR(stopper->Check(result));
    return Status::Ok();
  }
  void OnRestart(const std::string& trial) override {
    for (const auto& stopper : stoppers_) stopper->OnRestart(trial);
  }
  bool StopAll() override {
    return std::ranges::any_of(stoppers_, [](const auto& stopper) { return stopper->StopAll(); });
  }
  void OnElapsed(std::chrono::nanoseconds before) override {
    for (const auto& stopper : stoppers_) stopper->OnElapsed(before);
  }
  Value Save() const override {
    Value::List states;
    for (const auto& stopper : stoppers_) states.push_back(stopper->Save());
    return states;
  }
  Status Load(const Value& state) override {
    const Value::List* states = state.if_list();
    if (states == nullptr || states->size() != stoppers_.size()) return Damaged();
    for (std::size_t i = 0; i < stoppers_.size(); ++i)
      RETURN_IF_ERROR(stoppers_[i]->Load((*states)[i]));
    return Status::Ok();
  }

 private:
  const std::vector<std::unique_ptr<Stopper>> stoppers_;
};

}  // namespace

Result<std::unique_ptr<Stopper>> MakeBoundsStopper(Value::Object bounds) {
  for (auto& [metric, bound] : bounds) {
    if (const bool* truth = bound.if_bool()) bound = *truth ? 1 : 0;
    if (!bound.is_number() || IsNan(bound)) {
      return InvalidArgumentError(fmt::format("stop: the bound of {} must be a number, not {}",
                                              QuoteForMessage(metric),
                                              QuoteForMessage(EncodeJson(bound))));
    }
  }
  return std::unique_ptr<Stopper>(std::make_unique<BoundsStopper>(std::move(bounds)));
}

Result<std::unique_ptr<Stopper>> MakeMaximumIterationStopper(std::int64_t max_iter) {
  if (max_iter < 1) return InvalidArgumentError("max_iter must be at least 1");
  return std::unique_ptr<Stopper>(std::make_unique<MaximumIterationStopper>(max_iter));
}

Result<std::unique_ptr<Stopper>> MakeTrialPlateauStopper(TrialPlateauOptions options) {
  if (options.metric.empty())
    return InvalidArgumentError("metric: name the metric that is watched");
  if (!(options.std >= 0)) return InvalidArgumentError("std must not be negative");
  if (options.num_results < 1) return InvalidArgumentError("num_results must be at least 1");
  if (options.grace_period < 0) return InvalidArgumentError("grace_period must not be negative");
  if (!options.metric_threshold.is_null() && !options.metric_threshold.is_number()) {
    return InvalidArgumentError("metric_threshold must be a number");
  }
  return std::unique_ptr<Stopper>(std::make_unique<TrialPlateauStopper>(std::move(options)));
}

Result<std::unique_ptr<Stopper>> MakeExperimentPlateauStopper(ExperimentPlateauOptions options) {
  if (options.metric.empty())
    return InvalidArgumentError("metric: name the metric that is watched");
  if (!(options.std >= 0)) return InvalidArgumentError("std must not be negative");
  if (options.top < 2) return InvalidArgumentError("top must be at least 2");
  if (options.patience < 0) return InvalidArgumentError("patience must not be negative");
  return std::unique_ptr<Stopper>(std::make_unique<ExperimentPlateauStopper>(std::move(options)));
}

Result<std::unique_ptr<Stopper>> MakeTimeoutStopper(std::chrono::nanoseconds timeout,
                                                    Clock* clock) {
  if (timeout.count() < 0) return InvalidArgumentError("timeout must not be negative");
  return std::unique_ptr<Stopper>(std::make_unique<TimeoutStopper>(timeout, clock));
}

std::unique_ptr<Stopper> MakeCombinedStopper(std::vector<std::unique_ptr<Stopper>> stoppers) {
  return std::make_unique<CombinedStopper>(std::move(stoppers));
}

Result<std::unique_ptr<Stopper>> MakeStopper(const Value& description, Clock* clock) {
  DescriptionReader reader("stop", description);
  std::string name;
  reader.Text("name", &name);
  if (!description.is_object()) return reader.Finish();
  if (name == "bounds") {
    Value bounds = Value::Object{};
    reader.Any("bounds", &bounds);
    RETURN_IF_ERROR(reader.Finish());
    if (!bounds.is_object()) return InvalidArgumentError("stop: bounds must be an object");
    return MakeBoundsStopper(*bounds.if_object());
  }
  if (name == "iterations") {
    std::int64_t max_iter = 0;
    reader.Int64("max_iter", &max_iter);
    RETURN_IF_ERROR(reader.Finish());
    return MakeMaximumIterationStopper(max_iter);
  }
  if (name == "trial_plateau") {
    TrialPlateauOptions options;
    reader.Text("metric", &options.metric);
    reader.Number("std", &options.std);
    reader.Int("num_results", &options.num_results);
    reader.Int("grace_period", &options.grace_period);
    reader.Any("metric_threshold", &options.metric_threshold);
    reader.Mode("mode", &options.maximize);
    RETURN_IF_ERROR(reader.Finish());
    return MakeTrialPlateauStopper(std::move(options));
  }
  if (name == "experiment_plateau") {
    ExperimentPlateauOptions options;
    reader.Text("metric", &options.metric);
    reader.Number("std", &options.std);
    reader.Int("top", &options.top);
    reader.Mode("mode", &options.maximize);
    reader.Int("patience", &options.patience);
    RETURN_IF_ERROR(reader.Finish());
    return MakeExperimentPlateauStopper(std::move(options));
  }
  if (name == "timeout") {
    double seconds = -1;
    reader.Number("timeout", &seconds);
    RETURN_IF_ERROR(reader.Finish());
    if (!(seconds >= 0))
      return InvalidArgumentError("stop: timeout must be a number of seconds, not negative");
    const double most = 9e9;  // what nanoseconds hold
    return MakeTimeoutStopper(
        std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, most) * 1e9)), clock);
  }
  if (name == "combined") {
    Value list = Value::List{};
    reader.Any("stoppers", &list);
    RETURN_IF_ERROR(reader.Finish());
    if (!list.is_list()) return InvalidArgumentError("stop: stoppers must be a list");
    std::vector<std::unique_ptr<Stopper>> stoppers;
    for (const Value& item : *list.if_list()) {
      ASSIGN_OR_RETURN(std::unique_ptr<Stopper> stopper, MakeStopper(item, clock));
      stoppers.push_back(std::move(stopper));
    }
    return MakeCombinedStopper(std::move(stoppers));
  }
  return InvalidArgumentError(fmt::format("stop: no stopper is called {}", QuoteForMessage(name)));
}

}  // namespace cairn::tune

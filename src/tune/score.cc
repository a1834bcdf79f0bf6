#include "tune/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"

namespace cairn::tune {
namespace {

long double Exact(const Value& number) {
  if (const auto* i = number.if_int64()) return static_cast<long double>(*i);
  if (const auto* u = number.if_uint64()) return static_cast<long double>(*u);
  return static_cast<long double>(number.AsDouble());
}

}  // namespace

Result<Value> MetricOf(const Value& result, std::string_view metric) {
  const Value* found = result.Find(metric);
  if (found == nullptr || found->is_null()) return Value();
  if (const bool* truth = found->if_bool()) return Value(*truth ? 1 : 0);
  Value number = NumberFrom(*found);
  if (number.is_null()) {
    return InvalidArgumentError(fmt::format("the metric {} must be a number, not {}",
                                            QuoteForMessage(metric),
                                            QuoteForMessage(EncodeJson(*found))));
  }
  return number;
}

Result<double> TimeOf(const Value& result, std::string_view time_attr) {
  ASSIGN_OR_RETURN(const Value time, MetricOf(result, time_attr));
  if (time.is_null() || !std::isfinite(time.AsDouble())) {
    return InvalidArgumentError(
        fmt::format("the result has no number {}, by which the trial's "
                    "progress is measured (time_attr)",
                    QuoteForMessage(time_attr)));
  }
  return time.AsDouble();
}

bool IsNan(const Value& number) { return number.is_double() && std::isnan(number.AsDouble()); }

Status Validate(const ScoreOptions& options) {
  if (options.metric.empty())
    return InvalidArgumentError("metric: the scheduler decides by a metric, name it");
  if (options.time_attr.empty()) return InvalidArgumentError("time_attr must not be empty");
  return Status::Ok();
}

void SortedScores::Add(const Value& score) {
  if (!score.is_number() || IsNan(score)) return;
  const auto place = std::ranges::upper_bound(scores_, score, [&](const Value& a, const Value& b) {
    return CompareScores(a, b, maximize_) < 0;
  });
  scores_.insert(place, score);
}

bool SortedScores::IsBelowQuantile(const Value& score, double parts) const {
  if (scores_.empty()) return false;
  const double position = static_cast<double>(scores_.size() - 1) * (parts - 1) / parts;
  const auto below = static_cast<std::size_t>(std::floor(position));
  const double fraction = position - std::floor(position);
  const Value& low = scores_[below];
  const Value& high = scores_[std::min(below + 1, scores_.size() - 1)];
  if (CompareScores(score, low, maximize_) < 0) return true;
  if (fraction == 0 || CompareScores(score, high, maximize_) >= 0) return false;
  // Differences of 64-bit integers and of doubles near each other are exact in a long double.
  return std::abs(Exact(score) - Exact(low)) <
         static_cast<long double>(fraction) * std::abs(Exact(high) - Exact(low));
}

}  // namespace cairn::tune

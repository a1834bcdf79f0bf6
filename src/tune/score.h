#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "tune/scheduler.h"

namespace cairn::tune {

/// A metric of a result: a number (also for true and false, and for the texts that stand for NaN
/// and the infinities); null where it is missing. InvalidArgument, naming it, for anything else.
Result<Value> MetricOf(const Value& result, std::string_view metric);

/// How far a trial has come. InvalidArgument, naming the metric, when it is missing or not finite.
Result<double> TimeOf(const Value& result, std::string_view time_attr);

bool IsNan(const Value& number);

/// InvalidArgument for a score without a metric or a time.
Status Validate(const ScoreOptions& options);

/// The numbers among scores (not NaN), from the worst to the best.
class SortedScores {
 public:
  explicit SortedScores(bool maximize) : maximize_(maximize) {}

  void Add(const Value& score);
  std::size_t size() const { return scores_.size(); }
  /// Whether `score` is worse than the value below which the worst `fraction` = (parts - 1) / parts
  /// lie, between two scores in proportion. False when there are none; NaN is worse than any.
  bool IsBelowQuantile(const Value& score, double parts) const;

 private:
  bool maximize_;
  std::vector<Value> scores_;
};

}  // namespace cairn::tune

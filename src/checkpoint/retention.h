#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/value.h>

namespace cairn {

/// What retention knows of a checkpoint.
struct RetentionItem {
  std::string id;
  std::int64_t step = 0;
  Value metrics;
  bool pinned = false;
  bool full = true;
  bool broken = false;             // damaged, or what it builds on is: no restore point
  std::vector<std::string> needs;  // ids of all that it builds on
};

/// The checkpoints to remove, newest first, so that increments go before what they build on.
/// `items` are those that count, oldest first; the last one is the latest and always stays, and so
/// do `kept` (ids) and what all these need. Broken ones use up no place among the last; they go
/// when enough good ones are newer. A pure function.
std::vector<std::string> ChooseRemovals(const Retention& retention,
                                        std::span<const RetentionItem> items,
                                        const std::set<std::string>& kept = {});

/// InvalidArgument for rules that contradict themselves (keep_best without a score, zero counts).
Status ValidateRetention(const Retention& retention);

/// The score in metrics under `key` as a number; null when there is none. True is 1, False 0.
Value ScoreIn(const Value& metrics, std::string_view key);

/// Orders two scores: NaN and missing (null) rank below every number in both orders and are equal
/// among themselves. Positive: `a` is better.
int CompareScores(const Value& a, const Value& b, bool maximize);

}  // namespace cairn

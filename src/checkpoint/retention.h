#pragma once

#include <cstdint>
#include <span>
#include <string>
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
  std::string base;    // of an increment: needed as long as the increment is kept
  std::string parent;  // of a consecutive increment: needed too
};

/// The checkpoints to remove, oldest first. `items` are those that count, oldest first; the last
/// one is the latest and always stays. A pure function.
std::vector<std::string> ChooseRemovals(const Retention& retention,
                                        std::span<const RetentionItem> items);

/// InvalidArgument for rules that contradict themselves (keep_best without a score, zero counts).
Status ValidateRetention(const Retention& retention);

/// Orders two scores: NaN and missing (null) rank below every number in both orders and are equal
/// among themselves. Positive: `a` is better.
int CompareScores(const Value& a, const Value& b, bool maximize);

}  // namespace cairn

#include "checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "format/json.h"

namespace cairn {
namespace {

bool IsRanked(const Value& score) {
  return score.is_number() && !(score.is_double() && std::isnan(*score.if_double()));
}

}  // namespace

Value ScoreIn(const Value& metrics, std::string_view key) {
  const Value* found = metrics.Find(key);
  if (found == nullptr) return {};
  // Whether something was reached is a score as well.
  if (const bool* reached = found->if_bool()) return *reached ? 1 : 0;
  return NumberFrom(*found);
}

int CompareScores(const Value& a, const Value& b, bool maximize) {
  const bool a_ranked = IsRanked(a);
  const bool b_ranked = IsRanked(b);
  if (!a_ranked || !b_ranked) return static_cast<int>(a_ranked) - static_cast<int>(b_ranked);
  const int order = CompareNumbers(a, b);
  return maximize ? order : -order;
}

Status ValidateRetention(const Retention& retention) {
  if (retention.keep_last && *retention.keep_last == 0) {
    return InvalidArgumentError("keep_last must be at least 1 (or unset, to keep all)");
  }
  if (retention.keep_fulls && *retention.keep_fulls == 0) {
    return InvalidArgumentError("keep_fulls must be at least 1 (or unset)");
  }
  if (retention.keep_best && *retention.keep_best == 0) {
    return InvalidArgumentError("keep_best must be at least 1 (or unset)");
  }
  if (retention.keep_best && retention.score.empty()) {
    return InvalidArgumentError("keep_best needs the name of a metric in score");
  }
  if (retention.keep_every && *retention.keep_every <= 0) {
    return InvalidArgumentError("keep_every must be at least 1 (or unset)");
  }
  return Status::Ok();
}

std::vector<std::string> ChooseRemovals(const Retention& retention,
                                        std::span<const RetentionItem> items,
                                        const std::set<std::string>& also_kept) {
  if (items.empty() || !retention.keep_last) return {};
  std::set<std::string> kept = also_kept;
  kept.insert(items.back().id);
  std::uint64_t newer = 0;  // restore points
  std::uint64_t newer_fulls = 0;
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    const bool recent = newer < *retention.keep_last;
    const bool recent_full = item->full && newer_fulls < retention.keep_fulls.value_or(0);
    const bool periodic = retention.keep_every && item->step % *retention.keep_every == 0;
    if (recent || recent_full || periodic || item->pinned) kept.insert(item->id);
    if (!item->broken) ++newer;
    if (item->full && !item->broken) ++newer_fulls;
  }
  if (retention.keep_best) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!items[i].broken) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const int better =
          CompareScores(ScoreIn(items[a].metrics, retention.score),
                        ScoreIn(items[b].metrics, retention.score), retention.maximize);
      return better != 0 ? better > 0 : a > b;  // ties: the later wins
    });
    for (std::size_t i = 0; i < order.size() && i < *retention.keep_best; ++i) {
      kept.insert(items[order[i]].id);
    }
  }
  // What a kept increment builds on stays as long as it does, and nothing else does.
  std::set<std::string> needed;
  for (const RetentionItem& item : items) {
    if (kept.contains(item.id)) needed.insert(item.needs.begin(), item.needs.end());
  }
  std::vector<std::string> removals;
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    if (!kept.contains(item->id) && !needed.contains(item->id)) removals.push_back(item->id);
  }
  return removals;
}

}  // namespace cairn

#include "trial/retention_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

/// The ids of the best `count`. Of equal ones the later.
std::set<std::string> BestOf(const RetentionPolicy& policy,
                             std::span<const RetainedCheckpoint> items, std::uint64_t count) {
  std::vector<const RetainedCheckpoint*> order;
  for (const RetainedCheckpoint& item : items) {
    // One that still waits takes no place from those that are known.
    if (!(item.awaits_score && ScoreIn(item.metrics, policy.score).is_null()))
      order.push_back(&item);
  }
  std::ranges::reverse(order);
  std::ranges::stable_sort(order, [&](const auto* a, const auto* b) {
    return CompareScores(ScoreIn(a->metrics, policy.score), ScoreIn(b->metrics, policy.score),
                         policy.maximize) > 0;
  });
  std::set<std::string> best;
  for (std::size_t i = 0; i < order.size() && i < count; ++i) best.insert(order[i]->id);
  return best;
}

/// Why one goes that no rule keeps: "beyond keep_last 2, keep_best 1 (by loss)".
std::string Beyond(const RetentionPolicy& policy) {
  std::string rules;
  const auto add = [&](std::string_view rule, const std::optional<std::uint64_t>& number) {
    if (number) rules += fmt::format("{}{} {}", rules.empty() ? "" : ", ", rule, *number);
  };
  add("keep_last", policy.keep_last);
  add("keep_best", policy.keep_best);
  add("experiment_best", policy.experiment_best);
  if (policy.keep_best || policy.experiment_best) rules += fmt::format(" (by {})", policy.score);
  add("keep_every", policy.keep_every);
  return "beyond " + rules;
}

using Kept = std::vector<const RetainedCheckpoint*>;

/// The ids that go of `kept` (oldest first) so that the others are within the budget: the best only
/// when nothing else is left to go.
std::set<std::string_view> Shed(const RetentionPolicy& policy, const Kept& kept,
                                const std::set<std::string>& best, std::uint64_t budget) {
  std::uint64_t bytes = 0;
  for (const auto* item : kept) bytes += item->bytes;
  std::set<std::string_view> gone;
  for (const bool also_best : {false, true}) {
    for (const auto* item : kept) {
      if (bytes <= budget || best.contains(item->id) != also_best || Stays(policy, *item)) continue;
      bytes -= item->bytes;
      gone.insert(item->id);
    }
  }
  return gone;
}

Removal Over(const RetainedCheckpoint& item, std::uint64_t budget) {
  return {item.trial, item.id, fmt::format("over {} bytes in all", budget)};
}

/// What one trial keeps by the rules that need no other one, but for the best of all.
struct Chosen {
  Kept kept;
  std::vector<Removal> removals;
  std::set<std::string> best;
};

Chosen ChooseAlone(const RetentionPolicy& policy, std::span<const RetainedCheckpoint> trial,
                   const std::set<std::string>& best_of_all, std::int64_t now) {
  Chosen chosen;
  if (policy.keep_best) chosen.best = BestOf(policy, trial, *policy.keep_best);
  for (const RetainedCheckpoint& item : trial) {
    if (best_of_all.contains(item.id)) chosen.best.insert(item.id);
  }
  const bool keeps_all =
      !policy.keep_last && !policy.keep_best && !policy.experiment_best && !policy.keep_every;
  const std::string beyond = Beyond(policy);
  for (std::size_t i = 0; i < trial.size(); ++i) {
    const RetainedCheckpoint& item = trial[i];
    const bool stays = Stays(policy, item);
    const std::size_t newer = trial.size() - 1 - i;
    const bool wanted =
        keeps_all || newer < policy.keep_last.value_or(0) || chosen.best.contains(item.id) ||
        (policy.keep_every && item.steps % static_cast<std::int64_t>(*policy.keep_every) == 0);
    // In milliseconds: an age without end has more nanoseconds than can be counted.
    const std::chrono::nanoseconds age(now - item.time);
    const bool old =
        policy.max_age && std::chrono::floor<std::chrono::milliseconds>(age) > *policy.max_age;
    if (!stays && !item.unwanted.empty()) {
      chosen.removals.push_back({item.trial, item.id, item.unwanted});
    } else if (!stays && !wanted) {
      chosen.removals.push_back({item.trial, item.id, beyond});
    } else if (!stays && old) {
      chosen.removals.push_back(
          {item.trial, item.id, fmt::format("older than {} s", policy.max_age->count() / 1000.0)});
    } else {
      chosen.kept.push_back(&item);
    }
  }
  if (policy.max_bytes) {
    const std::set<std::string_view> gone =
        Shed(policy, chosen.kept, chosen.best, *policy.max_bytes);
    std::erase_if(chosen.kept, [&](const auto* item) {
      if (!gone.contains(item->id)) return false;
      chosen.removals.push_back(Over(*item, *policy.max_bytes));
      return true;
    });
  }
  return chosen;
}

void Put(std::string_view key, const std::optional<std::uint64_t>& number, Value::Object* out) {
  (*out)[std::string(key)] = number ? Value(*number) : Value();
}

Status Take(const MemberReader& members, std::string_view key, std::optional<std::uint64_t>* out) {
  std::uint64_t number = ~std::uint64_t{0};
  RETURN_IF_ERROR(members.OptionalUint(key, &number));
  if (number != ~std::uint64_t{0}) *out = number;
  return Status::Ok();
}

}  // namespace

bool Stays(const RetentionPolicy& policy, const RetainedCheckpoint& item) {
  return item.latest || item.pinned || item.needed ||
         (item.awaits_score && !policy.score.empty() &&
          ScoreIn(item.metrics, policy.score).is_null());
}

Status RetentionPolicy::Validate() const {
  for (const auto& [name, number] :
       {std::pair("keep_last", keep_last), std::pair("keep_best", keep_best),
        std::pair("experiment_best", experiment_best), std::pair("keep_every", keep_every)}) {
    if (number == 0) {
      return InvalidArgumentError(fmt::format("retention: {} must be at least 1 or unset", name));
    }
  }
  if ((keep_best || experiment_best) && score.empty()) {
    return InvalidArgumentError("retention: keep_best needs the name of a metric in score");
  }
  if (max_age && max_age->count() < 0) {
    return InvalidArgumentError("retention: max_age must not be negative");
  }
  return Status::Ok();
}

Value ToValue(const RetentionPolicy& policy) {
  Value::Object out;
  Put("keep_last", policy.keep_last, &out);
  Put("keep_best", policy.keep_best, &out);
  Put("experiment_best", policy.experiment_best, &out);
  Put("keep_every", policy.keep_every, &out);
  Put("max_bytes", policy.max_bytes, &out);
  if (policy.experiment_bytes) out["experiment_bytes"] = *policy.experiment_bytes;
  out["max_age_ms"] = policy.max_age ? Value(policy.max_age->count()) : Value();
  out["score"] = policy.score;
  out["maximize"] = policy.maximize;
  return out;
}

Result<RetentionPolicy> RetentionPolicyFromValue(const Value& value) {
  if (!value.is_object()) return InvalidArgumentError("retention: not an object");
  const MemberReader members(*value.if_object());
  RetentionPolicy policy;
  std::optional<std::uint64_t> age;
  RETURN_IF_ERROR(Take(members, "keep_last", &policy.keep_last));
  RETURN_IF_ERROR(Take(members, "keep_best", &policy.keep_best));
  RETURN_IF_ERROR(Take(members, "experiment_best", &policy.experiment_best));
  RETURN_IF_ERROR(Take(members, "keep_every", &policy.keep_every));
  RETURN_IF_ERROR(Take(members, "max_bytes", &policy.max_bytes));
  RETURN_IF_ERROR(Take(members, "experiment_bytes", &policy.experiment_bytes));
  RETURN_IF_ERROR(Take(members, "max_age_ms", &age));
  RETURN_IF_ERROR(members.OptionalText("score", &policy.score));
  RETURN_IF_ERROR(members.OptionalBool("maximize", &policy.maximize));
  if (age) policy.max_age = std::chrono::milliseconds(*age);
  return policy;
}

std::vector<Removal> ChooseRemovals(const RetentionPolicy& policy,
                                    std::span<const RetainedCheckpoint> trial,
                                    std::span<const RetainedCheckpoint> experiment,
                                    std::int64_t now) {
  const std::set<std::string> best_of_all =
      policy.experiment_best ? BestOf(policy, experiment, *policy.experiment_best)
                             : std::set<std::string>();
  Chosen own = ChooseAlone(policy, trial, best_of_all, now);
  if (!policy.experiment_bytes || trial.empty()) return std::move(own.removals);
  // Every trial comes to the same list, of what the others let go of anyway nothing, and takes its
  // own from it.
  Kept all = own.kept;
  std::set<std::string> best = std::move(own.best);
  for (auto at = experiment.begin(); at != experiment.end();) {
    const auto end = std::find_if(at, experiment.end(),
                                  [&](const auto& item) { return item.trial != at->trial; });
    const std::span<const RetainedCheckpoint> other(at, end);
    at = end;
    if (other.front().trial == trial.front().trial) continue;
    Chosen theirs = ChooseAlone(policy, other, best_of_all, now);
    all.insert(all.end(), theirs.kept.begin(), theirs.kept.end());
    best.merge(theirs.best);
  }
  std::ranges::stable_sort(all, {}, [](const auto* item) {
    return std::tuple(item->time, std::string_view(item->trial), item->steps);
  });
  const std::set<std::string_view> gone = Shed(policy, all, best, *policy.experiment_bytes);
  for (const RetainedCheckpoint* item : own.kept) {
    if (gone.contains(item->id)) own.removals.push_back(Over(*item, *policy.experiment_bytes));
  }
  return std::move(own.removals);
}

}  // namespace cairn

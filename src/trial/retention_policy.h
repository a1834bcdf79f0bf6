#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Which checkpoints of a trial stay. The keep_… rules add up: what any of them keeps stays, and
/// without any of them all do. Then max_age, max_bytes and experiment_bytes take away from what was
/// kept; each checkpoint counts with all of its files, shared with another one or not. The latest,
/// pinned ones and those that wait for their score stay whatever the rules say.
struct RetentionPolicy {
  std::optional<std::uint64_t> keep_last;
  std::optional<std::uint64_t> keep_best;        // of the trial, by `score`
  std::optional<std::uint64_t> experiment_best;  // of all trials of the experiment, by `score`
  std::optional<std::uint64_t> keep_every;       // steps that are multiples of this
  std::string score;                             // a metric; "a/b" reaches into nested ones
  bool maximize = true;
  std::optional<std::chrono::milliseconds> max_age;
  /// Of the trial's checkpoints together: the oldest that are not among the best go first.
  std::optional<std::uint64_t> max_bytes;
  /// Of what the other rules leave of all trials of the experiment together, in the same way.
  std::optional<std::uint64_t> experiment_bytes;

  /// Whether the rules look at other trials.
  bool looks_at_others() const {
    return experiment_best.has_value() || experiment_bytes.has_value();
  }
  Status Validate() const;
  friend bool operator==(const RetentionPolicy&, const RetentionPolicy&) = default;
};

Value ToValue(const RetentionPolicy& policy);
Result<RetentionPolicy> RetentionPolicyFromValue(const Value& value);

/// What the policy knows of a checkpoint.
struct RetainedCheckpoint {
  std::string trial;
  std::string id;
  std::int64_t steps = 0;
  std::int64_t time = 0;  // nanoseconds since 1970
  std::uint64_t bytes = 0;
  Value metrics = Value::Object{};
  bool pinned = false;
  bool awaits_score = false;
  std::string unwanted;  // why a user wants it gone; "": nobody does
  bool latest = false;
  bool needed = false;  // another one builds on it, or a trial is about to start from it
};

/// Whether it stays whatever the rules say.
bool Stays(const RetentionPolicy& policy, const RetainedCheckpoint& item);

struct Removal {
  std::string trial;
  std::string id;
  std::string reason;  // "beyond keep_last 3", "older than 3600 s", …
  friend bool operator==(const Removal&, const Removal&) = default;
};

/// What the policy of one trial lets go of that trial's checkpoints (oldest first), given those of
/// the whole experiment (for experiment_best and experiment_bytes), one trial's after the other's,
/// which have the same policy. `now` in nanoseconds since 1970. NaN and missing scores rank below
/// every number in both orders; of equal ones the later wins. A pure function.
std::vector<Removal> ChooseRemovals(const RetentionPolicy& policy,
                                    std::span<const RetainedCheckpoint> trial,
                                    std::span<const RetainedCheckpoint> experiment,
                                    std::int64_t now);

}  // namespace cairn

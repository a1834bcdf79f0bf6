#pragma once

#include <memory>
#include <optional>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "tune/scheduler.h"
#include "tune/searcher.h"
#include "tune/stopper.h"
#include "tune/tune_policy.h"

namespace cairn::tune {

/// What a policy is put together from.
struct SearchPolicyParts {
  std::unique_ptr<Searcher> searcher;
  std::unique_ptr<Scheduler> scheduler;  // null: all trials run to their end, in order
  std::unique_ptr<Stopper> stopper;      // null: none
  /// A metric that every result must have, as a number; empty: none.
  std::string metric;
  /// So many trials are made ahead of their places: for a scheduler that compares a population as a
  /// whole, with a searcher that does not wait for results.
  std::size_t pending_ahead = 0;
};

/// A searcher, a scheduler and a stopper as a tuner asks them; its state is a value when theirs
/// are. InvalidArgument without a searcher.
Result<std::unique_ptr<TunePolicy>> MakeSearchPolicy(SearchPolicyParts parts);

/// One of built-in parts, by what they are: {"space", "num_samples", "seed", "points_to_evaluate",
/// "constant_grid_search", "max_concurrent" (0: no limit), "scheduler", "stop", "metric",
/// "pending_ahead"}, as their own factories read them. InvalidArgument for what is wrong.
Result<std::unique_ptr<TunePolicy>> MakeSearchPolicy(const Value& description, Clock* clock);

}  // namespace cairn::tune

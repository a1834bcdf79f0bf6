#pragma once

#include <functional>
#include <set>
#include <string>

#include <cairn/status.h>
#include <cairn/tune.h>
#include <cairn/value.h>

#include "tune/tuner.h"

namespace cairn::tune {

// What the options of Run mean: to the policy, to the record of an experiment, to the tuner.

/// InvalidArgument for what cannot be meant. `saves_on_demand`: of a Trainable, not of a function.
Status Validate(const Options& options, bool saves_on_demand);

/// All that the policy is made from (search_policy.h).
Value DescribePolicy(const Options& options);

/// What the experiment is, for its record.
Value Describe(const Options& options);

/// InvalidArgument, naming it, for what must be as it is on record (null: of an experiment that
/// begins): what was decided so far follows from it.
Status CheckSame(const Options& options, const Value& recorded);

/// Of a directory without a record: Corruption when trials are in it, which are not taken for new
/// ones.
Status CheckEmpty(const Options& options);

/// Whether trials that had ended go on (TunerOptions::extend_ended), and which do not: those that
/// are where the new bounds would stop them, where that can be told by a result.
struct Extension {
  bool extends = false;
  std::set<std::string, std::less<>> except;
};
Result<Extension> Extends(const Options& options, const Value& recorded, const Value& trials);

/// Those of a tuner that follow from the options alone.
TunerOptions SettingsOf(const Options& options);

}  // namespace cairn::tune

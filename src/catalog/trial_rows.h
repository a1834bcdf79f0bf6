#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/connection.h"
#include "catalog/trials.h"
#include "trial/trial_state.h"

namespace cairn {

/// Rows of the tables of trials and checkpoints, for those who read and those who write them.

inline constexpr std::string_view kTrialSelect =
    "SELECT t.id, t.experiment, t.core, t.config, t.parent_trial, t.parent_checkpoint, t.created, "
    "t.started, t.ended, t.progress, t.status, t.message, t.steps, t.latest_metrics, "
    "t.best_metric, t.best_steps, t.reports, t.checkpoints, t.checkpoint_bytes, t.ran, "
    "t.running_since FROM trials t";
inline constexpr std::string_view kTrialColumns = "ttttttiiidttitdiiiiii";
Result<TrialRow> TrialFromRow(const SqlRow& row);

inline constexpr std::string_view kCheckpointSelect =
    "SELECT c.ordinal, c.trial, c.experiment, c.id, c.registration, c.state, c.steps, c.ranks, "
    "c.metadata, c.metrics, c.bytes, c.generation, c.sequence, c.path, c.pinned, c.awaits_score, "
    "c.run, c.time, c.completed, c.reason, c.kind, c.base FROM checkpoints c";
inline constexpr std::string_view kCheckpointColumns =
    "ittttt"
    "ii"
    "tt"
    "iii"
    "t"
    "ii"
    "iii"
    "ttt";
Result<CheckpointRow> CheckpointFromRow(const SqlRow& row);

Value CoreToValue(const TrialCore& core);
Result<TrialCore> CoreFromValue(const Value& value);

/// The number that a text of digits is, as experiments and most trials are called.
std::optional<std::int64_t> ExperimentNumber(std::string_view text);

}  // namespace cairn

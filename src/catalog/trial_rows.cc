#include "catalog/trial_rows.h"

#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

Result<Value> Decoded(const std::string& text, std::string_view what) {
  auto value = DecodeJson(text);
  if (value.ok()) return value;
  return CorruptionError(std::string(what) +
                         " in the database: " + std::string(value.status().message()));
}

CheckpointState StateFromName(std::string_view name) {
  for (const auto state :
       {CheckpointState::kActive, CheckpointState::kCompleted, CheckpointState::kDeleted}) {
    if (CheckpointStateName(state) == name) return state;
  }
  return CheckpointState::kError;
}

}  // namespace

std::optional<std::int64_t> ExperimentNumber(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return std::to_string(number) == text ? std::optional(number) : std::nullopt;
}

Value CoreToValue(const TrialCore& core) {
  return Value::Object{{"state", TrialStateName(core.state)},
                       {"run", core.run},
                       {"live", core.live},
                       {"acknowledged", core.acknowledged},
                       {"signalled", core.signalled},
                       {"killed", core.killed},
                       {"requeue", core.requeue},
                       {"restarts", core.restarts},
                       {"max_restarts", core.max_restarts},
                       {"detached", core.detached}};
}

Result<TrialCore> CoreFromValue(const Value& value) {
  if (!value.is_object()) return CorruptionError("trial: its state is no object");
  const MemberReader members(*value.if_object());
  TrialCore core;
  std::string state;
  RETURN_IF_ERROR(members.Text("state", &state));
  const auto known = TrialStateFromName(state);
  if (!known) return CorruptionError("trial: unknown state");
  core.state = *known;
  RETURN_IF_ERROR(members.OptionalUint("run", &core.run));
  RETURN_IF_ERROR(members.OptionalBool("live", &core.live));
  RETURN_IF_ERROR(members.OptionalBool("acknowledged", &core.acknowledged));
  RETURN_IF_ERROR(members.OptionalBool("signalled", &core.signalled));
  RETURN_IF_ERROR(members.OptionalBool("killed", &core.killed));
  RETURN_IF_ERROR(members.OptionalBool("requeue", &core.requeue));
  RETURN_IF_ERROR(members.OptionalUint("restarts", &core.restarts));
  RETURN_IF_ERROR(members.OptionalUint("max_restarts", &core.max_restarts));
  RETURN_IF_ERROR(members.OptionalBool("detached", &core.detached));
  return core;
}

Result<TrialRow> TrialFromRow(const SqlRow& row) {
  TrialRow trial;
  trial.id = row.Text(0);
  trial.experiment = row.Text(1);
  ASSIGN_OR_RETURN(const Value core, Decoded(row.Text(2), "a trial's state"));
  ASSIGN_OR_RETURN(trial.core, CoreFromValue(core));
  ASSIGN_OR_RETURN(trial.config, Decoded(row.Text(3), "a trial's config"));
  if (const Value* hparams = trial.config.Find("hparams"); hparams != nullptr) {
    trial.hparams = *hparams;
  }
  trial.parent_trial = row.Text(4);
  trial.parent_checkpoint = row.Text(5);
  trial.created = row.Int(6);
  trial.started = row.Int(7);
  trial.ended = row.Int(8);
  trial.progress = row.Double(9);
  trial.status = row.Text(10);
  trial.message = row.Text(11);
  trial.steps = row.Int(12);
  ASSIGN_OR_RETURN(trial.latest_metrics, Decoded(row.Text(13), "a trial's metrics"));
  RestoreNonFinite(&trial.latest_metrics);
  trial.best_metric = row.OptionalDouble(14);
  trial.best_steps = row.Int(15);
  trial.reports = row.Uint(16);
  trial.checkpoints = row.Uint(17);
  trial.checkpoint_bytes = row.Uint(18);
  trial.ran = row.Int(19);
  trial.running_since = row.Int(20);
  return trial;
}

Result<CheckpointRow> CheckpointFromRow(const SqlRow& row) {
  CheckpointRow checkpoint;
  checkpoint.trial = row.Text(1);
  checkpoint.experiment = row.Text(2);
  CheckpointRecord& record = checkpoint.record;
  record.id = row.Text(3);
  record.registration = row.Text(4);
  record.state = StateFromName(row.Text(5));
  record.steps = row.Int(6);
  record.ranks = row.Uint(7);
  ASSIGN_OR_RETURN(record.metadata, Decoded(row.Text(8), "a checkpoint's metadata"));
  ASSIGN_OR_RETURN(record.metrics, Decoded(row.Text(9), "a checkpoint's metrics"));
  RestoreNonFinite(&record.metrics);
  record.bytes = row.Uint(10);
  record.generation = row.Uint(11);
  record.sequence = row.Uint(12);
  record.path = row.Text(13);
  record.pinned = row.Bool(14);
  record.awaits_score = row.Bool(15);
  record.run = row.Uint(16);
  record.time = row.Int(17);
  record.order = row.Uint(18);
  record.reason = row.Text(19);
  checkpoint.kind = row.Text(20);
  checkpoint.base = row.Text(21);
  return checkpoint;
}

}  // namespace cairn

#include "trial/records_codec.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/compact_value.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

constexpr std::uint64_t kVersion = 1;

Value HeadOf(const TrialRecord& trial) {
  const TrialCore& core = trial.core;
  Value::Object head{{"id", trial.id},
                     {"config", ToValue(trial.config)},
                     {"created", trial.created},
                     {"parent_trial", trial.parent_trial},
                     {"parent", ToValue(trial.parent)},
                     {"state", TrialStateName(core.state)},
                     {"run", core.run},
                     {"live", core.live},
                     {"acknowledged", core.acknowledged},
                     {"signalled", core.signalled},
                     {"killed", core.killed},
                     {"requeue", core.requeue},
                     {"restarts", core.restarts},
                     {"max_restarts", core.max_restarts},
                     {"progress", trial.progress},
                     {"status", trial.status},
                     {"chosen", trial.chosen},
                     {"chosen_after_run", trial.chosen_after_run},
                     {"token_hash", trial.token_hash},
                     {"start", ToValue(trial.start)},
                     {"resume_mode", trial.resume_mode},
                     {"next_sequence", trial.next_sequence},
                     {"asked_time", trial.asked_time},
                     {"deadline_ms", trial.deadline_ms},
                     {"message", trial.message},
                     {"said_exit", trial.said_exit}};
  // Only where they say something: records from before are written to the bytes that they had.
  if (!trial.job.empty()) head["job"] = trial.job;
  if (!trial.directory.empty()) head["directory"] = trial.directory;
  return head;
}

Status ReadHead(const Value& value, TrialRecord* trial) {
  if (!value.is_object()) return CorruptionError("trial records: a head that is no object");
  const MemberReader members(*value.if_object());
  TrialCore& core = trial->core;
  Value config = Value::Object{};
  std::string state;
  RETURN_IF_ERROR(members.Text("id", &trial->id));
  RETURN_IF_ERROR(members.OptionalObject("config", &config));
  RETURN_IF_ERROR(members.Int("created", &trial->created));
  RETURN_IF_ERROR(members.OptionalText("parent_trial", &trial->parent_trial));
  RETURN_IF_ERROR(members.OptionalText("job", &trial->job));
  RETURN_IF_ERROR(members.OptionalText("directory", &trial->directory));
  RETURN_IF_ERROR(members.OptionalText("state", &state));
  RETURN_IF_ERROR(members.Uint("run", &core.run));
  RETURN_IF_ERROR(members.OptionalBool("live", &core.live));
  RETURN_IF_ERROR(members.OptionalBool("acknowledged", &core.acknowledged));
  RETURN_IF_ERROR(members.OptionalBool("signalled", &core.signalled));
  RETURN_IF_ERROR(members.OptionalBool("killed", &core.killed));
  RETURN_IF_ERROR(members.OptionalBool("requeue", &core.requeue));
  RETURN_IF_ERROR(members.Uint("restarts", &core.restarts));
  RETURN_IF_ERROR(members.Uint("max_restarts", &core.max_restarts));
  RETURN_IF_ERROR(members.OptionalText("status", &trial->status));
  RETURN_IF_ERROR(members.OptionalText("chosen", &trial->chosen));
  RETURN_IF_ERROR(members.Uint("chosen_after_run", &trial->chosen_after_run));
  RETURN_IF_ERROR(members.OptionalText("token_hash", &trial->token_hash));
  RETURN_IF_ERROR(members.OptionalText("resume_mode", &trial->resume_mode));
  RETURN_IF_ERROR(members.Uint("next_sequence", &trial->next_sequence));
  RETURN_IF_ERROR(members.Int("asked_time", &trial->asked_time));
  RETURN_IF_ERROR(members.Int("deadline_ms", &trial->deadline_ms));
  RETURN_IF_ERROR(members.OptionalText("message", &trial->message));
  RETURN_IF_ERROR(members.OptionalBool("said_exit", &trial->said_exit));
  const auto member = [&](std::string_view name) {
    const auto found = value.if_object()->find(name);
    return found == value.if_object()->end() ? Value() : found->second;
  };
  ASSIGN_OR_RETURN(trial->config, TrialConfigFromValue(config));
  ASSIGN_OR_RETURN(trial->parent, StartPointFromValue(member("parent")));
  ASSIGN_OR_RETURN(trial->start, StartPointFromValue(member("start")));
  trial->progress = member("progress").AsDouble();
  core.detached = trial->config.detached;
  const auto known = TrialStateFromName(state);
  if (!known) return UnimplementedError(fmt::format("trial records: no state {}", state));
  core.state = *known;
  return Status::Ok();
}

Value FullValue(const CheckpointRecord& record) {
  Value value = ToValue(record);
  (*value.if_object())["awaits_score"] = record.awaits_score;
  (*value.if_object())["order"] = record.order;
  if (!record.base.empty()) (*value.if_object())["base"] = record.base;
  if (!record.unwanted.empty()) (*value.if_object())["unwanted"] = record.unwanted;
  return value;
}

Status ReadCheckpoint(const Value& value, CheckpointRecord* record) {
  if (!value.is_object()) return CorruptionError("trial records: a checkpoint that is no object");
  const MemberReader members(*value.if_object());
  std::string state;
  RETURN_IF_ERROR(members.OptionalText("id", &record->id));
  RETURN_IF_ERROR(members.OptionalText("registration", &record->registration));
  RETURN_IF_ERROR(members.OptionalText("state", &state));
  RETURN_IF_ERROR(members.Int("steps_completed", &record->steps));
  RETURN_IF_ERROR(members.Uint("ranks", &record->ranks));
  RETURN_IF_ERROR(members.OptionalObject("metadata", &record->metadata));
  RETURN_IF_ERROR(members.OptionalObject("metrics", &record->metrics));
  RETURN_IF_ERROR(members.Uint("bytes", &record->bytes));
  RETURN_IF_ERROR(members.Uint("generation", &record->generation));
  RETURN_IF_ERROR(members.Uint("sequence", &record->sequence));
  RETURN_IF_ERROR(members.OptionalText("path", &record->path));
  RETURN_IF_ERROR(members.OptionalText("base", &record->base));
  RETURN_IF_ERROR(members.OptionalBool("pinned", &record->pinned));
  RETURN_IF_ERROR(members.OptionalBool("awaits_score", &record->awaits_score));
  RETURN_IF_ERROR(members.OptionalText("unwanted", &record->unwanted));
  RETURN_IF_ERROR(members.Uint("run_id", &record->run));
  RETURN_IF_ERROR(members.Int("time", &record->time));
  RETURN_IF_ERROR(members.Uint("order", &record->order));
  RETURN_IF_ERROR(members.OptionalText("reason", &record->reason));
  for (const CheckpointState known : {CheckpointState::kActive, CheckpointState::kCompleted,
                                      CheckpointState::kDeleted, CheckpointState::kError}) {
    if (CheckpointStateName(known) != state) continue;
    record->state = known;
    return Status::Ok();
  }
  return UnimplementedError(fmt::format("trial records: no checkpoint is {}", state));
}

void WriteReport(const MetricPoint& point, CompactWriter* out) {
  out->Text(point.group);
  out->Signed(point.steps);
  out->Number(point.run);
  out->Number(point.sequence);
  out->Signed(point.time);
  out->Number(point.archived ? 1 : 0);
  out->Any(point.values);
}

Status ReadReport(CompactReader* in, MetricPoint* point) {
  std::uint64_t archived = 0;
  RETURN_IF_ERROR(in->Text(&point->group));
  RETURN_IF_ERROR(in->Signed(&point->steps));
  RETURN_IF_ERROR(in->Number(&point->run));
  RETURN_IF_ERROR(in->Number(&point->sequence));
  RETURN_IF_ERROR(in->Signed(&point->time));
  RETURN_IF_ERROR(in->Number(&archived));
  if (archived > 1) return CorruptionError("trial records: neither archived nor not");
  point->archived = archived == 1;
  return in->Any(&point->values);
}

}  // namespace

std::string EncodeRecords(const TrialRecords& records) {
  CompactWriter out;
  out.Number(kVersion);
  out.Number(records.last_seq());
  out.Number(records.trials().size());
  for (const auto& [id, trial] : records.trials()) {
    out.Any(HeadOf(trial));
    out.Number(trial.checkpoints.size());
    for (const CheckpointRecord& record : trial.checkpoints) out.Any(FullValue(record));
    out.Number(trial.reports.size());
    for (const MetricPoint& point : trial.reports) WriteReport(point, &out);
  }
  return out.Take();
}

Result<TrialRecords> DecodeRecords(std::string_view bytes) {
  CompactReader in(bytes, "trial records");
  std::uint64_t version = 0;
  std::uint64_t last_seq = 0;
  std::uint64_t count = 0;
  RETURN_IF_ERROR(in.Number(&version));
  if (version != kVersion) {
    return UnimplementedError(
        fmt::format("trial records of version {}; this program reads {}", version, kVersion));
  }
  RETURN_IF_ERROR(in.Number(&last_seq));
  RETURN_IF_ERROR(in.Count(&count));
  std::vector<TrialRecord> trials;
  for (; count > 0; --count) {
    TrialRecord trial;
    Value head;
    std::uint64_t items = 0;
    RETURN_IF_ERROR(in.Any(&head));
    RETURN_IF_ERROR(ReadHead(head, &trial));
    RETURN_IF_ERROR(in.Count(&items));
    trial.checkpoints.resize(items);
    for (CheckpointRecord& record : trial.checkpoints) {
      Value value;
      RETURN_IF_ERROR(in.Any(&value));
      RETURN_IF_ERROR(ReadCheckpoint(value, &record));
    }
    RETURN_IF_ERROR(in.Count(&items));
    trial.reports.resize(items);
    for (MetricPoint& point : trial.reports) RETURN_IF_ERROR(ReadReport(&in, &point));
    trials.push_back(std::move(trial));
  }
  if (!in.empty()) return CorruptionError("trial records: more than was announced");
  return TrialRecords::Of(last_seq, std::move(trials));
}

}  // namespace cairn

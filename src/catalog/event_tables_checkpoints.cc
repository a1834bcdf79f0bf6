#include <utility>

#include "base/status_macros.h"
#include "catalog/event_body.h"
#include "catalog/event_tables.h"
#include "catalog/report_reader.h"
#include "catalog/trial_rows.h"
#include "format/json.h"

namespace cairn {
namespace {

struct KnownCheckpoint {
  std::int64_t ordinal = 0;
  CheckpointRow row;
};

/// As TrialRecord::Find: the first that has the name as its id or registration.
Result<std::optional<KnownCheckpoint>> FindKnown(Connection* connection, const std::string& trial,
                                                 const std::string& name) {
  std::optional<KnownCheckpoint> known;
  if (name.empty()) return known;
  RETURN_IF_ERROR(connection->Query(
      std::string(kCheckpointSelect) +
          " WHERE c.trial = ? AND (c.id = ? OR c.registration = ?) ORDER BY c.ordinal LIMIT 1",
      {trial, name, name}, kCheckpointColumns, [&](const SqlRow& row) -> Status {
        ASSIGN_OR_RETURN(CheckpointRow checkpoint, CheckpointFromRow(row));
        known = KnownCheckpoint{row.Int(0), std::move(checkpoint)};
        return Status::Ok();
      }));
  return known;
}

Status Insert(Connection* connection, std::int64_t ordinal, const CheckpointRow& row) {
  const CheckpointRecord& record = row.record;
  return connection->Run(
      "INSERT INTO checkpoints (ordinal, trial, experiment, id, registration, state, steps, ranks, "
      "metadata, metrics, bytes, generation, sequence, path, pinned, awaits_score, run, time, "
      "completed, reason, kind, base) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
      "?, ?, ?, ?, ?)",
      {ordinal,
       row.trial,
       row.experiment,
       record.id,
       record.registration,
       std::string(CheckpointStateName(record.state)),
       record.steps,
       Number(record.ranks),
       EncodeJson(record.metadata),
       EncodeJson(record.metrics),
       Number(record.bytes),
       Number(record.generation),
       Number(record.sequence),
       record.path,
       Flag(record.pinned),
       Flag(record.awaits_score),
       Number(record.run),
       record.time,
       Number(record.order),
       record.reason,
       row.kind,
       row.base});
}

}  // namespace

Status EventTables::ApplyCheckpoint(Connection* connection, const Event& event, Trial* trial) {
  switch (event.kind) {
    case EventKind::kCheckpointStarted: {
      CheckpointRow row{.trial = trial->id, .experiment = trial->config.experiment};
      row.record.registration = TextOf(event, "registration");
      row.record.steps = IntOf(event, "steps_completed");
      if (const Value* ranks = event.body.Find("ranks"); ranks != nullptr) {
        row.record.ranks = static_cast<std::uint64_t>(ranks->AsInt(1));
      }
      row.record.metadata = ObjectOf(event, "metadata");
      row.record.run = event.run;
      row.record.time = event.time;
      row.record.reason = TextOf(event, "reason");
      return Insert(connection, static_cast<std::int64_t>(event.seq), row);
    }
    case EventKind::kCheckpointCompleted:
      trial->checkpoints_changed = true;
      return ApplyCompleted(connection, event, trial);
    case EventKind::kCheckpointAbandoned:
    case EventKind::kCheckpointDeleted:
    case EventKind::kCheckpointPinned: {
      const std::string id = TextOf(event, "id");
      ASSIGN_OR_RETURN(
          const auto known,
          FindKnown(connection, trial->id, id.empty() ? TextOf(event, "registration") : id));
      if (!known) return Status::Ok();
      if (event.kind == EventKind::kCheckpointPinned) {
        return connection->Run("UPDATE checkpoints SET pinned = ? WHERE ordinal = ?",
                               {Flag(BoolOf(event, "pinned")), known->ordinal});
      }
      trial->checkpoints_changed = true;
      return connection->Run(
          "UPDATE checkpoints SET state = ?, reason = ? WHERE ordinal = ?",
          {std::string(event.kind == EventKind::kCheckpointDeleted ? "DELETED" : "ERROR"),
           TextOf(event, "reason"), known->ordinal});
    }
    default:
      return Status::Ok();
  }
}

Status EventTables::ApplyCompleted(Connection* connection, const Event& event, Trial* trial) {
  CheckpointRow row{.trial = trial->id, .experiment = trial->config.experiment};
  CheckpointRecord& record = row.record;
  record.id = TextOf(event, "id");
  record.registration = TextOf(event, "registration");
  record.state = CheckpointState::kCompleted;
  record.steps = IntOf(event, "steps_completed");
  record.metadata = ObjectOf(event, "metadata");
  record.metrics = ObjectOf(event, "metrics");
  record.bytes = static_cast<std::uint64_t>(IntOf(event, "bytes"));
  record.generation = static_cast<std::uint64_t>(IntOf(event, "generation"));
  record.sequence = static_cast<std::uint64_t>(IntOf(event, "sequence"));
  record.path = TextOf(event, "path");
  record.awaits_score = BoolOf(event, "awaits_score");
  record.run = event.run;
  record.time = event.time;
  if (const Value* time = event.body.Find("time"); time != nullptr && record.registration.empty()) {
    record.time = time->AsInt(event.time);  // of the manifest of one that was found
  }
  record.order = event.seq;
  record.reason = TextOf(event, "reason");
  row.kind = TextOf(event, "kind");
  row.base = TextOf(event, "base");
  ASSIGN_OR_RETURN(const auto known,
                   FindKnown(connection, trial->id,
                             record.registration.empty() ? record.id : record.registration));
  std::int64_t ordinal = static_cast<std::int64_t>(event.seq);
  if (known) {
    ordinal = known->ordinal;
    record.ranks = known->row.record.ranks;
    record.pinned = known->row.record.pinned;
    record.registration = known->row.record.registration;
    RETURN_IF_ERROR(connection->Run("DELETE FROM checkpoints WHERE ordinal = ?", {ordinal}));
  }
  // Validations of this step that were reported before it was complete.
  ASSIGN_OR_RETURN(const ArchiveRules rules, ArchiveRules::Load(connection, trial->id));
  const BlockFilter filter{.trial = trial->id,
                           .group = "validation",
                           .from_steps = record.steps,
                           .to_steps = record.steps};
  const auto take = [&](std::uint64_t run, const Value& body) {
    const Value* metrics = body.Find("metrics");
    if (metrics == nullptr || StepsOf(body) != record.steps) return;
    if (!rules.Archives(filter.group, run, record.steps)) MergeMembers(*metrics, &record.metrics);
  };
  RETURN_IF_ERROR(
      VisitReportBlocks(connection, filter, [&](const std::string&, ReportBlock* block) -> Status {
        for (std::size_t i = 0; i < block->size(); ++i) {
          if (block->steps()[i] != record.steps) continue;
          ASSIGN_OR_RETURN(const Value body, block->Body(i));
          take(static_cast<std::uint64_t>(block->run()[i]), body);
        }
        return Status::Ok();
      }));
  RETURN_IF_ERROR(
      VisitLooseReports(connection, filter, [&](const std::string&, StoredReport report) {
        take(report.run, report.body);
        return Status::Ok();
      }));
  return Insert(connection, ordinal, row);
}

}  // namespace cairn

#include "catalog/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "catalog/row_inserter.h"
#include "catalog/trial_rows.h"
#include "format/json.h"

namespace cairn {
namespace {

/// Fewer characters of an id are a slip of the hand rather than a name.
constexpr std::size_t kShortestBeginning = 4;

/// WHERE … with its values.
struct Condition {
  std::string sql;
  std::vector<Cell> values;

  void And(const std::string& text, std::vector<Cell> more) {
    sql += (sql.empty() ? " WHERE " : " AND ") + text;
    for (Cell& cell : more) values.push_back(std::move(cell));
  }
  void AndAnyOf(const std::string& column, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    And(column + " IN (" + Placeholders(texts.size()) + ")",
        std::vector<Cell>(texts.begin(), texts.end()));
  }
};

std::uint64_t Limit(std::uint64_t asked) { return std::min(asked, kMaxPage); }

}  // namespace

Result<TrialRow> CatalogTrials::Get(const std::string& trial) {
  std::optional<TrialRow> found;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query(std::string(kTrialSelect) + " WHERE t.id = ?", {trial}, kTrialColumns,
                            [&](const SqlRow& row) -> Status {
                              ASSIGN_OR_RETURN(found, TrialFromRow(row));
                              return Status::Ok();
                            });
  }));
  if (!found) return NotFoundError(fmt::format("no trial {}", QuoteForMessage(trial)));
  return std::move(*found);
}

Result<Page<TrialRow>> CatalogTrials::List(const TrialQuery& query) {
  Condition where;
  if (!query.experiment.empty()) where.And("t.experiment = ?", {query.experiment});
  where.AndAnyOf("t.state", query.states);
  if (!query.of_deleted) {
    where.And(
        "t.experiment NOT IN (SELECT CAST(e.id AS TEXT) FROM experiments e "
        "WHERE e.deleted = 1)",
        {});
  }
  const std::string direction = query.descending ? " DESC" : "";
  std::string order;
  std::vector<Cell> order_values;
  if (query.sort == "id") {
    order = fmt::format("COALESCE(t.number, 0){0}, t.id{0}", direction);
  } else if (query.sort == "best_metric") {
    order = fmt::format(
        "CASE WHEN t.best_metric IS NULL THEN 1 ELSE 0 END, t.best_metric{}, "
        "t.created, t.id",
        direction);
  } else if (query.sort == "best") {
    // Numbers are compared where they mean the same: metric by metric, and direction by direction.
    constexpr std::string_view kOf =
        "(SELECT e.{} FROM experiments e WHERE e.id = t.experiment_id)";
    const std::string smaller = fmt::format(fmt::runtime(kOf), "smaller_is_better");
    order = fmt::format(
        "CASE WHEN t.best_metric IS NULL THEN 1 ELSE 0 END, {}, COALESCE({}, 0), "
        "CASE WHEN {} = 1 THEN t.best_metric ELSE -t.best_metric END, t.created, t.id",
        fmt::format(fmt::runtime(kOf), "metric"), smaller, smaller);
  } else if (query.sort == "duration") {
    order_values.emplace_back(query.now);
    order = fmt::format(
        "t.ran + CASE WHEN t.running_since = 0 THEN 0 ELSE CAST(? AS BIGINT) - t.running_since END"
        "{}, t.created, t.id",
        direction);
  } else {
    bool known = false;
    for (const std::string_view column :
         {"state", "started", "ended", "steps", "progress", "checkpoint_bytes"}) {
      known = known || column == query.sort;
    }
    if (!known) {
      return InvalidArgumentError(
          fmt::format("trials cannot be sorted by {}", QuoteForMessage(query.sort)));
    }
    order = fmt::format("t.{}{}, t.created, t.id", query.sort, direction);
  }
  Page<TrialRow> page;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    page = {};
    RETURN_IF_ERROR(connection.Query("SELECT COUNT(*) FROM trials t" + where.sql, where.values, "i",
                                     [&](const SqlRow& row) {
                                       page.total = row.Uint(0);
                                       return Status::Ok();
                                     }));
    std::vector<Cell> values = where.values;
    values.insert(values.end(), order_values.begin(), order_values.end());
    values.push_back(Number(Limit(query.limit)));
    values.push_back(Number(query.offset));
    return connection.Query(
        std::string(kTrialSelect) + where.sql + " ORDER BY " + order + " LIMIT ? OFFSET ?", values,
        kTrialColumns, [&](const SqlRow& row) -> Status {
          ASSIGN_OR_RETURN(TrialRow trial, TrialFromRow(row));
          page.items.push_back(std::move(trial));
          return Status::Ok();
        });
  }));
  return page;
}

Result<std::vector<RunRow>> CatalogTrials::Runs(const std::string& trial) {
  std::vector<RunRow> runs;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    runs.clear();
    return connection.Query(
        "SELECT run, started, ready, ended, resume_mode, start_point, code, signal, lost, stopped, "
        "message, outcome, began FROM runs WHERE trial = ? ORDER BY run",
        {trial}, "iiiittiiiitti", [&](const SqlRow& row) -> Status {
          RunRow run{.trial = trial,
                     .run = row.Uint(0),
                     .started = row.Int(1),
                     .began = row.Int(12),
                     .ready = row.Int(2),
                     .ended = row.Int(3),
                     .resume_mode = row.Text(4),
                     .code = row.Int(6),
                     .signal = row.Int(7),
                     .lost = row.Bool(8),
                     .stopped = row.Bool(9),
                     .outcome = row.Text(11),
                     .message = row.Text(10)};
          ASSIGN_OR_RETURN(const Value point, DecodeJson(row.Text(5)));
          ASSIGN_OR_RETURN(run.from, StartPointFromValue(point));
          runs.push_back(std::move(run));
          return Status::Ok();
        });
  }));
  return runs;
}

Result<Page<CheckpointRow>> CatalogTrials::Checkpoints(const CheckpointQuery& query) {
  Condition where;
  if (!query.trial.empty()) where.And("c.trial = ?", {query.trial});
  if (!query.experiment.empty()) where.And("c.experiment = ?", {query.experiment});
  if (query.pinned) where.And("c.pinned = ?", {Flag(*query.pinned)});
  where.AndAnyOf("c.state", query.states);
  bool known = false;
  for (const std::string_view column : {"time", "steps", "bytes", "state"}) {
    known = known || column == query.sort;
  }
  if (!known) {
    return InvalidArgumentError(
        fmt::format("checkpoints cannot be sorted by {}", QuoteForMessage(query.sort)));
  }
  const std::string order = fmt::format(" ORDER BY c.{0}{1}, c.ordinal{1} LIMIT ? OFFSET ?",
                                        query.sort, query.descending ? " DESC" : "");
  Page<CheckpointRow> page;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    page = {};
    RETURN_IF_ERROR(connection.Query("SELECT COUNT(*) FROM checkpoints c" + where.sql, where.values,
                                     "i", [&](const SqlRow& row) {
                                       page.total = row.Uint(0);
                                       return Status::Ok();
                                     }));
    std::vector<Cell> values = where.values;
    values.push_back(Number(Limit(query.limit)));
    values.push_back(Number(query.offset));
    return connection.Query(std::string(kCheckpointSelect) + where.sql + order, values,
                            kCheckpointColumns, [&](const SqlRow& row) -> Status {
                              ASSIGN_OR_RETURN(CheckpointRow checkpoint, CheckpointFromRow(row));
                              page.items.push_back(std::move(checkpoint));
                              return Status::Ok();
                            });
  }));
  return page;
}

Result<CheckpointRow> CatalogTrials::GetCheckpoint(const std::string& id) {
  std::optional<CheckpointRow> found;
  if (!id.empty()) {
    RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
      return connection.Query(
          std::string(kCheckpointSelect) +
              " WHERE c.id = ? OR c.registration = ? ORDER BY c.ordinal LIMIT 1",
          {id, id}, kCheckpointColumns, [&](const SqlRow& row) -> Status {
            ASSIGN_OR_RETURN(found, CheckpointFromRow(row));
            return Status::Ok();
          });
    }));
  }
  if (!found) return NotFoundError(fmt::format("no checkpoint {}", QuoteForMessage(id)));
  return std::move(*found);
}

Result<CheckpointRow> CatalogTrials::FindCheckpoint(const std::string& text) {
  auto exact = GetCheckpoint(text);
  if (!exact.status().Is(Code::kNotFound) || text.size() < kShortestBeginning) return exact;
  std::vector<std::string> ids;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    ids.clear();
    return connection.Query(
        "SELECT DISTINCT id FROM checkpoints WHERE substr(id, 1, CAST(? AS INTEGER)) = ? ORDER BY "
        "id LIMIT 2",
        {static_cast<std::int64_t>(text.size()), text}, "t", [&](const SqlRow& row) {
          ids.push_back(row.Text(0));
          return Status::Ok();
        });
  }));
  if (ids.empty()) return exact;
  if (ids.size() > 1) {
    return InvalidArgumentError(fmt::format(
        "several checkpoints begin with {}: write more of the id", QuoteForMessage(text)));
  }
  return GetCheckpoint(ids.front());
}

Result<std::vector<CatalogTrials::Usage>> CatalogTrials::StorageUsage() {
  std::vector<Usage> usage;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    usage.clear();
    return connection.Query(
        "SELECT experiment, COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS total FROM "
        "checkpoints WHERE state = 'COMPLETED' GROUP BY experiment ORDER BY total DESC, experiment",
        {}, "tii", [&](const SqlRow& row) {
          usage.push_back({row.Text(0), row.Uint(1), row.Uint(2)});
          return Status::Ok();
        });
  }));
  return usage;
}

}  // namespace cairn

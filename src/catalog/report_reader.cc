#include "catalog/report_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

/// A condition and its values that both tables understand.
void AppendFilter(const BlockFilter& filter, std::string* sql, std::vector<Cell>* values) {
  values->emplace_back(filter.trial);
  if (filter.group.empty()) return;
  *sql += " AND grp = ?";
  values->emplace_back(filter.group);
}

}  // namespace

Result<ArchiveRules> ArchiveRules::Load(Connection* connection, const std::string& trial) {
  ArchiveRules rules;
  std::int64_t past = std::numeric_limits<std::int64_t>::max();
  RETURN_IF_ERROR(
      connection->Query("SELECT run, archives_past FROM runs WHERE trial = ? ORDER BY run DESC",
                        {trial}, "ii", [&](const SqlRow& row) {
                          past = std::min(past, row.Int(1));
                          rules.past_[row.Uint(0)] = past;
                          return Status::Ok();
                        }));
  RETURN_IF_ERROR(connection->Query("SELECT grp, steps, run FROM repeated_steps WHERE trial = ?",
                                    {trial}, "tii", [&](const SqlRow& row) {
                                      rules.repeated_[row.Text(0)][row.Int(1)] = row.Uint(2);
                                      return Status::Ok();
                                    }));
  return rules;
}

bool ArchiveRules::Archives(const std::string& group, std::uint64_t run, std::int64_t steps) const {
  const auto later = past_.upper_bound(run);
  if (later != past_.end() && steps > later->second) return true;
  const auto repeated = repeated_.find(group);
  if (repeated == repeated_.end()) return false;
  const auto step = repeated->second.find(steps);
  return step != repeated->second.end() && step->second > run;
}

Status VisitReportBlocks(Connection* connection, const BlockFilter& filter,
                         const BlockVisitor& visit) {
  std::string sql = "SELECT grp, data FROM report_blocks WHERE trial = ?";
  std::vector<Cell> values;
  AppendFilter(filter, &sql, &values);
  sql += " AND max_steps >= ? AND min_steps <= ? AND last_seq >= ? ORDER BY grp, first_seq";
  values.emplace_back(filter.from_steps);
  values.emplace_back(filter.to_steps);
  values.push_back(Number(filter.from_seq));
  return connection->Query(sql, values, "tb", [&](const SqlRow& row) -> Status {
    ASSIGN_OR_RETURN(auto block, ReportBlock::Decode(row.Bytes(1), row.Text(0)));
    return visit(row.Text(0), &block);
  });
}

Status VisitLooseReports(Connection* connection, const BlockFilter& filter,
                         const ReportVisitor& visit) {
  std::string sql = "SELECT grp, seq, time, run, body FROM reports WHERE trial = ?";
  std::vector<Cell> values;
  AppendFilter(filter, &sql, &values);
  sql += " AND steps >= ? AND steps <= ? AND seq >= ? ORDER BY grp, seq";
  values.emplace_back(filter.from_steps);
  values.emplace_back(filter.to_steps);
  values.push_back(Number(filter.from_seq));
  return connection->Query(sql, values, "tiiit", [&](const SqlRow& row) -> Status {
    StoredReport report{.seq = row.Uint(1), .time = row.Int(2), .run = row.Uint(3)};
    ASSIGN_OR_RETURN(report.body, DecodeJson(row.Text(4)));
    return visit(row.Text(0), std::move(report));
  });
}

}  // namespace cairn

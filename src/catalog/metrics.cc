#include "catalog/metrics.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "catalog/report_reader.h"
#include "format/json.h"

namespace cairn {
namespace {

BlockFilter FilterOf(const MetricQuery& query) {
  return {.trial = query.trial,
          .group = query.group,
          .from_steps = query.from_steps,
          .to_steps = query.to_steps};
}

/// Which reports a query wants.
class Wanted {
 public:
  Wanted(const MetricQuery& query, const ArchiveRules& rules) : query_(query), rules_(rules) {}

  bool Takes(const std::string& group, std::uint64_t run, std::int64_t steps,
             bool* archived) const {
    if (query_.run && run != *query_.run) return false;
    if (steps < query_.from_steps || steps > query_.to_steps) return false;
    *archived = rules_.Archives(group, run, steps);
    return !*archived || query_.archived;
  }

 private:
  const MetricQuery& query_;
  const ArchiveRules& rules_;
};

/// A report as its body says.
ReportRow RowOf(const std::string& group, const StoredReport& report) {
  ReportRow row{.seq = report.seq,
                .group = group,
                .steps = StepsOf(report.body),
                .run = report.run,
                .time = report.time};
  if (const Value* sequence = report.body.Find("sequence"); sequence != nullptr) {
    row.sequence = static_cast<std::uint64_t>(sequence->AsInt());
  }
  if (const Value* metrics = report.body.Find("metrics"); metrics != nullptr) {
    row.values = *metrics;
    RestoreNonFinite(&row.values);
  }
  return row;
}

/// Leaves the wanted ones; "a/b" leaves {a: {b: …}}.
void KeepNames(const std::vector<std::string>& names, Value* values) {
  if (names.empty() || !values->is_object()) return;
  Value::Object kept;
  for (const std::string& name : names) {
    const Value* value = values->Find(name);
    if (value == nullptr) continue;
    if (values->if_object()->contains(name)) {
      kept[name] = *value;
      continue;
    }
    Value::Object* place = &kept;
    std::string_view path = name;
    for (std::size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/')) {
      Value& inner = (*place)[std::string(path.substr(0, slash))];
      if (!inner.is_object()) inner = Value::Object{};
      place = inner.if_object();
      path.remove_prefix(slash + 1);
    }
    (*place)[std::string(path)] = *value;
  }
  *values = std::move(kept);
}

}  // namespace

Result<std::vector<ReportRow>> CatalogMetrics::Reports(const MetricQuery& query, std::uint64_t from,
                                                       std::uint64_t limit) {
  std::vector<ReportRow> rows;
  const Status read = db_->ReadSnapshot([&](Connection& connection) -> Status {
    rows.clear();
    ASSIGN_OR_RETURN(const ArchiveRules rules, ArchiveRules::Load(&connection, query.trial));
    const Wanted wanted(query, rules);
    BlockFilter filter = FilterOf(query);
    filter.from_seq = from;
    // Each group comes in order: beyond `limit` of one, later ones cannot be among the first.
    std::map<std::string, std::uint64_t> taken;
    const auto add = [&](const std::string& group, const StoredReport& report, bool archived) {
      ReportRow row = RowOf(group, report);
      row.archived = archived;
      KeepNames(query.names, &row.values);
      if (!query.names.empty() && row.values.if_object()->empty()) return;
      ++taken[group];
      rows.push_back(std::move(row));
    };
    RETURN_IF_ERROR(VisitReportBlocks(
        &connection, filter, [&](const std::string& group, ReportBlock* block) -> Status {
          for (std::size_t i = 0; i < block->size() && taken[group] < limit; ++i) {
            const auto run = static_cast<std::uint64_t>(block->run()[i]);
            const auto seq = static_cast<std::uint64_t>(block->seq()[i]);
            bool archived = false;
            if (seq < from || !wanted.Takes(group, run, block->steps()[i], &archived)) continue;
            ASSIGN_OR_RETURN(Value body, block->Body(i));
            add(group, {.seq = seq, .time = block->time()[i], .run = run, .body = std::move(body)},
                archived);
          }
          return Status::Ok();
        }));
    return VisitLooseReports(
        &connection, filter, [&](const std::string& group, StoredReport report) {
          bool archived = false;
          if (taken[group] < limit &&
              wanted.Takes(group, report.run, StepsOf(report.body), &archived)) {
            add(group, report, archived);
          }
          return Status::Ok();
        });
  });
  if (!read.ok()) return read.WithContext("metrics");
  std::sort(rows.begin(), rows.end(),
            [](const ReportRow& a, const ReportRow& b) { return a.seq < b.seq; });
  if (rows.size() > limit) rows.resize(limit);
  return rows;
}

Result<std::vector<MetricSeries>> CatalogMetrics::Series(const MetricQuery& query,
                                                         std::uint64_t max_points) {
  // Points of one metric come in order: blocks of a group in order, then its loose reports.
  std::map<MetricName, std::vector<SeriesPoint>> series;
  const Status read = db_->ReadSnapshot([&](Connection& connection) -> Status {
    series.clear();
    ASSIGN_OR_RETURN(const ArchiveRules rules, ArchiveRules::Load(&connection, query.trial));
    const Wanted wanted(query, rules);
    const BlockFilter filter = FilterOf(query);
    RETURN_IF_ERROR(VisitReportBlocks(
        &connection, filter, [&](const std::string& group, ReportBlock* block) -> Status {
          std::vector<std::string> names = query.names;
          if (names.empty()) {
            ASSIGN_OR_RETURN(names, block->Names());
          }
          std::vector<char> take(block->size(), 0);
          std::vector<char> archived(block->size(), 0);
          for (std::size_t i = 0; i < block->size(); ++i) {
            bool old = false;
            take[i] = wanted.Takes(group, static_cast<std::uint64_t>(block->run()[i]),
                                   block->steps()[i], &old)
                          ? 1
                          : 0;
            archived[i] = old ? 1 : 0;
          }
          for (const std::string& name : names) {
            ASSIGN_OR_RETURN(const auto values, block->Metric(name));
            std::vector<SeriesPoint>& points = series[{group, name}];
            for (std::size_t i = 0; i < values.size(); ++i) {
              if (take[i] == 0 || !values[i]) continue;
              points.push_back({.steps = block->steps()[i],
                                .time = block->time()[i],
                                .run = static_cast<std::uint64_t>(block->run()[i]),
                                .value = *values[i],
                                .archived = archived[i] != 0});
            }
          }
          return Status::Ok();
        }));
    return VisitLooseReports(
        &connection, filter, [&](const std::string& group, StoredReport report) {
          SeriesPoint point{.steps = StepsOf(report.body), .time = report.time, .run = report.run};
          const Value* metrics = report.body.Find("metrics");
          if (metrics == nullptr ||
              !wanted.Takes(group, report.run, point.steps, &point.archived)) {
            return Status::Ok();
          }
          std::vector<std::string> names = query.names;
          if (names.empty()) AppendMetricNames(*metrics, kMaxPackedColumns, &names);
          for (const std::string& name : names) {
            const auto value = MetricOf(*metrics, name);
            if (!value) continue;
            point.value = *value;
            series[{group, name}].push_back(point);
          }
          return Status::Ok();
        });
  });
  if (!read.ok()) return read.WithContext("metrics");
  std::vector<MetricSeries> all;
  for (auto& [name, points] : series) {
    if (points.empty()) continue;
    MetricSeries one{.group = name.group, .name = name.name, .total = points.size()};
    one.points = Downsample(std::move(points), max_points);
    all.push_back(std::move(one));
  }
  return all;
}

Result<std::vector<MetricName>> CatalogMetrics::Names(const std::string& trial) {
  std::vector<MetricName> names;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    names.clear();
    return connection.Query("SELECT grp, name FROM metric_names WHERE trial = ?", {trial}, "tt",
                            [&](const SqlRow& row) {
                              names.push_back({row.Text(0), row.Text(1)});
                              return Status::Ok();
                            });
  }));
  std::sort(names.begin(), names.end());  // databases sort text each in its own way
  return names;
}

}  // namespace cairn

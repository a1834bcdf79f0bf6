#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

class CatalogDatabase;

/// One report, as MetricPoint (trial/trial_record.h), with its event's number.
struct ReportRow {
  std::uint64_t seq = 0;  // of the event
  std::string group;
  std::int64_t steps = 0;
  std::uint64_t run = 0;
  std::uint64_t sequence = 0;
  std::int64_t time = 0;
  Value values = Value::Object{};  // non-finite numbers are numbers
  bool archived = false;           // a later run went back before it, or reported it again
};

struct MetricQuery {
  std::string trial;
  std::string group;                 // "": all
  std::vector<std::string> names;    // "a/b" reaches into nested ones; empty: all
  std::optional<std::uint64_t> run;  // of one run alone
  std::int64_t from_steps = std::numeric_limits<std::int64_t>::min();
  std::int64_t to_steps = std::numeric_limits<std::int64_t>::max();
  bool archived = false;  // also those that do not count any more
};

struct SeriesPoint {
  std::int64_t steps = 0;
  std::int64_t time = 0;
  std::uint64_t run = 0;
  double value = 0;
  bool archived = false;
};

/// One metric over time.
struct MetricSeries {
  std::string group;
  std::string name;
  std::uint64_t total = 0;  // points before they were thinned out
  std::vector<SeriesPoint> points;
};

struct MetricName {
  std::string group;
  std::string name;  // members of nested objects as "a/b"
  friend auto operator<=>(const MetricName&, const MetricName&) = default;
};

/// What runs reported: written with the events alone, kept in blocks (docs/format/catalog.md). May
/// be called from any thread.
class CatalogMetrics {
 public:
  explicit CatalogMetrics(CatalogDatabase* db) : db_(db) {}

  /// Whole reports in the order in which they came, from the event `from` on, at most `limit`.
  Result<std::vector<ReportRow>> Reports(const MetricQuery& query, std::uint64_t from = 0,
                                         std::uint64_t limit = 100'000);
  /// Each metric as at most `max_points` points (at least 4; 0: all), in the order in which they
  /// came. The first and the last stay, and of what lies between the least and the greatest of each
  /// stretch, so that spikes stay; so does one non-finite value of each stretch.
  Result<std::vector<MetricSeries>> Series(const MetricQuery& query, std::uint64_t max_points);
  /// The numbers that the trial ever reported.
  Result<std::vector<MetricName>> Names(const std::string& trial);

 private:
  CatalogDatabase* const db_;
};

/// At most `max_points` of the points, as Series says. A pure function.
std::vector<SeriesPoint> Downsample(std::vector<SeriesPoint> points, std::uint64_t max_points);

}  // namespace cairn

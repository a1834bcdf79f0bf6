#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/packed_columns.h"
#include "trial/event.h"

namespace cairn {

/// A report that waits to be put into a block: an event of kind report without what the block's key
/// says.
struct StoredReport {
  std::uint64_t seq = 0;
  std::int64_t time = 0;
  std::uint64_t run = 0;
  Value body = Value::Object{};
};

/// Steps of a report's body; 0 when it has none.
std::int64_t StepsOf(const Value& body);

/// Many reports of one trial and group (docs/format/catalog.md). A number that is a member of
/// `metrics` in its own right is a column; whatever else a body holds is kept as JSON beside it, so
/// that every event comes back as it was written.
std::string EncodeReportBlock(std::string_view group, std::span<const StoredReport> reports);

/// Reads a block; metrics are unpacked when they are asked for. A value; for one thread.
class ReportBlock {
 public:
  static Result<ReportBlock> Decode(std::string bytes, std::string group);

  std::size_t size() const { return seq_.size(); }
  const std::vector<std::int64_t>& seq() const { return seq_; }
  const std::vector<std::int64_t>& time() const { return time_; }
  const std::vector<std::int64_t>& run() const { return run_; }
  const std::vector<std::int64_t>& steps() const { return steps_; }

  /// The metric of each row, as a double; none where it is missing or no number. "a/b" reaches into
  /// nested objects.
  Result<std::vector<std::optional<double>>> Metric(const std::string& name);
  /// The numbers that there are, nested ones as "a/b".
  Result<std::vector<std::string>> Names();
  /// The event's body, as its JSON text would be read back.
  Result<Value> Body(std::size_t row);

 private:
  /// Unpacks all metrics and the rest, for bodies.
  Status UnpackAll();
  Status UnpackRest();

  std::optional<PackedReader> packed_;
  std::string group_;
  std::vector<std::int64_t> seq_;
  std::vector<std::int64_t> time_;
  std::vector<std::int64_t> run_;
  std::vector<std::int64_t> sequence_;
  std::vector<std::int64_t> steps_;
  bool rest_unpacked_ = false;
  std::vector<Value> rest_;  // null: none
  bool all_unpacked_ = false;
  struct DoubleColumn {
    std::string name;
    std::vector<std::optional<double>> values;
  };
  struct IntegerColumn {
    std::string name;
    std::vector<std::optional<std::int64_t>> values;
  };
  std::vector<DoubleColumn> doubles_;
  std::vector<IntegerColumn> integers_;
};

/// The number that a report's metrics hold under the name; none when there is none.
std::optional<double> MetricOf(const Value& metrics, std::string_view name);
/// The names of all numbers in `metrics`, nested ones as "a/b", at most `limit`.
void AppendMetricNames(const Value& metrics, std::size_t limit, std::vector<std::string>* names);

}  // namespace cairn

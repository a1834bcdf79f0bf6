#include "catalog/report_block.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

// Names of columns that are no metrics; a metric's has a point in front.
constexpr std::string_view kSeq = "seq";
constexpr std::string_view kTime = "time";
constexpr std::string_view kRun = "run";
constexpr std::string_view kSequence = "sequence";
constexpr std::string_view kSteps = "steps";
constexpr std::string_view kRest = "rest";
// Members of a row's rest.
constexpr std::string_view kWhole = "whole";      // the body, where it is not of the usual form
constexpr std::string_view kBody = "body";        // members of the body that have no column
constexpr std::string_view kMetrics = "metrics";  // metrics that have no column

constexpr std::size_t kMaxMetricColumns = 2048;

/// sequence, group, steps_completed and metrics are there and of their types.
bool IsUsual(const Value& body, std::string_view group) {
  const Value::Object* members = body.if_object();
  if (members == nullptr) return false;
  const auto find = [&](std::string_view name) -> const Value* {
    const auto found = members->find(name);
    return found == members->end() ? nullptr : &found->second;
  };
  const Value* sequence = find("sequence");
  const Value* steps = find("steps_completed");
  const Value* named = find("group");
  const Value* metrics = find("metrics");
  return sequence != nullptr && sequence->if_int64() != nullptr && steps != nullptr &&
         steps->if_int64() != nullptr && named != nullptr && named->is_string() &&
         *named->if_string() == group && metrics != nullptr && metrics->is_object();
}

enum class Kind : std::uint8_t { kDouble, kInteger, kOther };

Kind KindOf(const Value& value) {
  if (value.if_int64() != nullptr) return Kind::kInteger;
  return NumberFrom(value).is_double() ? Kind::kDouble : Kind::kOther;
}

/// As the JSON text has it.
Value Written(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

void AppendNames(const Value& value, const std::string& prefix, int depth, std::size_t limit,
                 std::vector<std::string>* names) {
  if (names->size() >= limit) return;
  if (const Value::Object* members = value.if_object()) {
    if (depth >= kMaxJsonDepth) return;
    for (const auto& [key, member] : *members) {
      AppendNames(member, prefix.empty() ? key : prefix + "/" + key, depth + 1, limit, names);
    }
  } else if (!prefix.empty() && NumberFrom(value).is_number()) {
    names->push_back(prefix);
  }
}

}  // namespace

std::int64_t StepsOf(const Value& body) {
  const Value* steps = body.Find("steps_completed");
  return steps == nullptr ? 0 : steps->AsInt();
}

std::optional<double> MetricOf(const Value& metrics, std::string_view name) {
  const Value* value = metrics.Find(name);
  if (value == nullptr) return std::nullopt;
  const Value number = NumberFrom(*value);
  return number.is_number() ? std::optional(number.AsDouble()) : std::nullopt;
}

void AppendMetricNames(const Value& metrics, std::size_t limit, std::vector<std::string>* names) {
  AppendNames(metrics, "", 0, limit, names);
}

std::string EncodeReportBlock(std::string_view group, std::span<const StoredReport> reports) {
  // Which metrics are columns: those that are of one kind wherever they occur.
  std::map<std::string, Kind, std::less<>> kinds;
  for (const StoredReport& report : reports) {
    if (!IsUsual(report.body, group)) continue;
    for (const auto& [name, value] : *report.body.if_object()->at("metrics").if_object()) {
      const Kind kind = KindOf(value);
      const auto [at, fresh] = kinds.emplace(name, kind);
      if (!fresh && at->second != kind) at->second = Kind::kOther;
    }
  }
  std::erase_if(kinds, [](const auto& entry) { return entry.second == Kind::kOther; });
  while (kinds.size() > kMaxMetricColumns) kinds.erase(std::prev(kinds.end()));

  const std::size_t rows = reports.size();
  std::vector<std::int64_t> seq(rows), time(rows), run(rows), sequence(rows), steps(rows);
  std::vector<std::string> rest(rows);
  std::map<std::string, std::vector<std::optional<double>>, std::less<>> doubles;
  std::map<std::string, std::vector<std::optional<std::int64_t>>, std::less<>> integers;
  for (const auto& [name, kind] : kinds) {
    if (kind == Kind::kDouble) {
      doubles[name].resize(rows);
    } else {
      integers[name].resize(rows);
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const StoredReport& report = reports[i];
    seq[i] = static_cast<std::int64_t>(report.seq);
    time[i] = report.time;
    run[i] = static_cast<std::int64_t>(report.run);
    steps[i] = StepsOf(report.body);
    if (!IsUsual(report.body, group)) {
      rest[i] = EncodeJson(Value::Object{{std::string(kWhole), report.body}});
      continue;
    }
    Value::Object other;
    Value::Object metrics;
    for (const auto& [name, value] : *report.body.if_object()) {
      if (name == "sequence") {
        sequence[i] = *value.if_int64();
      } else if (name == "metrics") {
        for (const auto& [metric, number] : *value.if_object()) {
          if (const auto column = doubles.find(metric); column != doubles.end()) {
            column->second[i] = NumberFrom(number).AsDouble();
          } else if (const auto whole = integers.find(metric); whole != integers.end()) {
            whole->second[i] = *number.if_int64();
          } else {
            metrics[metric] = number;
          }
        }
      } else if (name != "group" && name != "steps_completed") {
        other[name] = value;
      }
    }
    Value::Object members;
    if (!other.empty()) members[std::string(kBody)] = std::move(other);
    if (!metrics.empty()) members[std::string(kMetrics)] = std::move(metrics);
    if (!members.empty()) rest[i] = EncodeJson(std::move(members));
  }
  PackedWriter writer(static_cast<std::uint32_t>(rows));
  writer.Numbers(kSeq, seq);
  writer.Numbers(kTime, time);
  writer.Numbers(kRun, run);
  writer.Numbers(kSequence, sequence);
  writer.Numbers(kSteps, steps);
  writer.Texts(kRest, rest);
  for (const auto& [name, values] : doubles) writer.Doubles("." + name, values);
  for (const auto& [name, values] : integers) writer.Integers("." + name, values);
  return std::move(writer).Finish();
}

Result<ReportBlock> ReportBlock::Decode(std::string bytes, std::string group) {
  ReportBlock block;
  ASSIGN_OR_RETURN(block.packed_, PackedReader::Open(std::move(bytes)));
  ASSIGN_OR_RETURN(block.seq_, block.packed_->Numbers(kSeq));
  ASSIGN_OR_RETURN(block.time_, block.packed_->Numbers(kTime));
  ASSIGN_OR_RETURN(block.run_, block.packed_->Numbers(kRun));
  ASSIGN_OR_RETURN(block.steps_, block.packed_->Numbers(kSteps));
  block.group_ = std::move(group);
  return block;
}

Status ReportBlock::UnpackRest() {
  if (rest_unpacked_) return Status::Ok();
  ASSIGN_OR_RETURN(const auto texts, packed_->Texts(kRest));
  rest_.resize(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    ASSIGN_OR_RETURN(rest_[i], DecodeJson(texts[i]));
    if (!rest_[i].is_object()) return CorruptionError("report block: the rest is no object");
  }
  rest_unpacked_ = true;
  return Status::Ok();
}

Status ReportBlock::UnpackAll() {
  if (all_unpacked_) return Status::Ok();
  RETURN_IF_ERROR(UnpackRest());
  ASSIGN_OR_RETURN(sequence_, packed_->Numbers(kSequence));
  doubles_.clear();
  integers_.clear();
  for (const PackedReader::Column& column : packed_->columns()) {
    if (!column.name.starts_with('.')) continue;
    if (column.type == PackedType::kDoubles) {
      ASSIGN_OR_RETURN(auto values, packed_->Doubles(column));
      doubles_.push_back({column.name.substr(1), std::move(values)});
    } else if (column.type == PackedType::kIntegers) {
      ASSIGN_OR_RETURN(auto values, packed_->Integers(column));
      integers_.push_back({column.name.substr(1), std::move(values)});
    }
  }
  all_unpacked_ = true;
  return Status::Ok();
}

Result<std::vector<std::optional<double>>> ReportBlock::Metric(const std::string& name) {
  std::vector<std::optional<double>> values(size());
  if (const PackedReader::Column* column = packed_->Find("." + name); column != nullptr) {
    if (column->type == PackedType::kDoubles) {
      ASSIGN_OR_RETURN(values, packed_->Doubles(*column));
    } else if (column->type == PackedType::kIntegers) {
      ASSIGN_OR_RETURN(const auto integers, packed_->Integers(*column));
      for (std::size_t i = 0; i < integers.size(); ++i) {
        if (integers[i]) values[i] = static_cast<double>(*integers[i]);
      }
    } else {
      return CorruptionError("report block: a metric of another type");
    }
  }
  RETURN_IF_ERROR(UnpackRest());
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    if (values[i] || rest_[i].is_null()) continue;
    const Value* whole = rest_[i].Find(kWhole);
    const Value* metrics = whole != nullptr ? whole->Find("metrics") : rest_[i].Find(kMetrics);
    if (metrics != nullptr) values[i] = MetricOf(*metrics, name);
  }
  return values;
}

Result<std::vector<std::string>> ReportBlock::Names() {
  std::vector<std::string> names;
  for (const PackedReader::Column& column : packed_->columns()) {
    if (column.name.starts_with('.')) names.push_back(column.name.substr(1));
  }
  RETURN_IF_ERROR(UnpackRest());
  for (const Value& rest : rest_) {
    if (rest.is_null()) continue;
    const Value* whole = rest.Find(kWhole);
    const Value* metrics = whole != nullptr ? whole->Find("metrics") : rest.Find(kMetrics);
    if (metrics != nullptr) AppendMetricNames(*metrics, kMaxPackedColumns, &names);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<Value> ReportBlock::Body(std::size_t row) {
  RETURN_IF_ERROR(UnpackAll());
  if (row >= size()) return InvalidArgumentError("report block: no such row");
  const Value& rest = rest_[row];
  if (!rest.is_null()) {
    if (const auto whole = rest.if_object()->find(kWhole); whole != rest.if_object()->end()) {
      return whole->second;
    }
  }
  Value::Object metrics;
  for (const DoubleColumn& column : doubles_) {
    if (column.values[row]) metrics[column.name] = Written(*column.values[row]);
  }
  for (const IntegerColumn& column : integers_) {
    if (column.values[row]) metrics[column.name] = *column.values[row];
  }
  Value::Object body;
  if (!rest.is_null()) {
    for (const auto& [name, part] : *rest.if_object()) {
      if (!part.is_object()) return CorruptionError("report block: the rest is no object");
      for (const auto& [key, value] : *part.if_object()) {
        (name == kMetrics ? metrics : body)[key] = value;
      }
    }
  }
  body["sequence"] = sequence_[row];
  body["group"] = group_;
  body["steps_completed"] = steps_[row];
  body["metrics"] = std::move(metrics);
  return Value(std::move(body));
}

}  // namespace cairn

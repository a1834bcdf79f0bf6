#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/value.h>

/// Results of trials as the files for people have them (docs/format/tune.md, "Files for people").
/// python/cairn/tune/logger.py writes the same files from a Python tuner.
namespace cairn::tune {

inline constexpr char kResultsName[] = "result.json";
inline constexpr char kProgressName[] = "progress.csv";
inline constexpr char kParamsName[] = "params.json";
inline constexpr char kErrorName[] = "error.txt";
inline constexpr char kTensorboardName[] = "events.out.tfevents.cairn";

/// A report with the keys that follow from where it came from: done, trial_id, experiment_tag,
/// date, config (if it has none of its own).
Value FillResult(const Value& report, const std::string& trial, const Value& config);

/// When it was made, in this machine's time: 2026-11-18_20-15-06.
std::string DateOf(std::int64_t stamp);
/// Whether the numbers of a member, by the first part of its name, are curves.
bool IsPlotted(std::string_view first);

/// One line, with NaN and infinities as the words that Python and JavaScript have for them.
std::string ResultLine(const Value& filled);
/// The same over several lines, for params.json.
std::string ParamsText(const Value& config);

/// Members of nested objects with their names joined by "/", in their order.
using FlatResult = std::vector<std::pair<std::string, Value>>;
FlatResult Flatten(const Value& filled);

/// One line of progress.csv: what a result has in these columns, and nothing where it has nothing.
std::string CsvRow(const std::vector<std::string>& columns, const FlatResult& row);
std::string CsvHeader(const std::vector<std::string>& columns);

/// A TensorBoard record with the numbers of a result.
std::string TensorboardRecord(const Value& filled, const FlatResult& row);

}  // namespace cairn::tune

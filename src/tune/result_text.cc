#include "tune/result_text.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "format/json.h"
#include "tune/tensorboard_events.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

/// Not curves: where and when a result was made.
constexpr std::array<std::string_view, 8> kNotPlotted = {
    "config", "trial_id", "timestamp", "date", "pid", "hostname", "node_ip", "training_iteration"};

const char* WordOf(double number, const char* nan, const char* infinity, const char* negative) {
  if (std::isnan(number)) return nan;
  return number > 0 ? infinity : negative;
}

bool IsNonFinite(const Value& value) {
  const double* number = value.if_double();
  return number != nullptr && !std::isfinite(*number);
}

void AppendText(const Value& value, std::string* out) {
  if (const Value::Object* object = value.if_object()) {
    const char* separator = "{";
    for (const auto& [name, member] : *object) {
      *out += separator;
      AppendJsonString(name, out);
      *out += ": ";
      AppendText(member, out);
      separator = ", ";
    }
    *out += object->empty() ? "{}" : "}";
  } else if (const Value::List* list = value.if_list()) {
    const char* separator = "[";
    for (const Value& item : *list) {
      *out += separator;
      AppendText(item, out);
      separator = ", ";
    }
    *out += list->empty() ? "[]" : "]";
  } else if (IsNonFinite(value)) {
    *out += WordOf(*value.if_double(), "NaN", "Infinity", "-Infinity");
  } else {
    AppendJson(value, out);
  }
}

void FlattenInto(const Value::Object& object, const std::string& prefix, FlatResult* out) {
  for (const auto& [name, value] : object) {
    const Value::Object* nested = value.if_object();
    if (nested != nullptr && !nested->empty()) {
      FlattenInto(*nested, prefix + name + "/", out);
    } else {
      out->emplace_back(prefix + name, value);
    }
  }
}

std::string CellText(const Value& value) {
  if (value.is_null()) return "";
  if (const std::string* text = value.if_string()) return *text;
  if (const bool* truth = value.if_bool()) return *truth ? "True" : "False";
  if (IsNonFinite(value)) return WordOf(*value.if_double(), "nan", "inf", "-inf");
  std::string text;
  AppendText(value, &text);
  return text;
}

void AppendCell(const std::string& text, std::string* out) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    *out += text;
    return;
  }
  out->push_back('"');
  for (const char c : text) {
    if (c == '"') out->push_back('"');
    out->push_back(c);
  }
  out->push_back('"');
}

std::string Row(const std::vector<std::string>& cells) {
  std::string out;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendCell(cells[i], &out);
  }
  // An empty line would be no row at all.
  if (cells.size() == 1 && out.empty()) out = "\"\"";
  out.push_back('\n');
  return out;
}

}  // namespace

std::string DateOf(std::int64_t stamp) {
  const auto seconds = static_cast<time_t>(stamp);
  tm local{};
  localtime_r(&seconds, &local);
  char text[32] = {};
  strftime(text, sizeof text, "%Y-%m-%d_%H-%M-%S", &local);
  return text;
}

bool IsPlotted(std::string_view first) {
  return std::ranges::find(kNotPlotted, first) == kNotPlotted.end();
}

Value FillResult(const Value& report, const std::string& trial, const Value& config) {
  Value::Object filled = report.is_object() ? *report.if_object() : Value::Object{};
  filled.try_emplace("done", false);
  filled["trial_id"] = trial;
  filled["experiment_tag"] = trial;
  if (const auto stamp = filled.find("timestamp");
      stamp != filled.end() && stamp->second.is_number()) {
    filled["date"] = DateOf(static_cast<std::int64_t>(stamp->second.AsDouble()));
  }
  filled.try_emplace("config", config);
  return filled;
}

std::string ResultLine(const Value& filled) {
  std::string line;
  AppendText(filled, &line);
  line.push_back('\n');
  return line;
}

std::string ParamsText(const Value& config) {
  const Value::Object* members = config.if_object();
  if (members == nullptr || members->empty()) return "{}\n";
  std::string text = "{";
  const char* separator = "\n  ";
  for (const auto& [name, value] : *members) {
    text += separator;
    AppendJsonString(name, &text);
    text += ": ";
    AppendText(value, &text);
    separator = ",\n  ";
  }
  return text + "\n}\n";
}

FlatResult Flatten(const Value& filled) {
  FlatResult out;
  if (const Value::Object* object = filled.if_object()) FlattenInto(*object, "", &out);
  return out;
}

std::string CsvHeader(const std::vector<std::string>& columns) { return Row(columns); }

std::string CsvRow(const std::vector<std::string>& columns, const FlatResult& row) {
  std::map<std::string_view, const Value*> by_name;
  for (const auto& [name, value] : row) by_name.emplace(name, &value);
  std::vector<std::string> cells;
  cells.reserve(columns.size());
  for (const std::string& column : columns) {
    const auto found = by_name.find(column);
    cells.push_back(found == by_name.end() ? "" : CellText(*found->second));
  }
  return Row(cells);
}

std::string TensorboardRecord(const Value& filled, const FlatResult& row) {
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : row) {
    const std::string_view first = std::string_view(name).substr(0, name.find('/'));
    if (!value.is_number() || !IsPlotted(first)) continue;
    scalars.emplace_back(name, value.AsDouble());
  }
  const Value* stamp = filled.Find("timestamp");
  return TensorboardScalars(stamp == nullptr ? 0 : stamp->AsDouble(),
                            IntOf(filled, "training_iteration"), scalars);
}

}  // namespace cairn::tune

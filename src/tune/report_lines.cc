#include "tune/report_lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "tune/result_text.h"
#include "tune/tensorboard_events.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

/// Made by FillResult: a report that has one of these itself is filled otherwise.
constexpr std::array<std::string_view, 4> kFilledIn = {"trial_id", "date", "experiment_tag",
                                                       "config"};

std::string_view FirstPart(std::string_view name) { return name.substr(0, name.find('/')); }

/// A text that every one of the files has as it is, whatever its rules for quotes are.
bool IsPlain(std::string_view text) {
  return !text.starts_with(' ') && std::ranges::all_of(text, [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != ',';
  });
}

void AppendInteger(auto number, std::string* out) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  out->append(buffer.data(), end);
}

void AppendFloat(double number, const std::array<const char*, 3>& words, std::string* out) {
  if (std::isnan(number)) {
    *out += words[0];
  } else if (std::isinf(number)) {
    *out += words[number > 0 ? 1 : 2];
  } else {
    AppendPythonFloat(number, out);
  }
}

}  // namespace

void AppendPythonFloat(double number, std::string* out) {
  // The shortest digits that read back as the number: d.ddde±xx.
  std::array<char, 32> buffer;
  const char* const end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                        std::chars_format::scientific)
                              .ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  if (text.starts_with('-')) {
    *out += '-';
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  int exponent = 0;
  const bool negative = text[mark + 1] == '-';
  std::from_chars(text.data() + mark + 2, text.data() + text.size(), exponent);
  if (negative) exponent = -exponent;
  if (exponent < -4 || exponent >= 16) {
    *out += text;  // C and Python agree on at least two digits of the exponent
    return;
  }
  std::string digits(1, text.front());
  if (mark > 2) digits += text.substr(2, mark - 2);
  if (exponent < 0) {
    *out += "0.";
    out->append(static_cast<std::size_t>(-exponent - 1), '0');
    *out += digits;
    return;
  }
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    *out += digits;
    out->append(whole - digits.size(), '0');
    *out += ".0";
    return;
  }
  *out += std::string_view(digits).substr(0, whole);
  *out += '.';
  *out += std::string_view(digits).substr(whole);
}

ReportLines::ReportLines(Frame frame) : frame_(std::move(frame)) {
  const auto& columns = frame_.columns;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(columns, name) != columns.end();
  };
  usable_ = has("done") && has("timestamp") && has("training_iteration");
  for (const std::string& name : columns) {
    const std::string_view first = FirstPart(name);
    usable_ = usable_ && IsPlain(name) && std::ranges::find(kFilledIn, first) == kFilledIn.end();
    plotted_.push_back(IsPlotted(first));
  }
}

bool ReportLines::Add(const Value& report) {
  const Value::Object* const members = report.if_object();
  const Value* const stamp = report.Find("timestamp");
  if (!usable_ || members == nullptr || stamp == nullptr || stamp->if_int64() == nullptr) {
    return false;
  }
  const std::size_t json = texts_.json.size();
  const std::size_t csv = texts_.csv.size();
  column_ = 0;
  numbers_.clear();
  if (!AddMembers(*members, "") || column_ != frame_.columns.size()) {
    texts_.json.resize(json);
    texts_.csv.resize(csv);
    return false;
  }
  texts_.json.pop_back();  // the brace: what follows belongs to the same object
  AddDate(*stamp->if_int64());
  std::vector<std::pair<std::string, double>> scalars;
  scalars.reserve(numbers_.size());
  for (const Number& one : numbers_) scalars.emplace_back(frame_.columns[one.column], one.value);
  texts_.events += TensorboardScalars(static_cast<double>(*stamp->if_int64()),
                                      IntOf(report, "training_iteration"), scalars);
  return true;
}

bool ReportLines::AddMembers(const Value::Object& members, const std::string& prefix) {
  const char* separator = "{";
  for (const auto& [name, value] : members) {
    texts_.json += separator;
    separator = ", ";
    texts_.json += '"';
    texts_.json += name;
    texts_.json += "\": ";
    const Value::Object* const nested = value.if_object();
    if (nested != nullptr) {
      // An empty one is a cell of its own, and a slash within a name says nothing of what is
      // within what.
      if (nested->empty() || name.find('/') != std::string::npos) return false;
      if (!AddMembers(*nested, prefix + name + "/")) return false;
    } else if (!AddMember(prefix.empty() ? name : prefix + name, value)) {
      return false;
    }
  }
  texts_.json += '}';
  return true;
}

bool ReportLines::AddMember(const std::string& name, const Value& value) {
  if (column_ >= frame_.columns.size() || frame_.columns[column_] != name) return false;
  std::string& json = texts_.json;
  std::string& csv = texts_.csv;
  if (column_ > 0) csv += ',';
  if (const double* number = value.if_double()) {
    AppendFloat(*number, {"NaN", "Infinity", "-Infinity"}, &json);
    AppendFloat(*number, {"nan", "inf", "-inf"}, &csv);
  } else if (const bool* truth = value.if_bool()) {
    json += *truth ? "true" : "false";
    csv += *truth ? "True" : "False";
  } else if (const std::string* text = value.if_string()) {
    if (!IsPlain(*text)) return false;
    json += '"';
    json += *text;
    json += '"';
    csv += *text;
  } else if (value.is_null()) {
    json += "null";
  } else if (const std::int64_t* integer = value.if_int64()) {
    const std::size_t begin = json.size();
    AppendInteger(*integer, &json);
    csv.append(json, begin);
  } else {
    return false;  // a list; an integer beyond 64 bits with a sign
  }
  if (plotted_[column_] && value.is_number()) numbers_.push_back({column_, value.AsDouble()});
  ++column_;
  return true;
}

void ReportLines::AddDate(std::int64_t stamp) {
  if (dated_ != stamp) {
    dated_ = stamp;
    date_ = DateOf(stamp);
  }
  const auto put = [&](const std::string(&around)[2], std::string* text) {
    *text += around[0];
    *text += date_;
    *text += around[1];
  };
  put(frame_.json, &texts_.json);
  put(frame_.csv, &texts_.csv);
}

ReportLines::Texts ReportLines::Take() { return std::exchange(texts_, {}); }

}  // namespace cairn::tune

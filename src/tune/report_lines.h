#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/value.h>

namespace cairn::tune {

/// What the reports of one trial add to result.json, progress.csv and TensorBoard's events, as long
/// as they look alike: byte for byte what the loggers of the Python package write. Reports that
/// have other members, or texts and lists that need care, are refused and change nothing: those are
/// for the loggers themselves.
///
/// Of one thread.
class ReportLines {
 public:
  /// What stands around a report; between the two parts of each the date is put in.
  struct Frame {
    std::vector<std::string> columns;  // of a report's own members, as progress.csv has them
    std::string json[2];
    std::string csv[2];
  };
  explicit ReportLines(Frame frame);

  bool Add(const Value& report);

  struct Texts {
    std::string json;
    std::string csv;
    std::string events;
  };
  /// What has been added since the last call.
  Texts Take();
  bool empty() const { return texts_.json.empty(); }

 private:
  struct Number {
    std::size_t column = 0;
    double value = 0;
  };

  bool AddMembers(const Value::Object& members, const std::string& prefix);
  bool AddMember(const std::string& name, const Value& value);
  void AddDate(std::int64_t stamp);

  const Frame frame_;
  std::vector<bool> plotted_;  // of each column: whether its numbers are curves
  bool usable_ = false;
  Texts texts_;
  std::size_t column_ = 0;       // of the report that is being added
  std::vector<Number> numbers_;  // … and its curves
  std::int64_t dated_ = -1;
  std::string date_;  // of `dated_`
};

/// As Python's repr() has it.
void AppendPythonFloat(double number, std::string* out);

}  // namespace cairn::tune

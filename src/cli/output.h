#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/value.h>

namespace cairn::cli {

/// "1.25 GiB", "512 B".
std::string HumanBytes(std::uint64_t bytes);
/// "1.8 GiB/s".
std::string HumanRate(double bytes_per_second);
/// "5 min", "3 d": how long ago, of nanoseconds.
std::string HumanAge(std::int64_t nanos);
/// "1 file", "3 files".
std::string Counted(std::uint64_t count, std::string_view singular);
/// "2026-11-03 14:05:09 UTC" of nanoseconds since 1970.
std::string UtcTime(std::int64_t nanos);
/// "loss=0.25 accuracy=0.91", cut after a few; nested ones as "a/b".
std::string MetricsText(const Value& metrics, std::size_t most);
/// The first eight digits of an id: what a command takes for it.
std::string ShortId(std::string_view id);

/// Text that is safe on a terminal: control characters and bytes that are no UTF-8 are escaped.
/// Names in files are anybody's.
std::string Printable(std::string_view text);
/// The same of a message of several lines: those after the first are indented, so that none of them
/// can pass for a message of its own.
std::string PrintableLines(std::string_view text);

/// Columns for people. Cells must be printable.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  /// With a line of titles. Columns that are empty in every row are left out.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// The stable JSON form of a checkpoint.
Value::Object InfoJson(const CheckpointInfo& info);

}  // namespace cairn::cli

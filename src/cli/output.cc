#include "cli/output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "format/json.h"

namespace cairn::cli {
namespace {

std::size_t Width(std::string_view text) {
  // Code points, which is right for all but wide and combining characters.
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string Scaled(double value, std::string_view suffix) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, digits, kUnits[unit], suffix);
}

void AddMetrics(const std::string& prefix, const Value& value, std::vector<std::string>* out) {
  if (const auto* object = value.if_object()) {
    for (const auto& [key, member] : *object) {
      AddMetrics(prefix.empty() ? key : prefix + "/" + key, member, out);
    }
    return;
  }
  std::string text;
  if (const double* number = value.if_double()) {
    text = fmt::format("{:.4g}", *number);
  } else if (const std::string* string = value.if_string()) {
    text = *string;
  } else {
    text = EncodeJson(value);
  }
  out->push_back(prefix + "=" + text);
}

}  // namespace

std::string HumanBytes(std::uint64_t bytes) { return Scaled(static_cast<double>(bytes), ""); }
std::string HumanRate(double bytes_per_second) { return Scaled(bytes_per_second, "/s"); }

std::string HumanAge(std::int64_t nanos) {
  const std::int64_t seconds = nanos / 1'000'000'000;
  if (seconds < 0) return "in the future";
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

std::string Counted(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

std::string UtcTime(std::int64_t nanos) {
  const std::time_t seconds = nanos / 1'000'000'000;
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "unknown";
  char text[64];
  const std::size_t n = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return std::string(text, n);
}

std::string MetricsText(const Value& metrics, std::size_t most) {
  std::vector<std::string> parts;
  AddMetrics("", metrics, &parts);
  if (metrics.is_object() && metrics.if_object()->empty()) return "";
  std::string text;
  for (std::size_t i = 0; i < parts.size() && i < most; ++i) {
    text += (i == 0 ? "" : " ") + parts[i];
  }
  if (parts.size() > most) text += fmt::format(" (+{})", parts.size() - most);
  return Printable(text);
}

std::string ShortId(std::string_view id) { return std::string(id.substr(0, 8)); }

std::string Printable(std::string_view text) {
  std::string out;
  const bool utf8 = IsValidUtf8(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 =
        utf8 && c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f || (!utf8 && c >= 0x80)) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c1) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string PrintableLines(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t end = text.find('\n');
    out += Printable(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
    out += text.starts_with("  ") ? "\n" : "\n  ";
  }
}

std::string TextTable::Render() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] == 0) continue;
      const std::size_t width = std::max(widths[i], Width(columns_[i].title));
      const std::string cell = i < cells.size() ? cells[i] : "";
      const std::string padding(width - std::min(width, Width(cell)), ' ');
      if (!text.empty()) text += "  ";
      text += columns_[i].align == Align::kRight ? padding + cell : cell + padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  line(titles);
  for (const auto& row : rows_) line(row);
  return out;
}

Value::Object InfoJson(const CheckpointInfo& info) {
  Value::List tables;
  for (const TableFacts& table : info.tables) {
    tables.emplace_back(Value::Object{{"name", table.name},
                                      {"dim", table.dim},
                                      {"dtype", std::string(DTypeName(table.dtype))},
                                      {"rows", table.rows},
                                      {"deleted", table.deleted}});
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Value() : Value(text); };
  return {{"id", info.id},
          {"step", info.step},
          {"kind", info.kind},
          {"path", info.path},
          {"bytes", info.bytes},
          {"metrics", info.metrics},
          {"metadata", info.metadata},
          {"counters", info.counters},
          {"time", info.time},
          {"parent", or_null(info.parent)},
          {"base", or_null(info.base)},
          {"chain", or_null(info.chain)},
          {"tables", std::move(tables)},
          {"generation", info.generation},
          {"sequence", info.sequence},
          {"pinned", info.pinned},
          {"foreign", info.foreign}};
}

}  // namespace cairn::cli

#include "launch/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

namespace cairn {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::size_t kStampSize = 30;  // 2026-11-16T09:04:11.123456789Z

std::string Stamp(std::int64_t nanos) {
  const std::int64_t seconds = nanos / kSecond;
  const auto days = std::chrono::floor<std::chrono::days>(
      std::chrono::sys_seconds(std::chrono::seconds(seconds)));
  const std::chrono::year_month_day date(days);
  const std::int64_t of_day = seconds - days.time_since_epoch().count() * 86'400;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     of_day / 3'600, of_day / 60 % 60, of_day % 60, nanos % kSecond);
}

/// Decimal digits and nothing else.
bool ReadNumber(std::string_view text, std::int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<std::int64_t> ReadStamp(std::string_view text) {
  if (text.size() != kStampSize) return std::nullopt;
  constexpr std::string_view kShape = "0000-00-00T00:00:00.000000000Z";
  for (std::size_t i = 0; i < kStampSize; ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == '0' ? !digit : text[i] != kShape[i]) return std::nullopt;
  }
  std::array<std::int64_t, 7> part{};
  constexpr std::array<std::pair<std::size_t, std::size_t>, 7> kParts = {
      {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}, {20, 9}}};
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    if (!ReadNumber(text.substr(kParts[i].first, kParts[i].second), &part[i])) return std::nullopt;
  }
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(part[0])),
                                         std::chrono::month(static_cast<unsigned>(part[1])),
                                         std::chrono::day(static_cast<unsigned>(part[2])));
  // Nanoseconds of 64 bits end in 2262.
  if (!date.ok() || part[0] < 1970 || part[0] > 2261) return std::nullopt;
  if (part[3] > 23 || part[4] > 59 || part[5] > 59) return std::nullopt;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (days * 86'400 + part[3] * 3'600 + part[4] * 60 + part[5]) * kSecond + part[6];
}

/// Takes the text up to the next blank off the front.
std::string_view TakeWord(std::string_view* text) {
  const std::size_t blank = text->find(' ');
  const std::string_view word = text->substr(0, blank);
  text->remove_prefix(blank == std::string_view::npos ? text->size() : blank + 1);
  return word;
}

bool ReadLine(std::string_view text, LaunchLogLine* line) {
  const std::optional<std::int64_t> time = ReadStamp(TakeWord(&text));
  std::int64_t rank = 0;
  if (!time.has_value() || !ReadNumber(TakeWord(&text), &rank)) return false;
  if (rank < -1 || rank > kMaxLaunchProcesses) return false;
  const std::string_view stream = TakeWord(&text);
  if (stream != "out" && stream != "err") return false;
  const std::string_view level = TakeWord(&text);
  if (level != "D" && level != "I" && level != "W" && level != "E") return false;
  if (text.size() < 2 || (text[0] != '.' && text[0] != '+') || text[1] != ' ') return false;
  line->time = *time;
  line->rank = static_cast<int>(rank);
  line->from_stderr = stream == "err";
  line->level = static_cast<LineLevel>(level[0]);
  line->unfinished = text[0] == '+';
  line->text = text.substr(2);
  return true;
}

bool IsLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }

std::optional<LineLevel> LevelOfWord(std::string_view word) {
  constexpr std::array<std::pair<std::string_view, LineLevel>, 8> kWords = {{
      {"ERROR", LineLevel::kError},
      {"CRITICAL", LineLevel::kError},
      {"FATAL", LineLevel::kError},
      {"WARNING", LineLevel::kWarning},
      {"WARN", LineLevel::kWarning},
      {"INFO", LineLevel::kInfo},
      {"DEBUG", LineLevel::kDebug},
      {"TRACE", LineLevel::kDebug},
  }};
  for (const auto& [known, level] : kWords) {
    if (word == known) return level;
  }
  return std::nullopt;
}

/// I1116 09:04:11 …
std::optional<LineLevel> LevelOfGlog(std::string_view text) {
  if (text.size() < 6 || text[5] != ' ') return std::nullopt;
  if (!std::all_of(text.begin() + 1, text.begin() + 5, [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  switch (text[0]) {
    case 'I':
      return LineLevel::kInfo;
    case 'W':
      return LineLevel::kWarning;
    case 'E':
    case 'F':
      return LineLevel::kError;
    default:
      return std::nullopt;
  }
}

}  // namespace

void AppendLogLine(const LaunchLogLine& line, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{} {} {} {} {} ", Stamp(line.time), line.rank,
                 line.from_stderr ? "err" : "out", static_cast<char>(line.level),
                 line.unfinished ? '+' : '.');
  *out += line.text;
  *out += '\n';
}

LaunchLogLine ParseLogLine(std::string_view text) {
  LaunchLogLine line;
  if (ReadLine(text, &line)) return line;
  line = {};
  line.rank = -1;
  line.text = text;
  return line;
}

LineLevel GuessLevel(std::string_view text) {
  if (const auto level = LevelOfGlog(text)) return *level;
  if (text.starts_with("Traceback (most recent call last)")) return LineLevel::kError;
  const std::string_view head = text.substr(0, 80);
  bool first = true;
  for (std::size_t at = 0; at < head.size(); first = false) {
    std::size_t end = at;
    while (end < head.size() && (IsLetter(head[end]) || head[end] == '.')) ++end;
    const std::string_view word = head.substr(at, end - at);
    if (const auto level = LevelOfWord(word)) return *level;
    // "ValueError: …", the last line of a traceback.
    const bool names_error = word.ends_with("Error") || word.ends_with("Exception");
    if (first && names_error && end < head.size() && head[end] == ':') return LineLevel::kError;
    at = end + 1;
  }
  return LineLevel::kInfo;
}

void LineCutter::Feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    const std::size_t room = kMaxLogText - rest_.size();
    if (piece.size() > room) {  // no end of line in sight: give out what is there
      rest_ += piece.substr(0, room);
      sink(rest_, true);
      rest_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    rest_ += piece;
    if (newline == std::string_view::npos) return;
    sink(rest_, false);
    rest_.clear();
    bytes.remove_prefix(newline + 1);
  }
}

void LineCutter::Finish(const Sink& sink) {
  if (!rest_.empty()) sink(rest_, true);
  rest_.clear();
}

std::string_view LevelName(LineLevel level) {
  switch (level) {
    case LineLevel::kDebug:
      return "DEBUG";
    case LineLevel::kWarning:
      return "WARNING";
    case LineLevel::kError:
      return "ERROR";
    default:
      return "INFO";
  }
}

}  // namespace cairn

#include "master/config_problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

namespace cairn::master {
namespace {

constexpr std::string_view kLine = "line ";

/// "line 3: why" as its two halves.
ConfigProblem Parse(std::string_view text) {
  ConfigProblem problem{.message = std::string(text)};
  if (!text.starts_with(kLine)) return problem;
  int line = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + kLine.size(), last, line);
  const std::string_view rest(end, static_cast<std::size_t>(last - end));
  if (error != std::errc() || !rest.starts_with(": ")) return problem;
  return {.line = line, .message = std::string(rest.substr(2))};
}

}  // namespace

std::vector<ConfigProblem> ProblemsIn(const Status& status) {
  std::vector<ConfigProblem> problems;
  std::string_view text = status.message();
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    problems.push_back(Parse(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return problems;
}

void ConfigProblems::Add(std::string problem) {
  std::ranges::replace(problem, '\n', ' ');
  problems_.push_back(Parse(problem));
}

void ConfigProblems::Add(const Status& status) {
  if (status.ok()) return;
  for (ConfigProblem& problem : ProblemsIn(status)) problems_.push_back(std::move(problem));
}

Status ConfigProblems::ToStatus() const {
  if (problems_.empty()) return Status::Ok();
  std::vector<ConfigProblem> sorted = problems_;
  std::ranges::stable_sort(sorted, {}, [](const ConfigProblem& problem) {
    return problem.line > 0 ? problem.line : std::numeric_limits<int>::max();
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(sorted.size(), kMost); ++i) {
    if (i > 0) text += '\n';
    if (sorted[i].line > 0) text += fmt::format("{}{}: ", kLine, sorted[i].line);
    text += sorted[i].message;
  }
  if (sorted.size() > kMost) text += fmt::format("\nand {} more", sorted.size() - kMost);
  return InvalidArgumentError(std::move(text));
}

}  // namespace cairn::master

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <cairn/status.h>

namespace cairn::master {

/// One mistake in a configuration.
struct ConfigProblem {
  int line = 0;  // from 1; 0: it has no place
  std::string message;
};

/// The mistakes of a configuration, so that all of them are told at once. As a status they are
/// InvalidArgument with one mistake ("line 3: …") on each line of its message. A value.
class ConfigProblems {
 public:
  /// More than these nobody reads; the rest is counted.
  static constexpr std::size_t kMost = 50;

  void Add(std::string problem);
  /// All that a status of this kind tells; nothing for OK.
  void Add(const Status& status);
  bool empty() const { return problems_.empty(); }
  /// In the order of the file; those without a place last.
  Status ToStatus() const;

 private:
  std::vector<ConfigProblem> problems_;
};

/// The mistakes that a status of ConfigProblems tells.
std::vector<ConfigProblem> ProblemsIn(const Status& status);

}  // namespace cairn::master

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace cairn::crash {

/// A long random suite: rounds with ever new seeds for as long as CAIRN_TORTURE_SECONDS says; seeds
/// used and counts made are added up in CAIRN_TORTURE_STATE. Without these a suite makes
/// `test_rounds` rounds, from the first seed on. For one thread.
class Torture {
 public:
  /// `suite` keeps the counts of several suites in one state apart.
  Torture(std::string suite, int test_rounds);

  static bool Asked();

  /// Calls `round(seed)` until the time is over or it says false; then writes the state and prints
  /// a line with the counts.
  void Run(const std::function<bool(std::uint64_t seed)>& round);
  void Count(const std::string& what, std::uint64_t count) { counts_[what] += count; }

 private:
  void Load();
  void Save() const;

  const std::string suite_;
  const int test_rounds_;
  std::uint64_t next_seed_ = 1;
  std::map<std::string, std::uint64_t> counts_;  // of this run
  std::map<std::string, std::uint64_t> before_;  // of all runs before it, of all suites
};

}  // namespace cairn::crash

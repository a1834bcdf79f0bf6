#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::tune {

/// The trials that a scheduler was told of, in the order they were added, and whether each of them
/// waits, runs or has ended, as far as the scheduler's own answers say.
class Roster {
 public:
  enum class State : std::uint8_t { kWaiting, kRunning, kEnded };

  /// AlreadyExists for one that is there.
  Status Add(const std::string& trial);
  bool Has(const std::string& trial) const { return states_.contains(trial); }
  /// NotFound, naming the trial, for one that was never added.
  Status Check(const std::string& trial) const;
  /// kEnded for one that was never added.
  State StateOf(const std::string& trial) const;
  void Set(const std::string& trial, State state);

  const std::vector<std::string>& order() const { return order_; }
  std::size_t waiting() const { return waiting_; }

  Value Save() const;
  Status Load(const Value& state);

 private:
  std::vector<std::string> order_;
  std::map<std::string, State, std::less<>> states_;
  std::size_t waiting_ = 0;
};

}  // namespace cairn::tune

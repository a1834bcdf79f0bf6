#pragma once

#include <chrono>
#include <string>

#include <cairn/status.h>

#include "launch/process_identity.h"

namespace cairn::tune {

/// A directory of this life alone, for workers that end with it; removed with what is in it. One
/// that was killed leaves its directory behind: the next life on this machine removes it.
class LaunchesOfThisLife {
 public:
  LaunchesOfThisLife() = default;
  ~LaunchesOfThisLife();
  LaunchesOfThisLife(const LaunchesOfThisLife&) = delete;
  LaunchesOfThisLife& operator=(const LaunchesOfThisLife&) = delete;

  /// In `parent`; empty: where temporary files are. A directory in which nothing changed for
  /// `unlocked_for` and that no living process holds is another life's that ended: between making
  /// it and holding it there is a moment.
  Status Make(const std::string& parent = "",
              std::chrono::seconds unlocked_for = std::chrono::minutes(1));
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  OwnedFd held_;
};

}  // namespace cairn::tune

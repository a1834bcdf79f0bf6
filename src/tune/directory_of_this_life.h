#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <cairn/status.h>

#include "launch/process_identity.h"

namespace cairn::tune {

/// A directory of this life alone, for what ends with it: the records of its workers, its socket.
/// It is removed with what is in it. One that was killed leaves its directory behind: the next life
/// on this machine removes it.
class DirectoryOfThisLife {
 public:
  /// The directory is called so, with something added. Lives know each other's by it.
  explicit DirectoryOfThisLife(std::string prefix) : prefix_(std::move(prefix)) {}
  ~DirectoryOfThisLife();
  DirectoryOfThisLife(const DirectoryOfThisLife&) = delete;
  DirectoryOfThisLife& operator=(const DirectoryOfThisLife&) = delete;

  /// In `parent`; empty: where temporary files are. A directory in which nothing changed for
  /// `unlocked_for` and that no living process holds is another life's that ended: between making
  /// it and holding it there is a moment.
  Status Make(const std::string& parent = "",
              std::chrono::seconds unlocked_for = std::chrono::minutes(1));
  /// Removes it now.
  void Remove();
  const std::string& path() const { return path_; }

 private:
  const std::string prefix_;
  std::string path_;
  OwnedFd held_;
};

}  // namespace cairn::tune

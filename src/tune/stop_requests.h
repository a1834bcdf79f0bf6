#pragma once

#include <cstdint>

namespace cairn::tune {

/// While an object of this class lives, SIGINT and SIGTERM are counted and do nothing else; the
/// third SIGINT ends the process as it always did. A signal that was ignored stays so. The last
/// object to go puts back what the first one found. May be made and destroyed in any thread.
class StopRequests {
 public:
  /// `watch` false: nothing is changed, and none comes.
  explicit StopRequests(bool watch);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// So many came since this object was made.
  std::uint32_t count() const;

 private:
  const bool watch_;
  std::uint32_t seen_before_ = 0;
};

}  // namespace cairn::tune

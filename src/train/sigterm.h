#pragma once

#include <cstdint>

namespace cairn {

/// While an object of this class lives, SIGTERM does not end the process but is counted. The last
/// one to go puts back the disposition that the first one found. Objects may be made and destroyed
/// in any thread.
class SigtermWatch {
 public:
  SigtermWatch();
  ~SigtermWatch();
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;

  /// SIGTERM came since this object was made.
  bool received() const;

 private:
  std::uint32_t seen_before_ = 0;
};

}  // namespace cairn

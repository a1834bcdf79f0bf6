#pragma once

#include <cstdint>

namespace cairn::core {

/// While an object of this class lives, SIGTERM, SIGUSR1 and SIGINT set a flag and nothing else; a
/// SIGINT after that ends the process as it always did. The last one to go puts back what the first
/// one found. Objects may be made and destroyed in any thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// One of them came since this object was made.
  bool received() const;

 private:
  std::uint32_t seen_before_ = 0;
};

}  // namespace cairn::core

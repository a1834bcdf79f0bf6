#pragma once

#include <cstdint>

#include "base/clock.h"
#include "storage/store.h"

namespace cairn {

/// Compares the two ways of writing on real data: four stretches, direct, buffered, buffered,
/// direct, so that a disk that gets slower or faster meanwhile favours neither. The owner writes a
/// stretch the way mode() says and lets the disk come to rest at both ends of it. For one thread.
class WriteTrial {
 public:
  WriteTrial(Clock* clock, std::uint64_t stretch_bytes)
      : clock_(clock), stretch_bytes_(stretch_bytes), began_(clock->Now()) {}

  WriteMode mode() const {
    return stretch_ == 0 || stretch_ == 3 ? WriteMode::kDirect : WriteMode::kBuffered;
  }
  /// Counts bytes of the current stretch; true when it is long enough to be ended.
  bool Add(std::uint64_t bytes) {
    bytes_ += bytes;
    return bytes_ >= stretch_bytes_;
  }
  /// All bytes of the stretch are on the disk.
  void EndStretch() {
    const Clock::Duration now = clock_->Now();
    const double seconds = std::chrono::duration<double>(now - began_).count();
    Rate& rate = mode() == WriteMode::kDirect ? direct_ : buffered_;
    rate.seconds += seconds;
    rate.bytes += bytes_;
    ++stretch_;
    bytes_ = 0;
    began_ = now;
  }
  /// Begins the clock of a stretch anew, after a pause that is not the disk's.
  void Restart() { began_ = clock_->Now(); }
  bool finished() const { return stretch_ == 4; }

  /// Buffered only when it is clearly faster: it costs a copy and cache memory besides.
  WriteMode choice() const {
    constexpr double kClearly = 1.1;
    return buffered_.BytesPerSecond() > kClearly * direct_.BytesPerSecond() ? WriteMode::kBuffered
                                                                            : WriteMode::kDirect;
  }
  double direct_bytes_per_second() const { return direct_.BytesPerSecond(); }
  double buffered_bytes_per_second() const { return buffered_.BytesPerSecond(); }

 private:
  struct Rate {
    double seconds = 0;
    std::uint64_t bytes = 0;
    double BytesPerSecond() const {
      return seconds <= 0 ? 0 : static_cast<double>(bytes) / seconds;
    }
  };

  Clock* const clock_;
  const std::uint64_t stretch_bytes_;
  Clock::Duration began_;
  int stretch_ = 0;
  std::uint64_t bytes_ = 0;
  Rate direct_;
  Rate buffered_;
};

}  // namespace cairn

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "launch/process_identity.h"

namespace cairn {

/// Writes the log of a launch, up to a limit. One caller at a time.
class LogWriter {
 public:
  LogWriter(OwnedFd fd, std::uint64_t limit, Clock* clock)
      : fd_(std::move(fd)), limit_(limit), clock_(clock) {}

  /// A line that was read now.
  void Add(int rank, bool from_stderr, std::string_view text, bool unfinished);
  /// A line of another node's log, as it is there (without newline).
  void AddWhole(std::string_view line);
  /// A line that is none of a log, for whoever reads this through a pipe. It has no limit.
  void AddMessage(std::string_view line);
  /// A disk that is full must not stop the ranks: lines that cannot be written are counted.
  void Flush();
  /// The last line says how many were dropped; then all is durable.
  void Finish();

 private:
  /// Takes back what was appended since the buffer was `before` long, when that is over the limit.
  void Limit(std::size_t before);

  OwnedFd fd_;
  std::uint64_t limit_;
  Clock* clock_;
  std::string buffer_;
  std::uint64_t written_ = 0;
  std::int64_t dropped_ = 0;
};

}  // namespace cairn

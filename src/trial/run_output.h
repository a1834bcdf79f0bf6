#pragma once

#include <chrono>
#include <memory>

namespace cairn {

class RunClient;

/// While it lives, what this process writes to std::cout, std::cerr and std::clog also goes to the
/// log of its run (run_log.h). The streams' own buffers get everything first, at once. Several may
/// live, and end in any order: each gets all. To be made and ended while no other thread writes.
class RunOutput {
 public:
  RunOutput(RunClient* client, int rank);  // borrowed; closed after this
  /// Gives the streams back, and sends what is left for at most two seconds.
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn

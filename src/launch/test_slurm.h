#pragma once

#include <string>

#include <cairn/status.h>

namespace cairn {

/// A real Slurm on the loopback (tests/services/slurm), one for the whole process that tests: the
/// first call starts it, and it ends with the process. SLURM_CONF is set. Fails the test, with the
/// reason, when it cannot be had.
class TestSlurm {
 public:
  static TestSlurm& Get();

  const std::string& directory() const { return directory_; }
  /// Kills one of slurmctld, slurmd.n1, slurmd.n2, slurmrestd with SIGKILL, and starts it again.
  void KillDaemon(const std::string& daemon);
  void StartDaemon(const std::string& daemon);
  /// The address of slurmrestd, which the first call starts.
  const std::string& Rest();
  /// The address of a slurmrestd that wants a token; the first call starts it.
  const std::string& RestWithTokens();
  /// Runs a command line and gives its output.
  std::string Shell(const std::string& command);
  /// Waits until both nodes are idle and no job is left.
  void UntilIdle();

 private:
  TestSlurm();

  std::string directory_;
  std::string rest_;
  std::string rest_with_tokens_;
};

}  // namespace cairn

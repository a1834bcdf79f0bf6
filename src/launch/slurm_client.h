#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// What Slurm says of a job, or of one element of an array.
struct SlurmJob {
  std::string id;      // "17", "17_3"
  std::string name;    // as it was submitted
  int index = -1;      // in its array; -1: none
  std::string state;   // "PENDING", "RUNNING", "NODE_FAIL", …
  std::string reason;  // of a pending one: "Resources", "Priority", …
  std::string node;    // of a running one: the first of its nodes

  /// Nothing of it runs or will (Slurm may still tidy up).
  bool ended() const;
  bool pending() const {
    return state == "PENDING" || state == "REQUEUED" || state == "REQUEUE_HOLD";
  }
};

/// The flags of sbatch that resources stand for. Known: partition, account, qos, time, gres, mem,
/// cpus_per_task, constraint, reservation, extra (words, taken as they are), and nodes, for which
/// see SlurmNodes. InvalidArgument names what is not known, and words in `extra` that the launcher
/// says itself.
Result<std::vector<std::string>> SlurmFlags(const std::map<std::string, std::string>& resources);
/// How many nodes share the ranks; 1 when nothing is said. InvalidArgument: no such number.
Result<int> SlurmNodes(const std::map<std::string, std::string>& resources);

/// The lines of `squeue` as Jobs asks for them. Lines that are not understood are left out.
std::vector<SlurmJob> ParseSqueue(std::string_view text);

/// Slurm's programs. Each call starts one and waits for it; from any thread.
class SlurmClient {
 public:
  /// `programs`: where sbatch, squeue and scancel lie; "": on the PATH. NotFound names the one that
  /// is missing.
  static Result<SlurmClient> Find(const std::string& programs);

  /// Hands a script to Slurm. InvalidArgument: Slurm refused it, in its own words. Unavailable:
  /// nobody knows whether it has it; look for its name.
  Status Submit(const std::vector<std::string>& flags, std::string_view script) const;

  /// The jobs of this user that Slurm still knows, ended ones too. Unavailable.
  Result<std::vector<SlurmJob>> Jobs() const;

  /// Cancels jobs; with `pending_only` those that have not begun. Those that are gone are no error.
  Status Cancel(const std::vector<std::string>& ids, bool pending_only) const;

 private:
  SlurmClient() = default;

  std::string sbatch_;
  std::string squeue_;
  std::string scancel_;
  std::vector<std::string> environment_;
};

}  // namespace cairn

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// What Slurm says of a job, or of one element of an array.
struct SlurmJob {
  std::string id;          // "17", "17_3"
  std::string name;        // as it was submitted
  int index = -1;          // in its array; -1: none
  std::string state;       // "PENDING", "RUNNING", "NODE_FAIL", …
  std::string reason;      // of a pending one: "Resources", "Priority", …
  std::string node;        // of a running one: the first of its nodes
  std::int64_t ends = 0;   // seconds since 1970 at which its time is over; 0: not known
  bool preempted = false;  // it runs, and its node is wanted

  /// Nothing of it runs or will (Slurm may still tidy up).
  bool ended() const;
  bool pending() const {
    return state == "PENDING" || state == "REQUEUED" || state == "REQUEUE_HOLD";
  }
};

/// The flags of sbatch that resources stand for. Known: partition, account, qos, time, gres, mem,
/// cpus_per_task, constraint, reservation, extra (words, taken as they are); nodes and warning, for
/// which see below. InvalidArgument names what is not known, and words in `extra` that the launcher
/// says itself.
Result<std::vector<std::string>> SlurmFlags(const std::map<std::string, std::string>& resources);
/// How many nodes share the ranks; 1 when nothing is said. InvalidArgument: no such number.
Result<int> SlurmNodes(const std::map<std::string, std::string>& resources);
/// How long before its time is over, in seconds, a launch is warned; `otherwise` when nothing is
/// said. InvalidArgument: no such number.
Result<std::chrono::seconds> SlurmWarning(const std::map<std::string, std::string>& resources,
                                          std::chrono::seconds otherwise);

/// How a launcher speaks to Slurm: by its programs (slurm_programs.h), or to slurmrestd
/// (slurm_rest.h). Calls wait for the answer; from one thread at a time.
class SlurmClient {
 public:
  virtual ~SlurmClient() = default;

  /// Hands a script to Slurm, as a job that is not requeued. `flags` are sbatch's. InvalidArgument:
  /// Slurm refused it, in its own words. Unavailable: nobody knows whether it has it; look for its
  /// name.
  virtual Status Submit(const std::vector<std::string>& flags, std::string_view script) = 0;

  /// The jobs of this user that Slurm still knows, ended ones too; each element of an array by
  /// itself. Unavailable.
  virtual Result<std::vector<SlurmJob>> Jobs() = 0;

  /// Cancels jobs; with `pending_only` those that have not begun. Those that are gone are no error.
  virtual Status Cancel(const std::vector<std::string>& ids, bool pending_only) = 0;

  /// Whether Slurm warns the shell of a job as `--signal=B:` says. Where it does not, whoever
  /// follows the jobs has to, and Jobs says `ends` and `preempted`.
  virtual bool warns() const = 0;
};

/// The environment that a job begins with: as little as possible, and none of our tokens.
std::map<std::string, std::string> SlurmEnvironment();

}  // namespace cairn

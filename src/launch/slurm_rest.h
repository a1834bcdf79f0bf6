#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "launch/slurm_client.h"

namespace cairn {

/// The version of slurmrestd's interface that is spoken: Slurm 21.08 to 23.02 have it.
inline constexpr char kSlurmRestVersion[] = "v0.0.38";

/// Slurm through slurmrestd at an address:
///   "unix:/run/slurmrestd.socket": it runs as this user, whom it lets in (rest_auth/local);
///   "http://login1:6820", https: it wants a token (rest_auth/jwt, `scontrol token`), which is read
///   at each call from the file that CAIRN_SLURM_JWT_FILE names, as tokens are renewed; without
///   that variable it is SLURM_JWT.
/// InvalidArgument: not such an address, or no token. Unavailable: nobody answers there, or the
/// token is not accepted. FailedPrecondition: it does not speak kSlurmRestVersion.
///
/// Beside Slurm's programs: no process is started for a call, but an answer to Jobs holds the jobs
/// of all users, and the shell of a job is not warned by Slurm (warns). A cancellation of what has
/// not begun is two calls, between which it may begin: then it ends with Slurm's own grace
/// (KillWait).
Result<std::unique_ptr<SlurmClient>> OpenSlurmRest(const std::string& address);

/// The body of a submission: `flags` of sbatch ("--name=value", "--name") under the names that
/// slurmrestd has for them. What it does not know it refuses by itself. InvalidArgument: a word
/// that is no long option.
Result<std::string> SlurmSubmission(const std::vector<std::string>& flags, std::string_view script,
                                    const std::map<std::string, std::string>& environment);

/// The jobs of a user in an answer of slurmrestd. Corruption: it is none. Entries that are not
/// understood are left out.
Result<std::vector<SlurmJob>> ParseSlurmJobs(std::string_view text, std::int64_t user);

}  // namespace cairn

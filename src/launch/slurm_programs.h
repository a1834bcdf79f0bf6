#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "launch/slurm_client.h"

namespace cairn {

/// sbatch, squeue and scancel; each call starts one and waits for it. `directory`: where they lie;
/// "": on the PATH. NotFound names the one that is missing.
Result<std::unique_ptr<SlurmClient>> FindSlurmPrograms(const std::string& directory);

/// The lines of `squeue` as Jobs asks for them. Lines that are not understood are left out.
std::vector<SlurmJob> ParseSqueue(std::string_view text);

}  // namespace cairn

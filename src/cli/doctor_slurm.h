#pragma once

#include <string>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct DoctorSlurmOptions {
  std::string directory;  // that nodes should share with this machine; "": no job is run
  std::string partition;  // "": Slurm's default
};

/// Whether trials can run on this site's Slurm: its programs, its controller, its partitions, and,
/// with a directory, one real job of this user that is started, followed and heard through it.
Result<Output> DoctorSlurm(const DoctorSlurmOptions& options, Console* console);

}  // namespace cairn::cli

#pragma once

#include <cairn/core.h>
#include <cairn/status.h>

#include "base/variables.h"

namespace cairn::core {

/// Where a process stands among the ranks of its trial, and where they meet: by the variables of
/// Cairn's launcher, of torchrun, of MPI or of srun, in that order; alone without any. Ranks that
/// another launcher started below the only process of ours are that one's. The same as a rank in
/// Python finds. InvalidArgument names the variable.
Result<DistributedOptions> RankPlaceFrom(const Variables& variables);

}  // namespace cairn::core

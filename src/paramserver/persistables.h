#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "paramserver/job_file.h"

namespace cairn::ps {

/// What a trainer pulled from the servers.
struct PulledTable {
  TableSpec spec;
  TableContent content;
};
struct PulledDense {
  DenseSpec spec;
  std::vector<float> values;
  std::vector<float> slots;
};

/// Writes them as a checkpoint of parameter servers, as if one server had had everything: a job
/// with any number of them can begin with it. Replaces an earlier one in the directory when it is
/// durable. The path of the checkpoint.
Result<std::string> SavePulled(const std::string& directory, std::int64_t step, Mode mode,
                               const std::vector<PulledTable>& tables,
                               const std::vector<PulledDense>& dense);

}  // namespace cairn::ps

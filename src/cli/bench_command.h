#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct BenchOptions {
  std::string directory;
  std::uint64_t bytes = std::uint64_t{1} << 30;  // of the state
  std::uint64_t tensors = 64;
  int rounds = 3;
};

/// How fast a training job's state is saved and restored in a directory, beside writing and reading
/// the same bytes as plain files, in turn. Writes into a hidden directory there, which is gone
/// afterwards.
Result<Output> Bench(const BenchOptions& options, Console* console);

}  // namespace cairn::cli

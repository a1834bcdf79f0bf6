#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct DoctorOptions {
  std::string directory;             // "": only the machine
  std::uint64_t bytes = 512u << 20;  // of the measurement's file
  int rounds = 3;
};

/// What the machine and a directory allow, and how fast the directory is, both ways of writing.
/// Writes into a hidden directory there, which is gone afterwards.
Result<Output> Doctor(const DoctorOptions& options, Console* console);

}  // namespace cairn::cli

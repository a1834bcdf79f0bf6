#pragma once

#include <string>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct DoctorRayOptions {
  std::string directory;   // that nodes should share with this machine; "": no job is run
  std::string address;     // "": as Ray's own programs find it
  std::string token_file;  // the same
};

/// Whether trials can run on this site's Ray: that it answers, takes the token, and, with a
/// directory, one real job that is started, followed and heard through it.
Result<Output> DoctorRay(const DoctorRayOptions& options, Console* console);

}  // namespace cairn::cli

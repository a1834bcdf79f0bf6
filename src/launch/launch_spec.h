#pragma once

#include <string_view>

#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn {

/// Whether a launch can be called so: it becomes the name of a directory, of a job.
bool IsLaunchId(std::string_view id);

/// InvalidArgument naming the field that no launcher can do anything with.
Status ValidateSpec(const LaunchSpec& spec);

}  // namespace cairn

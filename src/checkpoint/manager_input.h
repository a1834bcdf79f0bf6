#pragma once

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

namespace cairn {

/// What no manager can be opened with: InvalidArgument names it.
Status ValidateOptions(const ManagerOptions& options);

/// The values of a save that go into its manifest: objects that JSON can hold. InvalidArgument
/// names the one that is not.
Status ValidateValues(const SaveRequest& request);

}  // namespace cairn

#pragma once

#include <string>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// Deletes all objects below `prefix` ("": all there are), and the directories that are empty then.
/// OK when there are none. Objects that come meanwhile may stay. After an error some are gone.
Status RemoveUnder(Store* store, const std::string& prefix);

}  // namespace cairn

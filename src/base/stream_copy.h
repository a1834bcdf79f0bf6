#pragma once

#include <cstddef>

namespace cairn {

/// memcpy past the caches, for what is not read again soon. A plain copy reads each line of the
/// destination before it overwrites it, which takes a third of the memory's bandwidth. memcpy does
/// the same by itself, but only in calls that are larger than the caches.
void StreamCopy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace cairn

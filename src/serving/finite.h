#pragma once

#include <cstddef>
#include <cstdint>

#include <cairn/dtype.h>

namespace cairn::serving {

/// Whether no element is NaN or infinite; of types that have neither, always. The bytes need not be
/// aligned.
bool AllFinite(DType dtype, const std::byte* bytes, std::uint64_t size);

}  // namespace cairn::serving

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

/// The CRC-32 of zip archives (the polynomial of Ethernet), at some GB a second on any processor.
std::uint32_t ZipCrc32(std::span<const std::byte> bytes);

}  // namespace cairn

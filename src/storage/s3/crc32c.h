#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {

/// The checksum that uploads carry: CRC-32C (Castagnoli), at memory speed.
std::uint32_t Crc32c(std::span<const std::byte> bytes);

/// As S3 writes it in headers: base64 of the four bytes, most significant first.
std::string Crc32cText(std::uint32_t crc);

/// What S3 calls the checksum of an object that came in parts: the checksum of the parts'
/// checksums, without the "-<count>" that follows it.
std::string CompositeCrc32cText(const std::vector<std::uint32_t>& parts);

}  // namespace cairn

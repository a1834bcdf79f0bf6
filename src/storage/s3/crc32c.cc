#include "storage/s3/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

namespace cairn {

std::uint32_t Crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffu;
  while (!bytes.empty()) {
    // isa-l counts in int, and takes the bytes as not const although it only reads them.
    const std::size_t piece = std::min<std::size_t>(bytes.size(), 1u << 30);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(piece), crc);
    bytes = bytes.subspan(piece);
  }
  return ~crc;
}

std::string Crc32cText(std::uint32_t crc) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  // 32 bits are five whole digits and two bits of a sixth; "==" fills up to a multiple of four.
  const std::uint64_t bits = static_cast<std::uint64_t>(crc) << 4;
  std::string out;
  for (int shift = 30; shift >= 0; shift -= 6) out += kDigits[(bits >> shift) & 63];
  return out + "==";
}

std::string CompositeCrc32cText(const std::vector<std::uint32_t>& parts) {
  std::vector<std::byte> bytes;
  for (const std::uint32_t crc : parts) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(std::byte(crc >> shift));
  }
  return Crc32cText(Crc32c(bytes));
}

}  // namespace cairn

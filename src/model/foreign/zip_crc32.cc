// Sixteen bytes at a time, by tables ("slicing"): processors have no instruction for this
// polynomial.

#include "model/foreign/zip_crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kPolynomial = 0xEDB88320;  // reflected
constexpr std::size_t kSlices = 16;

using Table = std::array<std::array<std::uint32_t, 256>, kSlices>;

/// [k][b]: what byte b does to the checksum when k bytes follow it.
constexpr Table MakeTable() {
  Table table{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[0][b] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = table[k - 1][b];
      table[k][b] = (before >> 8) ^ table[0][before & 0xff];
    }
  }
  return table;
}

constexpr Table kTable = MakeTable();

}  // namespace

std::uint32_t ZipCrc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffff;
  while (bytes.size() >= kSlices) {
    std::array<std::uint32_t, 4> words{};
    std::memcpy(words.data(), bytes.data(), kSlices);
    words[0] ^= crc;
    crc = 0;
    for (std::size_t w = 0; w < words.size(); ++w) {
      const std::size_t after = kSlices - 4 * w;
      crc ^= kTable[after - 1][words[w] & 0xff] ^ kTable[after - 2][(words[w] >> 8) & 0xff] ^
             kTable[after - 3][(words[w] >> 16) & 0xff] ^ kTable[after - 4][words[w] >> 24];
    }
    bytes = bytes.subspan(kSlices);
  }
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

}  // namespace cairn

#include "model/foreign/zip_crc32.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace cairn {
namespace {

std::uint32_t Of(std::string_view text) {
  return ZipCrc32(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(ZipCrc32Test, IsTheChecksumOfZip) {
  EXPECT_EQ(Of(""), 0u);
  EXPECT_EQ(Of("123456789"), 0xCBF43926u);
  EXPECT_EQ(Of("The quick brown fox jumps over the lazy dog"), 0x414FA339u);
}

TEST(ZipCrc32Test, DependsOnEveryBitWhateverTheLength) {
  for (std::size_t length = 1; length <= 50; ++length) {
    std::string text(length, 'x');
    const std::uint32_t whole = Of(text);
    for (std::size_t at = 0; at < length; ++at) {
      text[at] ^= 0x10;
      EXPECT_NE(Of(text), whole) << length << " bytes, changed at " << at;
      text[at] ^= 0x10;
    }
  }
}

}  // namespace
}  // namespace cairn

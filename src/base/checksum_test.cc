#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>

namespace cairn {
namespace {

std::vector<std::byte> RandomBytes(std::size_t n) {
  std::mt19937_64 random(n);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(ChecksumTest, HexIsWhatXxhsumPrints) {
  EXPECT_EQ(ToHex(Xxh3(std::string_view(""))), "2d06800538d394c2");
  EXPECT_EQ(ToHex(Xxh3Wide({})), "99aa06d3014798d86001c324468d497f");
}

TEST(ChecksumTest, HexRoundTripsAndRefusesOtherText) {
  const Hash128 hash{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(Hash128FromHex(ToHex(hash)), hash);
  EXPECT_EQ(Hash64FromHex("00000000000000ff"), 255u);
  EXPECT_FALSE(Hash64FromHex("ff"));
  EXPECT_FALSE(Hash64FromHex("00000000000000FF"));
  EXPECT_FALSE(Hash128FromHex("0123456789abcdeg0123456789abcdef"));
}

TEST(Xxh3StreamTest, GivesTheHashesOfTheBytesAtOnce) {
  for (const std::size_t size : {0, 1, 240, 241, 1024, 100'001}) {
    const std::vector<std::byte> bytes = RandomBytes(size);
    const std::span<const std::byte> all(bytes);
    Xxh3Stream stream;
    stream.Update(all.first(size / 3));
    stream.Update(all.subspan(size / 3));
    EXPECT_EQ(stream.Finish(), Xxh3(all)) << size;
    stream.Update(all);
    EXPECT_EQ(stream.FinishWide(), Xxh3Wide(all)) << size;
  }
}

TEST(FileHasherTest, IsTheSameHoweverTheBytesArrive) {
  const std::vector<std::byte> bytes = RandomBytes(2 * kChunkBytes + 12345);
  FileHasher hasher;
  hasher.Update(bytes);
  const FileHash at_once = hasher.Finish();
  ASSERT_EQ(at_once.chunks.size(), 3u);
  EXPECT_EQ(at_once.whole, Xxh3Wide(bytes));
  EXPECT_EQ(at_once.chunks[1], Xxh3(std::span(bytes).subspan(kChunkBytes, kChunkBytes)));
  EXPECT_EQ(at_once.chunks[2], Xxh3(std::span(bytes).subspan(2 * kChunkBytes)));

  std::mt19937_64 random(7);
  std::span<const std::byte> rest(bytes);
  while (!rest.empty()) {
    const std::size_t n = std::min<std::size_t>(rest.size(), random() % 700'000);
    hasher.Update(rest.first(n));
    rest = rest.subspan(n);
  }
  EXPECT_EQ(hasher.Finish(), at_once);
}

TEST(FileHasherTest, AnEmptyFileHasNoChunks) {
  FileHasher hasher;
  const FileHash hash = hasher.Finish();
  EXPECT_EQ(hash.bytes, 0u);
  EXPECT_TRUE(hash.chunks.empty());
}

}  // namespace
}  // namespace cairn

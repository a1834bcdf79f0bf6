#include "format/key_column.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace cairn {
namespace {

std::vector<std::int64_t> SomeKeys(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::int64_t> keys = {0, -1, std::numeric_limits<std::int64_t>::min(),
                                    std::numeric_limits<std::int64_t>::max()};
  while (keys.size() < count) keys.push_back(static_cast<std::int64_t>(random()));
  return keys;
}

TEST(KeyColumn, GivesBackEveryKeyInOrder) {
  for (const std::size_t count : {std::size_t{4}, std::size_t{5}, std::size_t{10'000}}) {
    const std::vector<std::int64_t> keys = SomeKeys(count);
    const auto stored = EncodeKeyColumn(keys).value();
    EXPECT_EQ(DecodeKeyColumn(stored, keys.size()).value(), keys);
  }
  EXPECT_TRUE(DecodeKeyColumn(EncodeKeyColumn({}).value(), 0).value().empty());
}

TEST(KeyColumn, MakesNeighbouringKeysSmall) {
  std::vector<std::int64_t> keys(100'000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(3 * i);
  EXPECT_LT(EncodeKeyColumn(keys).value().size(), keys.size() / 10);
}

TEST(KeyColumn, EveryChangedByteIsNoticed) {
  const std::vector<std::int64_t> keys = SomeKeys(40);
  const auto stored = EncodeKeyColumn(keys).value();
  for (std::size_t i = 0; i < stored.size(); ++i) {
    auto damaged = stored;
    damaged[i] ^= std::byte{0x10};
    const auto decoded = DecodeKeyColumn(damaged, keys.size());
    EXPECT_TRUE(!decoded.ok() || *decoded == keys) << "byte " << i;
  }
}

TEST(KeyColumn, RefusesAnotherNumberOfKeysAndShortColumns) {
  const auto stored = EncodeKeyColumn(SomeKeys(40)).value();
  EXPECT_TRUE(DecodeKeyColumn(stored, 41).status().Is(Code::kCorruption));
  for (std::size_t size = 0; size < stored.size(); ++size) {
    EXPECT_FALSE(DecodeKeyColumn(std::span(stored).first(size), 40).ok()) << size;
  }
}

TEST(KeyColumn, RefusesALaterVersionAsUnimplemented) {
  auto stored = EncodeKeyColumn(SomeKeys(4)).value();
  stored[4] = std::byte{2};
  EXPECT_TRUE(DecodeKeyColumn(stored, 4).status().Is(Code::kUnimplemented));
}

}  // namespace
}  // namespace cairn

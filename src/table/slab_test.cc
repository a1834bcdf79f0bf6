#include "table/slab.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

namespace cairn::table {
namespace {

constexpr std::size_t kPiece = 200u << 10;

std::set<std::byte*> AllocateMany(Slab* slab, int pieces) {
  std::set<std::byte*> made;
  for (int i = 0; i < pieces; ++i) {
    std::byte* piece = slab->Allocate(kPiece);
    EXPECT_NE(piece, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 64, 0u);
    std::memset(piece, i, kPiece);
    EXPECT_TRUE(made.insert(piece).second);
  }
  return made;
}

TEST(Slab, GivesTheSameMemoryAgainAfterItWasRewound) {
  Slab slab;
  const std::set<std::byte*> first = AllocateMany(&slab, 100);
  const std::uint64_t bytes = slab.bytes();
  slab.Rewind();
  EXPECT_EQ(slab.bytes(), bytes);
  EXPECT_EQ(AllocateMany(&slab, 100), first);
  EXPECT_EQ(slab.bytes(), bytes);
}

TEST(Slab, GrowsBeyondWhatWasKept) {
  Slab slab;
  AllocateMany(&slab, 10);
  slab.Rewind();
  EXPECT_EQ(AllocateMany(&slab, 50).size(), 50u);
  std::byte* large = slab.Allocate(8u << 20);
  ASSERT_NE(large, nullptr);
  std::memset(large, 1, 8u << 20);
}

TEST(Slab, LetsGoOfWhatIsNoLongerNeeded) {
  Slab slab;
  AllocateMany(&slab, 200);
  const std::uint64_t most = slab.bytes();
  for (int i = 0; i < 20; ++i) {
    slab.Rewind();
    AllocateMany(&slab, 1);
  }
  EXPECT_LT(slab.bytes(), most / 10);
}

}  // namespace
}  // namespace cairn::table

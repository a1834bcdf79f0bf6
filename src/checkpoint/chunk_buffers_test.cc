#include "checkpoint/chunk_buffers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cairn {
namespace {

std::size_t Page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

TEST(ChunkBuffers, AreAsLargeAsWhatIsRead) {
  ChunkBuffers buffers;
  buffers.Reserve(2);
  EXPECT_TRUE(buffers[1].empty());
  const auto small = buffers.Get(0, 10'000);
  ASSERT_TRUE(small.ok());
  EXPECT_GE(small->size(), 10'000u);
  EXPECT_LT(small->size(), 10'000u + std::max<std::size_t>(Page(), 4096));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small->data()) % 4096, 0u);
  EXPECT_EQ(buffers.Get(0, 5'000)->data(), small->data()) << "it has room for that too";
  const auto large = buffers.Get(0, 4u << 20);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->size(), 4u << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large->data()) % (2u << 20), 0u) << "huge pages";
}

TEST(ChunkBuffers, AreGivenAwayWithWhatIsInThem) {
  ChunkBuffers buffers;
  buffers.Reserve(2);
  const auto first = *buffers.Get(0, 100);
  const auto second = *buffers.Get(1, 100);
  second[3] = std::byte{7};
  const MappedPages taken = buffers.Take(second.data());
  EXPECT_EQ(taken.bytes().data(), second.data());
  EXPECT_EQ(taken.bytes()[3], std::byte{7});
  EXPECT_TRUE(buffers[1].empty());
  EXPECT_EQ(buffers[0].data(), first.data());
  EXPECT_TRUE(buffers.Take(second.data()).bytes().empty());
  EXPECT_NE(buffers.Get(1, 100)->data(), second.data());
}

TEST(MappedPages, OnlyWholePagesAreDropped) {
  MappedPages pages = MappedPages::Of(4 * Page());
  std::ranges::fill(pages.bytes(), std::byte{1});
  pages.Drop(1, 3 * Page() - 1);
  const auto ones = std::ranges::count(pages.bytes(), std::byte{1});
  EXPECT_EQ(static_cast<std::size_t>(ones), 3 * Page()) << "the second page is gone";
  EXPECT_EQ(pages.bytes()[Page()], std::byte{0});
  pages.Drop(3 * Page(), 100 * Page());
  EXPECT_EQ(pages.bytes()[4 * Page() - 1], std::byte{0});
}

}  // namespace
}  // namespace cairn

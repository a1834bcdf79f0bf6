#include "checkpoint/stored_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/names.h"
#include "checkpoint/test_checkpoint.h"

namespace cairn {
namespace {

using testing::HasSubstr;

TEST(StoredArraySourceTest, PutsPiecesTogetherInBlocksOfAnySize) {
  auto store = NewTestStore();
  // 40 x 60 in four rectangles.
  std::vector<std::uint16_t> whole(40 * 60);
  std::iota(whole.begin(), whole.end(), std::uint16_t{0});
  TestCheckpoint checkpoint;
  int number = 0;
  for (const std::uint64_t row : {0u, 24u}) {
    for (const std::uint64_t column : {0u, 13u}) {
      const std::uint64_t rows = row == 0 ? 24 : 16;
      const std::uint64_t columns = column == 0 ? 13 : 47;
      std::vector<std::uint16_t> piece;
      for (std::uint64_t r = row; r < row + rows; ++r) {
        for (std::uint64_t c = column; c < column + columns; ++c)
          piece.push_back(whole[r * 60 + c]);
      }
      checkpoint.Tensor("__model__/rank_" + std::to_string(number++) + "-00001.safetensors", "w",
                        DType::kU16, {rows, columns}, BytesOf(piece),
                        ShardSpec{{40, 60}, {row, column}});
    }
  }
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get());
  ASSERT_TRUE(open.ok()) << open.status().ToString();
  auto catalog = (*open)->ReadCatalog(TensorGroup::kModel, "");
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  StoredBytes bytes(store.get(), open->get());
  for (const std::uint64_t block : {2u, 50u, 120u, 1000u, 100000u}) {
    StoredArraySource source(&bytes, catalog->at("w"), block);
    std::vector<std::uint16_t> out(whole.size());
    const std::span<std::byte> memory = std::as_writable_bytes(std::span(out));
    for (std::size_t at = 0; at < memory.size(); at += 700) {
      const Status filled =
          source.Fill(at, memory.subspan(at, std::min<std::size_t>(700, memory.size() - at)));
      ASSERT_TRUE(filled.ok()) << filled.ToString();
    }
    EXPECT_EQ(out, whole) << block;
  }
}

TEST(StoredBytesTest, ReadsFilesOfManyChunksAndFindsTheDamagedOne) {
  auto store = NewTestStore();
  const std::string text = RandomBytes(30u << 20, 1);
  TestCheckpoint checkpoint;
  checkpoint.File("files/large", text).File("files/small", "abc");
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get());
  ASSERT_TRUE(open.ok()) << open.status().ToString();
  const auto large = static_cast<std::size_t>((*open)->FindFile("files/large"));
  const auto small = static_cast<std::size_t>((*open)->FindFile("files/small"));
  StoredBytes bytes(store.get(), open->get());
  std::string out(text.size(), '\0');
  ASSERT_TRUE(bytes.Read(large, 0, std::as_writable_bytes(std::span(out))).ok());
  EXPECT_EQ(out, text);
  // Here and there, so that slots are taken away and filled again.
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t at = random() % (text.size() - 10);
    std::string piece(10, '\0');
    ASSERT_TRUE(bytes.Read(large, at, std::as_writable_bytes(std::span(piece))).ok());
    EXPECT_EQ(piece, text.substr(at, 10));
  }
  std::string three(3, '\0');
  ASSERT_TRUE(bytes.Read(small, 0, std::as_writable_bytes(std::span(three))).ok());
  EXPECT_EQ(three, "abc");
  std::string four(4, '\0');
  EXPECT_EQ(bytes.Read(small, 0, std::as_writable_bytes(std::span(four))).code(),
            Code::kCorruption);

  FlipBit(store.get(), names::Path(checkpoint.directory(), "files/large"), 9u << 20);
  auto again = checkpoint.Open(store.get());
  ASSERT_TRUE(again.ok());
  StoredBytes damaged(store.get(), again->get());
  ASSERT_TRUE(damaged.Read(large, 0, std::as_writable_bytes(std::span(out).first(8u << 20))).ok());
  const Status status = damaged.Read(large, 8u << 20, std::as_writable_bytes(std::span(four)));
  EXPECT_EQ(status.code(), Code::kCorruption);
  EXPECT_THAT(std::string(status.message()), HasSubstr("files/large: chunk 3 of 8"));
  ASSERT_TRUE(damaged.Read(large, 12u << 20, std::as_writable_bytes(std::span(four))).ok());
}

}  // namespace
}  // namespace cairn

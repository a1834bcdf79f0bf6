#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/coverage.h"
#include "checkpoint/restore.h"
#include "checkpoint/test_rectangles.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

// The array cut into pieces, one "file" each, with a few bytes before the data.
struct Stored {
  StoredTensor tensor;
  std::vector<std::string> files;
};

Stored Store(const std::string& array, DType dtype, const Dims& shape,
             const std::vector<Rectangle>& parts) {
  const std::size_t width = static_cast<std::size_t>(DTypeBits(dtype)) / 8;
  Stored stored;
  stored.tensor = {.dtype = dtype, .shape = shape};
  for (const Rectangle& part : parts) {
    const std::uint64_t lead = 3 + stored.files.size() % 5;
    const std::string file = std::string(lead, '#') + CutOut(array, shape, part, width);
    stored.tensor.pieces.push_back({.file = stored.files.size(),
                                    .file_offset = lead,
                                    .bytes = file.size() - lead,
                                    .shape = part.shape,
                                    .offset = part.offset});
    stored.files.push_back(file);
  }
  return stored;
}

void Apply(const std::vector<ByteRun>& runs, const std::vector<std::string>& files) {
  for (const ByteRun& run : runs) {
    for (std::uint64_t i = 0; i < run.count; ++i) {
      const std::uint64_t from = run.file_offset + i * run.file_stride;
      ASSERT_LE(from + run.bytes, files[run.file].size());
      std::memcpy(run.to + i * run.to_stride, files[run.file].data() + from, run.bytes);
    }
  }
}

std::string RandomArray(std::size_t bytes, std::mt19937_64* random) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>((*random)());
  return out;
}

TEST(IntersectPieces, AnyLayoutIsFilledFromAnyOther) {
  std::mt19937_64 random(20260731);
  const DType types[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64};
  for (int round = 0; round < 600; ++round) {
    Dims shape(random() % 5);
    for (std::uint64_t& extent : shape) extent = 1 + random() % 9;
    const DType dtype = types[random() % 4];
    const std::size_t width = static_cast<std::size_t>(DTypeBits(dtype)) / 8;
    const std::string array = RandomArray(Volume(shape) * width, &random);
    const Stored stored =
        Store(array, dtype, shape, RandomPartition(shape, 1 + random() % 12, &random));
    ASSERT_TRUE(CheckCoverage("x", stored.tensor).ok());
    for (const Rectangle& target : RandomPartition(shape, 1 + random() % 12, &random)) {
      std::string filled(Volume(target.shape) * width, '\0');
      const std::string expected = CutOut(array, shape, target, width);
      std::vector<ByteRun> runs;
      ASSERT_TRUE(IntersectPieces(stored.tensor, target.shape, target.offset,
                                  reinterpret_cast<std::byte*>(filled.data()), 7, &runs)
                      .ok());
      std::uint64_t bytes = 0;
      for (const ByteRun& run : runs) {
        bytes += run.bytes * run.count;
        EXPECT_EQ(run.owner, 7u);
      }
      ASSERT_EQ(bytes, filled.size());
      Apply(runs, stored.files);
      ASSERT_EQ(filled, expected) << "round " << round << " shape " << EncodeDims(shape);
    }
  }
}

TEST(IntersectPieces, OneRunFillsAWholeArrayFromOnePiece) {
  const StoredTensor stored{
      .dtype = DType::kF32,
      .shape = {4, 5, 6},
      .pieces = {{.file_offset = 4096, .bytes = 480, .shape = {4, 5, 6}, .offset = {0, 0, 0}}}};
  std::vector<ByteRun> runs;
  std::byte memory[480];
  ASSERT_TRUE(IntersectPieces(stored, {4, 5, 6}, {0, 0, 0}, memory, 0, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].bytes, 480u);
  EXPECT_EQ(runs[0].count, 1u);
}

TEST(IntersectPieces, ColumnsOfAMatrixAreOneRunWithRows) {
  const StoredTensor stored{.dtype = DType::kF32,
                            .shape = {1000, 8},
                            .pieces = {{.bytes = 32000, .shape = {1000, 8}, .offset = {0, 0}}}};
  std::vector<ByteRun> runs;
  std::vector<std::byte> memory(8000);
  ASSERT_TRUE(IntersectPieces(stored, {1000, 2}, {0, 3}, memory.data(), 0, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].file_offset, 12u);
  EXPECT_EQ(runs[0].bytes, 8u);
  EXPECT_EQ(runs[0].count, 1000u);
  EXPECT_EQ(runs[0].file_stride, 32u);
  EXPECT_EQ(runs[0].to_stride, 8u);
}

TEST(IntersectPieces, ScalarIsOneElement) {
  const StoredTensor stored{.dtype = DType::kF64, .shape = {}, .pieces = {{.bytes = 8}}};
  std::vector<ByteRun> runs;
  std::byte memory[8];
  ASSERT_TRUE(IntersectPieces(stored, {}, {}, memory, 0, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].bytes, 8u);
}

TEST(IntersectPieces, EmptyArrayNeedsNothing) {
  const Dims shape = {0, 1u << 20, 1u << 20};
  const StoredTensor stored{
      .dtype = DType::kF32, .shape = shape, .pieces = {{.shape = shape, .offset = {0, 0, 0}}}};
  std::vector<ByteRun> runs;
  ASSERT_TRUE(IntersectPieces(stored, shape, {0, 0, 0}, nullptr, 0, &runs).ok());
  EXPECT_TRUE(runs.empty());
  EXPECT_TRUE(CheckCoverage("x", stored).ok());
}

TEST(IntersectPieces, OffsetsOfHugeArraysDoNotOverflow) {
  const std::uint64_t rows = std::uint64_t{1} << 38;
  const StoredTensor stored{
      .dtype = DType::kF32,
      .shape = {rows, 1 << 20},
      .pieces = {{.bytes = rows << 22, .shape = {rows, 1 << 20}, .offset = {0, 0}}}};
  std::vector<ByteRun> runs;
  std::byte memory[64];
  ASSERT_TRUE(IntersectPieces(stored, {2, 8}, {rows - 2, (1 << 20) - 8}, memory, 0, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].file_offset, ((rows - 1) << 22) - 32);
  EXPECT_EQ(runs[0].count, 2u);
}

TEST(IntersectPieces, RectangleOutsideTheArrayIsRefused) {
  const StoredTensor stored{.dtype = DType::kU8,
                            .shape = {4, 4},
                            .pieces = {{.bytes = 16, .shape = {4, 4}, .offset = {0, 0}}}};
  std::vector<ByteRun> runs;
  std::byte memory[64];
  EXPECT_TRUE(IntersectPieces(stored, {2, 4}, {3, 0}, memory, 0, &runs).Is(Code::kInvalidArgument));
  EXPECT_TRUE(IntersectPieces(stored, {2, 4}, {~std::uint64_t{0}, 0}, memory, 0, &runs)
                  .Is(Code::kInvalidArgument));
  EXPECT_TRUE(IntersectPieces(stored, {16}, {0}, memory, 0, &runs).Is(Code::kInvalidArgument));
  EXPECT_TRUE(runs.empty());
}

TEST(IntersectPieces, SubByteElementsMoveInWholeBytesOrAreRefused) {
  const StoredTensor stored{.dtype = DType::kF4,
                            .shape = {4, 6},
                            .pieces = {{.bytes = 12, .shape = {4, 6}, .offset = {0, 0}}}};
  std::vector<ByteRun> runs;
  std::byte memory[12];
  ASSERT_TRUE(IntersectPieces(stored, {4, 2}, {0, 2}, memory, 0, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].bytes, 1u);
  EXPECT_EQ(runs[0].file_offset, 1u);
  EXPECT_EQ(runs[0].file_stride, 3u);
  runs.clear();
  EXPECT_TRUE(IntersectPieces(stored, {4, 2}, {0, 1}, memory, 0, &runs).Is(Code::kUnimplemented));
  EXPECT_TRUE(runs.empty());
}

TEST(CheckCoverage, GapsAndOverlapsAreCorruption) {
  StoredTensor tensor{.dtype = DType::kU8,
                      .shape = {4, 4},
                      .pieces = {{.shape = {2, 4}, .offset = {0, 0}},
                                 {.shape = {2, 2}, .offset = {2, 0}},
                                 {.shape = {2, 2}, .offset = {2, 2}}}};
  EXPECT_TRUE(CheckCoverage("x", tensor).ok());
  tensor.pieces[2].offset = {2, 1};  // as many elements, but two of them twice
  EXPECT_TRUE(CheckCoverage("x", tensor).Is(Code::kCorruption));
  tensor.pieces.pop_back();
  EXPECT_TRUE(CheckCoverage("x", tensor).Is(Code::kCorruption));
  tensor.pieces.push_back({.shape = {4, 4}, .offset = {0, 0}});
  EXPECT_TRUE(CheckCoverage("x", tensor).Is(Code::kCorruption));
}

TEST(CheckCoverage, PinwheelThatNoCutSeparatesIsAccepted) {
  const StoredTensor tensor{.dtype = DType::kU8,
                            .shape = {3, 3},
                            .pieces = {{.shape = {1, 2}, .offset = {0, 0}},
                                       {.shape = {2, 1}, .offset = {0, 2}},
                                       {.shape = {1, 2}, .offset = {2, 1}},
                                       {.shape = {2, 1}, .offset = {1, 0}},
                                       {.shape = {1, 1}, .offset = {1, 1}}}};
  EXPECT_TRUE(CheckCoverage("x", tensor).ok());
}

TEST(CheckCoverage, OneShiftedPieceAmongManyIsFound) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    StoredTensor tensor{.dtype = DType::kU8, .shape = {64, 64, 64}};
    for (const Rectangle& part : RandomPartition(tensor.shape, 60, &random)) {
      tensor.pieces.push_back({.shape = part.shape, .offset = part.offset});
    }
    ASSERT_TRUE(CheckCoverage("x", tensor).ok());
    StoredPiece& piece = tensor.pieces[random() % tensor.pieces.size()];
    const std::size_t d = random() % 3;
    if (piece.offset[d] == 0) continue;
    --piece.offset[d];
    EXPECT_TRUE(CheckCoverage("x", tensor).Is(Code::kCorruption)) << round;
  }
}

TEST(CheckCoverage, GridOfAHundredThousandPiecesIsQuick) {
  StoredTensor tensor{.dtype = DType::kU8, .shape = {640, 640}};
  for (std::uint64_t row = 0; row < 320; ++row) {
    for (std::uint64_t column = 0; column < 320; ++column) {
      tensor.pieces.push_back({.shape = {2, 2}, .offset = {2 * row, 2 * column}});
    }
  }
  EXPECT_TRUE(CheckCoverage("x", tensor).ok());  // all pairs would be 5 * 10^9
}

}  // namespace
}  // namespace cairn

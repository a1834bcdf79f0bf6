#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/element_difference.h"
#include "checkpoint/restore.h"
#include "checkpoint/test_checkpoint.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kFile1[] = "__model__/rank_0-00001.safetensors";
constexpr char kFile2[] = "__model__/rank_0-00002.safetensors";
constexpr double kInf = std::numeric_limits<double>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<TensorDifference> Diff(Store* store, const TestCheckpoint& a, const TestCheckpoint& b) {
  auto open_a = a.Open(store).value();
  auto open_b = b.Open(store).value();
  auto result = DiffCheckpoints(store, open_a.get(), store, open_b.get(), {});
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? std::move(result).value() : std::vector<TensorDifference>();
}

std::vector<std::string> Lines(const std::vector<TensorDifference>& differences) {
  std::vector<std::string> lines;
  for (const TensorDifference& d : differences) {
    std::string line = d.name + " " + d.what;
    if (d.what == "changed") {
      line += " " + std::to_string(d.elements) + " " + std::to_string(d.max_abs);
    }
    lines.push_back(line);
  }
  return lines;
}

TEST(Diff, NamesWhatWasAddedRemovedAndChanged) {
  auto store = NewTestStore();
  TestCheckpoint a("checkpoint_000001");
  TestCheckpoint b("checkpoint_000002");
  const std::vector<float> x = {1, 2, 3, kNan};
  const std::vector<float> y = {1, 2.5, 2, kNan};
  a.Tensor(kFile1, "changed", DType::kF32, {4}, BytesOf(x))
      .Tensor(kFile1, "same", DType::kF32, {4}, BytesOf(x))
      .Tensor(kFile1, "gone", DType::kU8, {1}, "g")
      .Tensor(kFile1, "shape", DType::kU8, {2}, "gg")
      .Tensor(kFile1, "type", DType::kU8, {1}, "g")
      .Tensor("rank_0/state.safetensors", "rng", DType::kU8, {1}, "a")
      .Tensor("__lookup_table__/rank_0.safetensors", "t/keys", DType::kI64, {1}, "12345678");
  b.Tensor(kFile1, "changed", DType::kF32, {4}, BytesOf(y))
      .Tensor(kFile1, "new", DType::kU8, {1}, "n")
      .Tensor(kFile1, "same", DType::kF32, {4}, BytesOf(x))
      .Tensor(kFile1, "shape", DType::kU8, {2, 1}, "gg")
      .Tensor(kFile1, "type", DType::kI8, {1}, "g")
      .Tensor("rank_0/state.safetensors", "rng", DType::kU8, {1}, "d")
      .Tensor("__lookup_table__/rank_0.safetensors", "t/keys", DType::kI64, {1}, "12345678");
  a.Write(store.get());
  b.Write(store.get());
  EXPECT_THAT(Lines(Diff(store.get(), a, b)),
              ElementsAre("changed changed 2 1.000000", "gone removed", "new added",
                          "rank_0/rng changed 1 3.000000", "shape shape", "type dtype"));
  EXPECT_THAT(Diff(store.get(), a, a), IsEmpty());
}

TEST(Diff, LayoutDoesNotMatter) {
  auto store = NewTestStore();
  TestCheckpoint a("checkpoint_000001");
  TestCheckpoint b("checkpoint_000002");
  a.Tensor(kFile1, "x", DType::kU8, {2, 2}, "abcd").Write(store.get());
  b.Tensor(kFile1, "x", DType::kU8, {2, 1}, "ac", ShardSpec{{2, 2}, {0, 0}})
      .Tensor(kFile2, "x", DType::kU8, {2, 1}, "bz", ShardSpec{{2, 2}, {0, 1}});
  b.Write(store.get());
  EXPECT_THAT(Lines(Diff(store.get(), a, b)), ElementsAre("x changed 1 22.000000"));
}

TEST(Diff, LargeTensorsAreComparedInBlocks) {
  auto store = NewTestStore();
  TestCheckpoint a("checkpoint_000001");
  TestCheckpoint b("checkpoint_000002");
  // 100 MiB: a row of the first dimension is larger than a batch, so that inner ones are cut.
  const std::uint64_t rows = 100;
  const std::uint64_t columns = 1u << 18;
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1000);
  a.Tensor(kFile1, "x", DType::kF32, {1, rows, columns}, BytesOf(x)).Write(store.get());
  x[5] += 1;
  x[50 * columns] += 7;
  x.back() -= 2;
  b.Tensor(kFile1, "x", DType::kF32, {1, rows, columns}, BytesOf(x)).Write(store.get());
  EXPECT_THAT(Lines(Diff(store.get(), a, b)), ElementsAre("x changed 3 7.000000"));
}

TEST(Diff, ChunksWithEqualSumsAreNotRead) {
  auto store = NewTestStore();
  TestCheckpoint a("checkpoint_000001");
  TestCheckpoint b("checkpoint_000002");
  std::string big = RandomBytes(3 * kChunkBytes, 1);
  for (TestCheckpoint* checkpoint : {&a, &b}) {
    checkpoint->Tensor(kFile1, "big", DType::kU8, {big.size()}, big)
        .Tensor(kFile1, "last", DType::kU8, {1}, checkpoint == &a ? "a" : "b")
        .Tensor(kFile2, "other", DType::kU8, {big.size()}, big);
    checkpoint->Write(store.get());
  }
  EXPECT_THAT(Lines(Diff(store.get(), a, b)), ElementsAre("last changed 1 1.000000"));
  // Whoever reads it would notice: the header's chunk stays as it is.
  FlipBit(store.get(), "checkpoint_000001/" + std::string(kFile2), 2 * kChunkBytes);
  EXPECT_THAT(Lines(Diff(store.get(), a, b)), ElementsAre("last changed 1 1.000000"));
}

TEST(Diff, DamageIsReportedNotCompared) {
  auto store = NewTestStore();
  TestCheckpoint a("checkpoint_000001");
  TestCheckpoint b("checkpoint_000002");
  a.Tensor(kFile1, "x", DType::kU8, {2 * kChunkBytes}, RandomBytes(2 * kChunkBytes, 1))
      .Write(store.get());
  b.Tensor(kFile1, "x", DType::kU8, {2 * kChunkBytes}, RandomBytes(2 * kChunkBytes, 2))
      .Write(store.get());
  FlipBit(store.get(), "checkpoint_000002/" + std::string(kFile1), kChunkBytes + 1);
  auto open_a = a.Open(store.get()).value();
  auto open_b = b.Open(store.get()).value();
  const auto result = DiffCheckpoints(store.get(), open_a.get(), store.get(), open_b.get(), {});
  EXPECT_TRUE(result.status().Is(Code::kCorruption));
}

template <typename T>
ElementDifference Compare(DType dtype, std::vector<T> a, std::vector<T> b) {
  return CompareElements(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

TEST(CompareElements, IntegersAreExactAtTheirLimits) {
  using Limits = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(Compare<std::int64_t>(DType::kI64, {Limits::min()}, {Limits::max()}).max_abs,
            18446744073709551615.0);
  EXPECT_EQ(Compare<std::uint64_t>(DType::kU64, {0}, {~std::uint64_t{0}}).max_abs,
            18446744073709551615.0);
  EXPECT_EQ(Compare<std::int8_t>(DType::kI8, {-128, 1}, {127, 1}).max_abs, 255);
  EXPECT_EQ(Compare<std::int16_t>(DType::kI16, {-5}, {5}).max_abs, 10);
  EXPECT_EQ(Compare<std::uint16_t>(DType::kU16, {5}, {65535}).max_abs, 65530);
  EXPECT_EQ(Compare<std::int32_t>(DType::kI32, {-5}, {6}).max_abs, 11);
  EXPECT_EQ(Compare<std::uint32_t>(DType::kU32, {5}, {6}).max_abs, 1);
  EXPECT_EQ(Compare<std::uint8_t>(DType::kBool, {0, 1}, {1, 1}).elements, 1u);
}

TEST(CompareElements, FloatsTreatSpecialValuesByTheirBits) {
  const auto f32 = [](std::vector<float> a, std::vector<float> b) {
    return Compare<float>(DType::kF32, std::move(a), std::move(b));
  };
  EXPECT_EQ(f32({kNan, 1}, {kNan, 1}).elements, 0u);
  EXPECT_EQ(f32({0.0f}, {-0.0f}).elements, 1u);
  EXPECT_EQ(f32({0.0f}, {-0.0f}).max_abs, 0);
  EXPECT_EQ(f32({INFINITY}, {-INFINITY}).max_abs, kInf);
  EXPECT_TRUE(std::isnan(f32({kNan, 5}, {1, 1}).max_abs));
  EXPECT_EQ(f32({kNan, 5}, {-kNan, 1}).elements, 2u);
  EXPECT_EQ(f32({kNan, 5}, {-kNan, 1}).max_abs, 4);
  EXPECT_EQ(Compare<double>(DType::kF64, {1e300}, {-1e300}).max_abs, 2e300);
}

TEST(CompareElements, SmallFloatsAreDecoded) {
  const auto bf16 = [](float v) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
  };
  EXPECT_EQ(Compare<std::uint16_t>(DType::kBF16, {bf16(1)}, {bf16(-2)}).max_abs, 3);
  EXPECT_EQ(Compare<std::uint16_t>(DType::kF16, {0x3c00}, {0xc000}).max_abs, 3);  // 1, -2
  EXPECT_EQ(Compare<std::uint16_t>(DType::kF16, {0x0001}, {0x0000}).max_abs, std::ldexp(1, -24));
  EXPECT_EQ(Compare<std::uint16_t>(DType::kF16, {0x7bff}, {0x0000}).max_abs, 65504);
  EXPECT_EQ(Compare<std::uint16_t>(DType::kF16, {0x7c00}, {0x0000}).max_abs, kInf);
  const auto f8 = [](DType dtype, std::uint8_t bits) {
    return Compare<std::uint8_t>(dtype, {bits}, {0}).max_abs;
  };
  EXPECT_EQ(f8(DType::kF8E4M3, 0x7e), 448);
  EXPECT_EQ(f8(DType::kF8E4M3, 0x01), std::ldexp(1, -9));
  EXPECT_TRUE(std::isnan(f8(DType::kF8E4M3, 0x7f)));
  EXPECT_EQ(f8(DType::kF8E5M2, 0x7b), 57344);
  EXPECT_EQ(f8(DType::kF8E5M2, 0x7c), kInf);
  EXPECT_TRUE(std::isnan(f8(DType::kF8E5M2, 0x7d)));
  EXPECT_EQ(f8(DType::kF8E4M3Fnuz, 0x7f), 240);
  EXPECT_TRUE(std::isnan(f8(DType::kF8E4M3Fnuz, 0x80)));
  EXPECT_EQ(f8(DType::kF8E5M2Fnuz, 0x7f), 57344);
  EXPECT_TRUE(std::isnan(f8(DType::kF8E5M2Fnuz, 0x80)));
  EXPECT_EQ(Compare<std::uint8_t>(DType::kF8E8M0, {127}, {128}).max_abs, 1);
  EXPECT_TRUE(std::isnan(Compare<std::uint8_t>(DType::kF8E8M0, {127}, {255}).max_abs));
}

TEST(CompareElements, PackedElementsAreCountedOneByOne) {
  // F4: 0x7 is 6, 0xf is -6, 0x1 is 0.5.
  ElementDifference f4 = Compare<std::uint8_t>(DType::kF4, {0x17, 0x00}, {0x1f, 0x00});
  EXPECT_EQ(f4.elements, 1u);
  EXPECT_EQ(f4.max_abs, 12);
  f4 = Compare<std::uint8_t>(DType::kF4, {0x11}, {0x00});
  EXPECT_EQ(f4.elements, 2u);
  EXPECT_EQ(f4.max_abs, 0.5);
  // Four F6 in three bytes; the third one is 0x1f: 7.5 in E2M3, 28 in E3M2.
  const std::vector<std::uint8_t> third = {0, 0x1f0 & 0xff, 0x1f0 >> 8};
  EXPECT_EQ(Compare<std::uint8_t>(DType::kF6E2M3, {0, 0, 0}, third).max_abs, 7.5);
  EXPECT_EQ(Compare<std::uint8_t>(DType::kF6E3M2, {0, 0, 0}, third).max_abs, 28);
  EXPECT_EQ(Compare<std::uint8_t>(DType::kF6E3M2, {0, 0, 0}, third).elements, 1u);
}

TEST(CompareElements, ComplexNumbersByTheirDistance) {
  EXPECT_EQ(Compare<float>(DType::kC64, {0, 0, 1, 1}, {3, 4, 1, 1}).max_abs, 5);
  EXPECT_EQ(Compare<float>(DType::kC64, {0, 0, 1, 1}, {3, 4, 1, 1}).elements, 1u);
}

}  // namespace
}  // namespace cairn

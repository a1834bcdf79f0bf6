#include "checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/test_checkpoint.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFile1[] = "__model__/rank_0-00001.safetensors";
constexpr char kFile2[] = "__model__/rank_1-00001.safetensors";

std::vector<std::string> Names(const TensorMap& map) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : map) names.push_back(name);
  return names;
}

std::string At(const std::string& path) { return "checkpoint_000040/" + path; }

TEST(OpenCheckpoint, ReadsFilesThatStandElsewhereInTheRepository) {
  auto store = NewTestStore(/*object_store=*/true);
  TestCheckpoint checkpoint;
  checkpoint.File("files/a", "hello").Refer("files/a", "checkpoint_000020/files/a");
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  EXPECT_EQ(open->ReadWhole("files/a", 100).value(), "hello");
}

TEST(OpenCheckpoint, MissingFileIsNotFoundAndNamed) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.File("files/a", "hello").File("files/b", "world").Write(store.get());
  ASSERT_TRUE(store->Delete(At("files/b")).ok());
  const auto open = checkpoint.Open(store.get());
  EXPECT_TRUE(open.status().Is(Code::kNotFound));
  EXPECT_THAT(open.status().ToString(), HasSubstr("files/b"));
}

TEST(OpenCheckpoint, WrongSizeIsCorruptionAndNamed) {
  for (const std::string& bytes : {std::string("worl"), std::string("world!")}) {
    auto store = NewTestStore();
    TestCheckpoint checkpoint;
    checkpoint.File("files/b", "world").Write(store.get());
    ASSERT_TRUE(store->Put(At("files/b"), bytes).ok());
    const auto open = checkpoint.Open(store.get());
    EXPECT_TRUE(open.status().Is(Code::kCorruption));
    EXPECT_THAT(open.status().ToString(), HasSubstr("files/b"));
  }
}

TEST(OpenCheckpoint, TooFewChecksumsAreCorruption) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.File("files/b", "world").Write(store.get());
  checkpoint.manifest().files[0].hash.chunks.clear();
  EXPECT_TRUE(checkpoint.Open(store.get()).status().Is(Code::kCorruption));
}

TEST(OpenCheckpoint, ReadWholeComparesEveryChunk) {
  auto store = NewTestStore();
  const std::string bytes = RandomBytes(2 * kChunkBytes + 777, 1);
  TestCheckpoint checkpoint;
  checkpoint.File("files/a", bytes).File("files/empty", "").Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  EXPECT_EQ(open->ReadWhole("files/a", 100 << 20).value(), bytes);
  EXPECT_EQ(open->ReadWhole("files/empty", 0).value(), "");
  EXPECT_TRUE(open->ReadWhole("files/a", bytes.size() - 1).status().Is(Code::kResourceExhausted));
  EXPECT_TRUE(open->ReadWhole("files/none", 100).status().Is(Code::kNotFound));
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{kChunkBytes}, bytes.size() - 1}) {
    FlipBit(store.get(), At("files/a"), at);
    auto damaged = checkpoint.Open(store.get()).value();
    const auto read = damaged->ReadWhole("files/a", 100 << 20);
    EXPECT_TRUE(read.status().Is(Code::kCorruption)) << at;
    EXPECT_THAT(read.status().ToString(), HasSubstr("files/a"));
    FlipBit(store.get(), At("files/a"), at);
  }
}

TEST(OpenCheckpoint, ReadWholeComparesTheWholeFile) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.File("files/a", "hello").Write(store.get());
  checkpoint.manifest().files[0].hash.whole.low ^= 1;
  auto open = checkpoint.Open(store.get()).value();
  EXPECT_TRUE(open->ReadWhole("files/a", 100).status().Is(Code::kCorruption));
}

TEST(ReadCatalog, EachGroupHasItsOwnTensors) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kF32, {2}, std::string(8, 'w'))
      .Tensor(kFile2, "v", DType::kU8, {}, "v")
      .Tensor("__lookup_table__/rank_0.safetensors", "t/keys", DType::kI64, {1}, "12345678")
      .Tensor("__lookup_table__/rank_1.safetensors", "t/keys", DType::kI64, {0}, "")
      .Tensor("rank_0/state.safetensors", "w", DType::kU8, {3}, "rng")
      .Tensor("rank_1/state.safetensors", "other", DType::kU8, {3}, "rng")
      .Tensor("files/mine.safetensors", "user", DType::kU8, {3}, "abc")
      .File("rank_0/state.json", "{}");
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();

  const TensorMap model = open->ReadCatalog(TensorGroup::kModel, "").value();
  EXPECT_THAT(Names(model), ElementsAre("v", "w"));
  EXPECT_EQ(model.at("w").dtype, DType::kF32);
  EXPECT_THAT(model.at("w").shape, ElementsAre(2));
  EXPECT_EQ(model.at("w").pieces[0].file_offset, kSafetensorsAlign);
  EXPECT_EQ(model.at("w").pieces[0].bytes, 8u);
  EXPECT_TRUE(model.at("v").shape.empty());

  const TensorMap state = open->ReadCatalog(TensorGroup::kState, "rank_0").value();
  EXPECT_THAT(Names(state), ElementsAre("w"));
  EXPECT_EQ(state.at("w").dtype, DType::kU8);
  EXPECT_TRUE(open->ReadCatalog(TensorGroup::kState, "rank_7").value().empty());
  EXPECT_TRUE(open->ReadCatalog(TensorGroup::kState, "").status().Is(Code::kInvalidArgument));

  EXPECT_THAT(open->ReadCatalog(TensorGroup::kTable, "rank_1").value().at("t/keys").shape,
              ElementsAre(0));
}

TEST(ReadCatalog, PiecesOfSeveralFilesBecomeOneArray) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "x", DType::kU8, {2, 4}, "abcdefgh", ShardSpec{{4, 4}, {0, 0}})
      .Tensor(kFile2, "x", DType::kU8, {2, 3}, "ijkmno", ShardSpec{{4, 4}, {2, 0}})
      .Tensor(kFile2, "x", DType::kU8, {2, 1}, "lp", ShardSpec{{4, 4}, {2, 3}});
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  const TensorMap model = open->ReadCatalog(TensorGroup::kModel, "").value();
  ASSERT_THAT(Names(model), ElementsAre("x"));
  EXPECT_THAT(model.at("x").shape, ElementsAre(4, 4));
  ASSERT_EQ(model.at("x").pieces.size(), 3u);
  EXPECT_THAT(model.at("x").pieces[2].offset, ElementsAre(2, 3));
}

TEST(ReadCatalog, OneParticipantsPiecesNeedNotCoverTheArray) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "x", DType::kU8, {2}, "ab", ShardSpec{{4}, {0}})
      .Tensor(kFile2, "x", DType::kU8, {2}, "cd", ShardSpec{{4}, {2}});
  checkpoint.Write(store.get());
  for (ManifestFile& file : checkpoint.manifest().files) {
    if (file.path == kFile2) file.part = "rank_1";
  }
  auto open = checkpoint.Open(store.get()).value();
  const TensorMap own = open->ReadCatalog(TensorGroup::kModel, "rank_1").value();
  ASSERT_EQ(own.at("x").pieces.size(), 1u);
  EXPECT_THAT(own.at("x").pieces[0].offset, ElementsAre(2));
}

TEST(ReadCatalog, TensorInTwoFilesIsCorruption) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {2}, "ab").Tensor(kFile2, "w", DType::kU8, {2}, "ab");
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  const auto model = open->ReadCatalog(TensorGroup::kModel, "");
  EXPECT_TRUE(model.status().Is(Code::kCorruption));
  EXPECT_THAT(model.status().ToString(), HasSubstr("rank_1-00001"));
  EXPECT_FALSE(open->BuildIndex().ok());
}

TEST(ReadCatalog, PiecesThatDoNotFitTogetherAreCorruption) {
  const auto read = [](std::optional<ShardSpec> shard, DType dtype,
                       std::vector<std::uint64_t> shape) {
    auto store = NewTestStore();
    TestCheckpoint checkpoint;
    const std::string bytes(TensorBytes(dtype, shape).value(), 'x');
    checkpoint.Tensor(kFile1, "x", DType::kU8, {2}, "ab", ShardSpec{{4}, {0}})
        .Tensor(kFile2, "x", dtype, shape, bytes, shard);
    checkpoint.Write(store.get());
    auto open = checkpoint.Open(store.get()).value();
    return open->ReadCatalog(TensorGroup::kModel, "").status();
  };
  EXPECT_TRUE(read(ShardSpec{{4}, {2}}, DType::kU8, {2}).ok());
  EXPECT_TRUE(read(ShardSpec{{4}, {1}}, DType::kU8, {2}).Is(Code::kCorruption));
  EXPECT_TRUE(read(ShardSpec{{4}, {2}}, DType::kU8, {1}).Is(Code::kCorruption));
  EXPECT_TRUE(read(ShardSpec{{4}, {2}}, DType::kI8, {2}).Is(Code::kCorruption));
  EXPECT_TRUE(read(ShardSpec{{5}, {2}}, DType::kU8, {3}).Is(Code::kCorruption));
  EXPECT_TRUE(read(std::nullopt, DType::kU8, {4}).Is(Code::kCorruption));
}

TEST(ReadCatalog, AnyFlippedBitOfAHeaderIsCorruption) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kF32, {2}, std::string(8, 'w')).Write(store.get());
  for (std::uint64_t at = 0; at < kSafetensorsAlign; at += at < 200 ? 1 : 97) {
    FlipBit(store.get(), At(kFile1), at, static_cast<int>(at % 8));
    auto open = checkpoint.Open(store.get()).value();
    const auto model = open->ReadCatalog(TensorGroup::kModel, "");
    ASSERT_TRUE(model.status().Is(Code::kCorruption)) << at;
    ASSERT_THAT(model.status().ToString(), HasSubstr("rank_0-00001"));
    FlipBit(store.get(), At(kFile1), at, static_cast<int>(at % 8));
  }
}

TEST(ReadCatalog, SwappedFilesAreCorruption) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {4}, "abcd")
      .Tensor(kFile2, "v", DType::kU8, {4}, "efgh");
  checkpoint.Write(store.get());
  const std::string first = store->Get(At(kFile1), 1 << 20).value();
  const std::string second = store->Get(At(kFile2), 1 << 20).value();
  ASSERT_EQ(first.size(), second.size());
  ASSERT_TRUE(store->Put(At(kFile1), second).ok());
  ASSERT_TRUE(store->Put(At(kFile2), first).ok());
  auto open = checkpoint.Open(store.get()).value();
  EXPECT_TRUE(open->ReadCatalog(TensorGroup::kModel, "").status().Is(Code::kCorruption));
}

TEST(ReadCatalog, FileThatIsNoSafetensorsIsCorruption) {
  for (const std::string& bytes : {std::string(), std::string("short"), std::string(100, '\xff'),
                                   std::string("\x10\0\0\0\0\0\0\0{}", 10)}) {
    auto store = NewTestStore();
    TestCheckpoint checkpoint;
    checkpoint.File(kFile1, bytes).Write(store.get());
    auto open = checkpoint.Open(store.get()).value();
    const auto model = open->ReadCatalog(TensorGroup::kModel, "");
    EXPECT_TRUE(model.status().Is(Code::kCorruption));
    EXPECT_THAT(model.status().ToString(), HasSubstr("rank_0-00001"));
  }
}

// A file with so many names that the header takes more than two chunks.
TestCheckpoint ManyNames(int count) {
  TestCheckpoint checkpoint;
  for (int i = 0; i < count; ++i) {
    checkpoint.Tensor(kFile1, "layer/" + std::to_string(i) + "/" + std::string(40, 'n'), DType::kU8,
                      {1}, std::string(1, static_cast<char>(i)));
  }
  return checkpoint;
}

TEST(ReadCatalog, HeaderOfSeveralChunksIsReadAndCompared) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint = ManyNames(90'000);
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  const TensorMap model = open->ReadCatalog(TensorGroup::kModel, "").value();
  ASSERT_EQ(model.size(), 90'000u);
  const std::uint64_t header = model.begin()->second.pieces[0].file_offset;
  ASSERT_GT(header, 2 * kChunkBytes);
  FlipBit(store.get(), At(kFile1), 2 * kChunkBytes + 5);
  auto damaged = checkpoint.Open(store.get()).value();
  EXPECT_TRUE(damaged->ReadCatalog(TensorGroup::kModel, "").status().Is(Code::kCorruption));
}

TEST(FindModelTensor, FindsOneOfVeryMany) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint = ManyNames(90'000);
  checkpoint.Tensor(kFile2, "v", DType::kF32, {2}, "12345678").Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  const std::string name = "layer/77777/" + std::string(40, 'n');
  const StoredTensor found = open->FindModelTensor(name).value();
  const TensorMap model = open->ReadCatalog(TensorGroup::kModel, "").value();
  const StoredTensor& expected = model.at(name);
  EXPECT_EQ(found.dtype, expected.dtype);
  EXPECT_EQ(found.shape, expected.shape);
  ASSERT_EQ(found.pieces.size(), 1u);
  EXPECT_EQ(found.pieces[0].file, expected.pieces[0].file);
  EXPECT_EQ(found.pieces[0].file_offset, expected.pieces[0].file_offset);
  EXPECT_TRUE(open->FindModelTensor("none").status().Is(Code::kNotFound));

  // More names of one file than are looked for one by one.
  std::set<std::string, std::less<>> wanted = {"v", "none"};
  for (int i = 0; i < 10; ++i) {
    wanted.insert("layer/" + std::to_string(i * 1000) + "/" + std::string(40, 'n'));
  }
  std::uint64_t stored = 0;
  const TensorMap several = open->FindModelTensors(wanted, &stored).value();
  EXPECT_EQ(several.size(), 11u);
  EXPECT_EQ(stored, 90'001u);
}

TEST(FindModelTensor, FindsDistributedArraysAndNamesThatLookLikePieces) {
  for (const bool with_index : {true, false}) {
    auto store = NewTestStore();
    TestCheckpoint checkpoint;
    checkpoint.Tensor(kFile1, "x", DType::kU8, {2}, "ab", ShardSpec{{4}, {0}})
        .Tensor(kFile1, "y@1", DType::kU8, {1}, "y")
        .Tensor(kFile1, "quote\"\\/\n", DType::kU8, {1}, "q")
        .Tensor(kFile2, "x", DType::kU8, {2}, "cd", ShardSpec{{4}, {2}});
    checkpoint.Write(store.get(), with_index);
    auto open = checkpoint.Open(store.get()).value();
    EXPECT_EQ(open->FindModelTensor("x").value().pieces.size(), 2u);
    EXPECT_THAT(open->FindModelTensor("y@1").value().shape, ElementsAre(1));
    EXPECT_THAT(open->FindModelTensor("quote\"\\/\n").value().shape, ElementsAre(1));
    EXPECT_TRUE(open->FindModelTensor("y").status().Is(Code::kNotFound));
    EXPECT_TRUE(open->FindModelTensor("x@0").status().Is(Code::kNotFound));
  }
}

TEST(FindModelTensor, IndexThatContradictsTheFilesIsCorruption) {
  for (const std::string& index :
       {std::string(R"({"metadata":{"total_size":1},"weight_map":{"w":"none.safetensors"}})"),
        std::string(R"({"metadata":{},"weight_map":{"w":"rank_0-00001.safetensors"}})"),
        std::string(R"({"metadata":{},"weight_map":{"w":"rank_0-00001.safetensors")"),
        std::string(R"({"weight_map":{"w":1}})"), std::string("[]"), std::string()}) {
    auto store = NewTestStore();
    TestCheckpoint checkpoint;
    checkpoint.Tensor(kFile1, "other", DType::kU8, {1}, "y")
        .File(std::string(names::kIndex), index)
        .Write(store.get());
    auto open = checkpoint.Open(store.get()).value();
    EXPECT_TRUE(open->FindModelTensor("w").status().Is(Code::kCorruption)) << index;
  }
}

TEST(BuildIndex, NamesEveryTensorAndPiece) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "x", DType::kU8, {2}, "ab", ShardSpec{{4}, {0}})
      .Tensor(kFile1, "w", DType::kU8, {1}, "w")
      .Tensor(kFile2, "x", DType::kU8, {2}, "cd", ShardSpec{{4}, {2}});
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  const SafetensorsIndex index = open->BuildIndex().value();
  EXPECT_EQ(index.total_bytes, 5u);
  EXPECT_EQ(index.files.size(), 3u);
  EXPECT_EQ(index.files.at("x@2"), "rank_1-00001.safetensors");
  EXPECT_EQ(index.files.at("w"), "rank_0-00001.safetensors");
}

}  // namespace
}  // namespace cairn

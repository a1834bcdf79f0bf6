#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/test_transfer.h"
#include "checkpoint/transfer.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Three ranks that shared no directory.
class MergeTest : public TransferTest {
 protected:
  static constexpr int kRanks = 3;

  void SaveRank(int rank, std::int64_t step, const std::string& file = "", double replicated = 5) {
    const std::vector<float> shard = Numbers(100, 100.0 * rank + static_cast<double>(step));
    const std::vector<float> shared = Numbers(3000, replicated);
    const std::vector<float> own = Numbers(4, rank);
    Tensor rng = View("rng", own);
    rng.group = TensorGroup::kState;
    Tensor piece = View("table", shard);
    piece.shard = ShardSpec{{100 * kRanks}, {100ull * static_cast<unsigned>(rank)}};
    Tensor same = View("dense", shared);
    same.replicated = true;
    SaveRequest request{.step = step, .tensors = {piece, same, rng}};
    request.metrics = Value::Object{{"rank", rank}};
    if (!file.empty()) request.files = {{.name = "log.txt", .bytes = file}};
    request.files.push_back({.name = "config.json", .bytes = "{}"});
    Save(Rank(rank), request, {.rank = rank, .world_size = kRanks, .private_parts = true});
  }
  static std::string Rank(int rank) { return "rank" + std::to_string(rank); }
  MergeRequest Request() const {
    return {.parts = {Path("rank1"), Path("rank0"), Path("rank2")}, .target = Path("all")};
  }
};

TEST_F(MergeTest, APrivateRankSavesReplicatedTensorsToo) {
  SaveRank(1, 10);
  auto manager = CheckpointManager::Open({.directory = Path("rank1"),
                                          .rank = 1,
                                          .world_size = kRanks,
                                          .read_only = true,
                                          .private_parts = true});
  ASSERT_TRUE(manager.ok());
  std::vector<float> dense(3000);
  auto restored = (*manager)->Restore(
      {.into = {{.name = "dense", .shape = {3000}, .data = dense.data()}}, .strict = false});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(dense, Numbers(3000, 5));
}

TEST_F(MergeTest, MakesOneCheckpointOfTheNewestStepThatAllHave) {
  for (int rank = 0; rank < kRanks; ++rank) {
    SaveRank(rank, 10);
    SaveRank(rank, 20);
  }
  SaveRank(0, 30);
  SaveRank(2, 30);
  auto report = MergeCheckpoints(Request());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->info.step, 20);
  EXPECT_GT(report->deduplicated, 0u);
  EXPECT_EQ(*report->info.metrics.Find("rank"), Value(0));

  auto manager = Reader("all");
  const auto tensors = RestoreAll(manager.get());
  std::vector<float> table;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> part = Numbers(100, 100.0 * rank + 20);
    table.insert(table.end(), part.begin(), part.end());
  }
  EXPECT_EQ(tensors.at("table"), table);
  EXPECT_EQ(tensors.at("dense"), Numbers(3000, 5));
  EXPECT_EQ(tensors.at("rng"), Numbers(4, 0));
  // The other ranks find their own state.
  auto second = CheckpointManager::Open(
      {.directory = Path("all"), .rank = 2, .world_size = kRanks, .read_only = true});
  ASSERT_TRUE(second.ok());
  std::vector<float> rng(4);
  ASSERT_TRUE((*second)
                  ->Restore({.into = {{.name = "rng",
                                       .shape = {4},
                                       .data = rng.data(),
                                       .group = TensorGroup::kState}},
                             .strict = false})
                  .ok());
  EXPECT_EQ(rng, Numbers(4, 2));
  EXPECT_THAT(Verify(Path("all"), true)->problems, IsEmpty());

  auto again = MergeCheckpoints(Request());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_TRUE(again->already_there);
  EXPECT_EQ(again->info.id, report->info.id);
  // A later step goes into the same repository.
  SaveRank(1, 30);
  auto later = MergeCheckpoints(Request());
  ASSERT_TRUE(later.ok()) << later.status().ToString();
  EXPECT_EQ(later->info.step, 30);
  EXPECT_EQ(later->info.parent, report->info.id);
}

TEST_F(MergeTest, SaysWhichPartIsMissing) {
  SaveRank(0, 10);
  SaveRank(2, 10);
  auto no_rank = MergeCheckpoints({.parts = {Path("rank0"), Path("rank2")}, .target = Path("all")});
  EXPECT_EQ(no_rank.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(no_rank.status().message()), HasSubstr("the part of rank 1 is missing"));
  SaveRank(1, 20);
  auto no_step = MergeCheckpoints(Request());
  EXPECT_EQ(no_step.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(no_step.status().message()), HasSubstr("rank 1 has 20"));
  MergeRequest request = Request();
  request.step = 10;
  auto wanted = MergeCheckpoints(request);
  EXPECT_EQ(wanted.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(wanted.status().message()), HasSubstr("rank 1 for step 10"));
  auto twice = MergeCheckpoints(
      {.parts = {Path("rank0"), Path("rank0"), Path("rank2")}, .target = Path("all")});
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("both of rank 0"));
  EXPECT_FALSE(fs::exists(Path("all")));
}

TEST_F(MergeTest, RefusesPartsThatContradictOneAnother) {
  SaveRank(0, 10);
  SaveRank(1, 10);
  SaveRank(2, 10, "", /*replicated=*/6);
  auto differs = MergeCheckpoints(Request());
  EXPECT_EQ(differs.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(differs.status().message()),
              HasSubstr("rank_0 and rank_2 both saved the tensor \"dense\""));
  Save("plain", 10);
  auto plain = MergeCheckpoints({.parts = {Path("plain")}, .target = Path("all")});
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("private=True"));
}

TEST_F(MergeTest, FilesThatDifferAreKeptApartWhenAsked) {
  SaveRank(0, 10, "zero");
  SaveRank(1, 10, "one");
  SaveRank(2, 10, "one");
  EXPECT_EQ(MergeCheckpoints(Request()).status().code(), Code::kFailedPrecondition);
  MergeRequest request = Request();
  request.separate_files = true;
  auto report = MergeCheckpoints(request);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(Read(report->info.path + "/files/log.txt"), "zero");
  EXPECT_EQ(Read(report->info.path + "/files/rank_1/log.txt"), "one");
  EXPECT_EQ(Read(report->info.path + "/files/config.json"), "{}");
  EXPECT_THAT(report->renamed_files, ElementsAre("rank_1/log.txt", "rank_2/log.txt"));
}

TEST_F(MergeTest, ExportPutsTheRanksPiecesTogether) {
  for (int rank = 0; rank < kRanks; ++rank) SaveRank(rank, 10);
  auto merged = MergeCheckpoints(Request());
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  auto exported = ExportCheckpoint(merged->info.path, Path("out"));
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  EXPECT_EQ(ReadSafetensors(Path("out/model.safetensors")).at("table").size(), 300u);
  EXPECT_EQ(ReadSafetensors(Path("out/model.safetensors")).at("table")[250], 200.0f + 10 + 50);
}

}  // namespace
}  // namespace cairn

// compact, export, merge and diff of tables whose increments pack their keys and hold 8-bit rows:
// what they make is what a restore of the chain gives, bit for bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <cairn/table_checkpoint.h>
#include <cairn/transfer.h>

#include "format/safetensors.h"
#include "storage/local/temp_directory.h"
#include "table/test_table.h"

namespace cairn::table {
namespace {

using ::testing::SizeIs;

/// The dtype of the weights, the kind of increments.
class TableToolsTest : public ::testing::TestWithParam<std::tuple<DType, SaveKind>> {
 protected:
  static TableOptions Options(std::uint32_t begin = 0, std::uint32_t end = kTableShards) {
    TableOptions options = SmallOptions();
    options.dtype = std::get<0>(GetParam());
    options.shards = {begin, end};
    return options;
  }
  /// A full and three increments in a directory; rows come, change and go.
  CheckpointInfo SaveChain(const std::string& directory, const TableOptions& table_options,
                           int rank = 0, int ranks = 1) {
    const auto table = SmallTable(table_options);
    ManagerOptions options{.directory = directory};
    options.retention.keep_last = std::nullopt;
    options.rank = rank;
    options.world_size = ranks;
    options.private_parts = ranks > 1;
    auto manager = CheckpointManager::Open(options).value();
    TableCheckpoints checkpoints(manager.get(), {table.get()},
                                 {.quantize = true, .compress_keys = true});
    CheckpointInfo last;
    for (std::int64_t step = 1; step <= 4; ++step) {
      std::vector<std::int64_t> ids;
      std::vector<std::int64_t> gone;
      for (std::int64_t i = -300; i < 300; ++i) {
        if (!table_options.shards.Contains(TableShardOf(i * 7919))) continue;
        if (step == 1 || (i + step) % 3 == 0) ids.push_back(i * 7919);
        if (i % 17 == step) gone.push_back(i * 7919);
      }
      std::vector<float> gradients(ids.size() * table->options().dim);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] = 0.013F * static_cast<float>(1 + i % 29);
      }
      EXPECT_TRUE(table->ApplyGradients(ids, gradients).ok());
      EXPECT_TRUE(table->Erase(gone).ok());
      auto handle = checkpoints.Save({.step = step, .kind = step == 1 ? SaveKind::kFull : Kind()});
      EXPECT_TRUE(handle.ok()) << handle.status().ToString();
      auto info = handle->Wait();
      EXPECT_TRUE(info.ok()) << info.status().ToString();
      last = *info;
    }
    checkpoints.Wait();
    EXPECT_GT(checkpoints.quantization_error().max_abs, 0);
    EXPECT_TRUE(manager->Close().ok());
    return last;
  }
  /// What a restore of a checkpoint's directory gives.
  static Rows Loaded(const std::string& path) {
    const auto table = SmallTable(Options());
    TableFiller filler({table.get()});
    RestoreRequest request;
    request.path = path;
    request.tables = &filler;
    const auto restored = LoadCheckpoint(request);
    EXPECT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_TRUE(filler.Finish().ok());
    return RowsOf(table.get());
  }
  static SaveKind Kind() { return std::get<1>(GetParam()); }

  TempDirectory temp_;
};

TEST_P(TableToolsTest, CompactGivesTheBitsThatTheChainGives) {
  const std::string directory = temp_.path() + "/run";
  const std::string copied = temp_.path() + "/copy";
  const CheckpointInfo tip = SaveChain(directory, Options());
  CopyRequest copy;
  copy.source = directory;
  copy.target = copied;
  ASSERT_TRUE(CopyCheckpoints(copy).ok());
  const Rows expected = Loaded(tip.path);
  const auto compacted = CompactCheckpoint(directory);
  ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
  EXPECT_EQ(compacted->info.kind, "full");
  EXPECT_EQ(compacted->info.tables.at(0).rows, expected.size());
  EXPECT_EQ(Loaded(compacted->info.path), expected);

  const auto none = Diff(copied + "/increment_000004", compacted->info.path);
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_THAT(*none, SizeIs(0));
  const auto changes = Diff(copied + "/checkpoint_000001", copied + "/increment_000004");
  ASSERT_TRUE(changes.ok()) << changes.status().ToString();
  ASSERT_THAT(*changes, SizeIs(1));
  EXPECT_EQ((*changes)[0].what, "rows");
  EXPECT_GT((*changes)[0].rows_changed, 0u);
  EXPECT_GT((*changes)[0].rows_removed, 0u);
}

TEST_P(TableToolsTest, AnExportHasPlainKeysAndExactRows) {
  const CheckpointInfo tip = SaveChain(temp_.path() + "/run", Options());
  const Rows expected = Loaded(tip.path);
  const auto exported = ExportCheckpoint(tip.path, temp_.path() + "/out");
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  std::ifstream file(temp_.path() + "/out/__lookup_table__/rank_0.safetensors", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::uint64_t length = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size()).value();
  const auto header = DecodeSafetensorsHeader(bytes.substr(0, length), bytes.size()).value();
  std::map<std::string, TensorEntry> entries;
  for (const TensorEntry& entry : header.tensors) entries[entry.name] = entry;
  EXPECT_FALSE(entries.contains("t/keys_zstd"));
  EXPECT_FALSE(entries.contains("t/values_scale"));
  EXPECT_EQ(entries.at("t/values").dtype, std::get<0>(GetParam()));
  const TensorEntry& keys = entries.at("t/keys");
  const TensorEntry& slots = entries.at("t/slot/accumulator");
  ASSERT_EQ(keys.shape[0], expected.size());
  for (std::uint64_t i = 0; i < keys.shape[0]; ++i) {
    std::int64_t key = 0;
    std::vector<float> row(slots.shape[1]);
    std::memcpy(&key, bytes.data() + header.data_offset + keys.begin + i * 8, 8);
    std::memcpy(row.data(), bytes.data() + header.data_offset + slots.begin + i * row.size() * 4,
                row.size() * 4);
    EXPECT_EQ(row, expected.at(key).slots);
  }
}

TEST_P(TableToolsTest, MergePutsTheChainsOfAllRanksTogether) {
  const std::vector<std::string> parts = {temp_.path() + "/a", temp_.path() + "/b"};
  Rows expected;
  for (int rank = 0; rank < 2; ++rank) {
    const std::uint32_t half = kTableShards / 2;
    const std::uint32_t begin = rank == 0 ? 0 : half;
    const CheckpointInfo tip =
        SaveChain(parts[static_cast<std::size_t>(rank)], Options(begin, begin + half), rank, 2);
    for (const auto& [key, row] : Loaded(tip.path)) expected.emplace(key, row);
  }
  MergeRequest request;
  request.parts = parts;
  request.target = temp_.path() + "/merged";
  const auto merged = MergeCheckpoints(request);
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  EXPECT_EQ(merged->info.kind, "full");
  EXPECT_EQ(Loaded(merged->info.path), expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, TableToolsTest,
    ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16),
                       ::testing::Values(SaveKind::kConsecutive, SaveKind::kCumulative)),
    [](const auto& info) {
      return std::string(DTypeName(std::get<0>(info.param))) +
             (std::get<1>(info.param) == SaveKind::kConsecutive ? "Consecutive" : "Cumulative");
    });

}  // namespace
}  // namespace cairn::table

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "table/test_table.h"

namespace cairn::table {
namespace {

StoredTable SomeFull(std::int64_t rows = 500) {
  auto table = SmallTable();
  Push(table.get(), Range(0, rows));
  return SaveCut(table.get(), CutKind::kFull);
}

template <typename T>
void Set(StoredTable* stored, const std::string& column, std::size_t i, T value) {
  std::memcpy(stored->bytes[column].data() + i * sizeof(T), &value, sizeof(T));
}

TEST(TableLoader, ClearsTheTableFirst) {
  auto table = SmallTable();
  Push(table.get(), Range(10'000, 10'100));
  ASSERT_TRUE(LoadChain(table.get(), {{SomeFull()}}).ok());
  EXPECT_EQ(table->size(), 500u);
}

TEST(TableLoader, MergesWhenAskedAndThenNeedsANewBase) {
  auto table = SmallTable();
  Push(table.get(), Range(400, 600), 0.9F);
  const Rows before = RowsOf(table.get());
  ASSERT_TRUE(LoadChain(table.get(), {{SomeFull()}}, /*merge=*/true).ok());
  const Rows after = RowsOf(table.get());
  EXPECT_EQ(after.size(), 600u);
  EXPECT_EQ(after.at(550), before.at(550));
  EXPECT_NE(after.at(450), before.at(450));
  EXPECT_FALSE(table->has_base());
  SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), {1});
  EXPECT_EQ(SaveCut(table.get(), CutKind::kCumulative).rows, 1u);
}

TEST(TableLoader, ReplayingAnIncrementChangesNothing) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 100));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), Range(50, 150));
  ASSERT_TRUE(table->Erase(Range(0, 10)).ok());
  const StoredTable increment = SaveCut(table.get(), CutKind::kConsecutive);
  auto again = SmallTable();
  ASSERT_TRUE(LoadChain(again.get(), {{full}, {increment}, {increment}}).ok());
  EXPECT_EQ(RowsOf(again.get()), RowsOf(table.get()));
  EXPECT_EQ(again->ChangedRows(CutKind::kCumulative), 110u);
  EXPECT_EQ(again->ChangedRows(CutKind::kConsecutive), 0u);
}

TEST(TableLoader, AnotherNumberOfPartitionsReadsOnlyWhatItOwns) {
  auto whole = SmallTable();
  Push(whole.get(), Range(0, 3000));
  const StoredTable full = SaveCut(whole.get(), CutKind::kFull);
  // Into three parts …
  std::vector<std::unique_ptr<Table>> parts;
  std::vector<StoredTable> stored;
  Rows together;
  for (const ShardRange range : {ShardRange{0, 300}, ShardRange{300, 301}, ShardRange{301, 1024}}) {
    auto options = SmallOptions();
    options.shards = range;
    parts.push_back(SmallTable(options));
    ASSERT_TRUE(LoadChain(parts.back().get(), {{full}}).ok());
    for (const auto& [key, row] : RowsOf(parts.back().get())) {
      EXPECT_TRUE(range.Contains(TableShardOf(key)));
      together[key] = row;
    }
    stored.push_back(SaveCut(parts.back().get(), CutKind::kFull));
  }
  EXPECT_EQ(together, RowsOf(whole.get()));
  // … and from three into two.
  Rows again;
  for (const ShardRange range : {ShardRange{0, 512}, ShardRange{512, 1024}}) {
    auto options = SmallOptions();
    options.shards = range;
    auto half = SmallTable(options);
    ASSERT_TRUE(LoadChain(half.get(), {stored}).ok());
    for (const auto& [key, row] : RowsOf(half.get())) again[key] = row;
  }
  EXPECT_EQ(again, RowsOf(whole.get()));
}

TEST(TableLoader, BlocksMayComeFromSeveralThreads) {
  auto source = SmallTable();
  Push(source.get(), Range(0, 20'000));
  const StoredTable full = SaveCut(source.get(), CutKind::kFull);
  auto table = SmallTable();
  auto loader = TableLoader::Begin(table.get(), {}).value();
  ASSERT_TRUE(loader->BeginCheckpoint(CutKind::kFull).ok());
  auto part = loader->BeginPart(full.columns, full.Get<std::int64_t>("shard_offsets")).value();
  const auto keys = full.Keys();
  const auto frequency = full.Get<std::int64_t>("frequency");
  const auto version = full.Get<std::int64_t>("version");
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      constexpr std::size_t kBlock = 333;
      for (std::size_t at; (at = next.fetch_add(kBlock)) < keys.size();) {
        const std::size_t n = std::min(kBlock, keys.size() - at);
        const auto slice = [&](const std::string& name) {
          return std::span<const std::byte>(full.bytes.at(name)).subspan(at * 16, n * 16);
        };
        RowBlock block;
        block.first = at;
        block.keys = std::span(keys).subspan(at, n);
        block.frequency = std::span(frequency).subspan(at, n);
        block.version = std::span(version).subspan(at, n);
        block.values = slice("values");
        block.slots = {slice("slot/accumulator")};
        EXPECT_TRUE(part->AddRows(block).ok());
      }
    });
  }
  threads.clear();
  ASSERT_TRUE(loader->Finish().ok());
  EXPECT_EQ(RowsOf(table.get()), RowsOf(source.get()));
}

TEST(TableLoader, AnotherShapeDtypeOrOptimizerIsAMismatchThatNamesIt) {
  const StoredTable full = SomeFull();
  const auto refused = [&](auto change) {
    TableOptions options = SmallOptions();
    change(&options);
    auto table = SmallTable(options);
    const Status status = LoadChain(table.get(), {{full}});
    EXPECT_EQ(status.reason(), Reason::kMismatch) << status.ToString();
    EXPECT_EQ(table->size(), 0u);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto* o) { o->dim = 8; }),
              testing::HasSubstr("values: stored F32 [500,4], wanted F32 [500,8]"));
  EXPECT_THAT(refused([](auto* o) { o->dtype = DType::kBF16; }), testing::HasSubstr("wanted BF16"));
  EXPECT_THAT(refused([](auto* o) { o->optimizer = MakeAdam({}).value(); }),
              testing::AllOf(testing::HasSubstr("slot/m: not stored"),
                             testing::HasSubstr("slot/accumulator: stored, but")));
  EXPECT_THAT(refused([](auto* o) { o->optimizer = MakeSgd({}).value(); }),
              testing::HasSubstr("sgd has no such slot"));
}

TEST(TableLoader, DamagedColumnsAreCorruptionAndLeaveTheTableEmpty) {
  const StoredTable good = SomeFull();
  const auto offsets = good.Get<std::int64_t>("shard_offsets");
  std::size_t filled = 0;  // a shard with rows
  while (offsets[filled + 1] == offsets[filled]) ++filled;
  const auto corrupt = [&](auto damage) {
    StoredTable stored = good;
    damage(&stored);
    auto table = SmallTable();
    const Status status = LoadChain(table.get(), {{stored}});
    EXPECT_TRUE(status.Is(Code::kCorruption)) << status.ToString();
    EXPECT_EQ(table->size(), 0u);
    Push(table.get(), {1});  // usable
    return std::string(status.message());
  };
  EXPECT_THAT(corrupt([](auto* s) { Set<std::int64_t>(s, "shard_offsets", 0, 1); }),
              testing::HasSubstr("begin with 0"));
  EXPECT_THAT(corrupt([](auto* s) { Set<std::int64_t>(s, "shard_offsets", 500, -5); }),
              testing::HasSubstr("falls"));
  EXPECT_THAT(corrupt([](auto* s) { Set<std::int64_t>(s, "shard_offsets", 500, 1LL << 50); }),
              testing::HasSubstr("rows"));
  EXPECT_THAT(corrupt([](auto* s) { s->bytes["shard_offsets"].resize(80); }),
              testing::HasSubstr("10 entries"));
  EXPECT_THAT(corrupt([](auto* s) { Set<std::int64_t>(s, "keys", 7, 123456789); }),
              testing::HasSubstr("belongs to shard"));
  EXPECT_THAT(corrupt([](auto* s) { Set<std::int64_t>(s, "frequency", 7, -1); }),
              testing::HasSubstr("frequency of -1"));
}

TEST(TableLoader, AKeyTwiceInAFullIsCorruption) {
  StoredTable stored = SomeFull(3000);
  const auto offsets = stored.Get<std::int64_t>("shard_offsets");
  for (std::size_t s = 0; s < kTableShards; ++s) {
    if (offsets[s + 1] - offsets[s] < 2) continue;
    const auto first = static_cast<std::size_t>(offsets[s]);
    Set<std::int64_t>(&stored, "keys", first + 1, stored.Keys()[first]);
    break;
  }
  auto table = SmallTable();
  EXPECT_TRUE(LoadChain(table.get(), {{stored}}).Is(Code::kCorruption));
}

TEST(TableLoader, PendingCountsOutOfRangeAreCorruption) {
  auto table = SmallTable();
  auto loader = TableLoader::Begin(table.get(), {}).value();
  ASSERT_TRUE(loader->BeginCheckpoint(CutKind::kFull).ok());
  const std::vector<std::int64_t> key = {1};
  EXPECT_TRUE(loader->AddPending(key, std::vector<std::int64_t>{0}, {}).Is(Code::kCorruption));
  EXPECT_TRUE(loader->AddPending(key, {}, {}).Is(Code::kCorruption));
  EXPECT_TRUE(loader->Finish().Is(Code::kFailedPrecondition));
}

TEST(TableLoader, BlocksOutsideOfThePartOrOfUnequalLengthAreRefused) {
  const StoredTable full = SomeFull(10);
  auto table = SmallTable();
  auto loader = TableLoader::Begin(table.get(), {}).value();
  ASSERT_TRUE(loader->BeginCheckpoint(CutKind::kFull).ok());
  auto part = loader->BeginPart(full.columns, full.Get<std::int64_t>("shard_offsets")).value();
  const std::vector<std::int64_t> two = {1, 2};
  RowBlock block;
  block.first = 9;
  block.keys = two;
  EXPECT_TRUE(part->AddRows(block).Is(Code::kInvalidArgument));
  block.first = ~std::uint64_t{0};
  EXPECT_TRUE(part->AddRows(block).Is(Code::kInvalidArgument));
  block.first = 0;
  EXPECT_TRUE(part->AddRows(block).Is(Code::kInvalidArgument));
}

TEST(TableLoader, TheOrderOfAChainIsChecked) {
  auto table = SmallTable();
  auto loader = TableLoader::Begin(table.get(), {}).value();
  EXPECT_TRUE(loader->BeginPart({}, {}).status().Is(Code::kFailedPrecondition));
  EXPECT_TRUE(loader->BeginCheckpoint(CutKind::kCumulative).Is(Code::kFailedPrecondition));
  ASSERT_TRUE(loader->BeginCheckpoint(CutKind::kFull).ok());
  EXPECT_TRUE(loader->BeginCheckpoint(CutKind::kFull).Is(Code::kFailedPrecondition));
}

TEST(TableLoader, NobodyElseUsesTheTableMeanwhile) {
  auto table = SmallTable();
  Push(table.get(), {1});
  auto loader = TableLoader::Begin(table.get(), {}).value();
  std::vector<float> out(4);
  EXPECT_TRUE(table->Lookup(std::vector<std::int64_t>{1}, out).Is(Code::kFailedPrecondition));
  EXPECT_TRUE(TableLoader::Begin(table.get(), {}).status().Is(Code::kFailedPrecondition));
  loader = nullptr;  // given up: empty
  EXPECT_EQ(table->size(), 0u);
  EXPECT_TRUE(table->Lookup(std::vector<std::int64_t>{1}, out).ok());
}

TEST(TableLoader, ATableWithAnOpenCutIsNotLoaded) {
  auto table = SmallTable();
  auto cut = CutOf(table.get(), CutKind::kFull);
  EXPECT_TRUE(TableLoader::Begin(table.get(), {}).status().Is(Code::kFailedPrecondition));
}

}  // namespace
}  // namespace cairn::table

// How rows are handed out: in blocks, by shards, each chunk compared and read once. Tables of
// several chunks.

#include "checkpoint/table_restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manager.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/test_table.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 260'000;  // three chunks

TestTable LargeTable(std::uint64_t content) {
  TestTable table;
  for (std::int64_t key = 0; key < kRows; ++key) {
    table.rows[key * 7 - kRows] = key % 3 == 0 ? content : 1;
  }
  return table;
}

class TableRestoreTest : public testing::Test {
 protected:
  TableRestoreTest() : store_(MemoryStore::Open({}).value()) {
    Environment env;
    env.store = store_;
    ManagerOptions options;
    options.retention.keep_last.reset();
    manager_ = OpenManager(options, env).value();
  }

  CheckpointInfo Save(std::int64_t step, const TestTable::Changes& changes, SaveKind kind) {
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.blocking = true;
    std::deque<std::string> memory;
    AddTestTable("t", changes, &request, &memory);
    auto handle = manager_->Save(std::move(request));
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    return handle->Wait().value();
  }
  std::string TableFile(const CheckpointInfo& info) {
    return info.path.substr(store_->Describe().size() + 1) + "/__lookup_table__/rank_0.safetensors";
  }
  std::unique_ptr<OpenCheckpoint> OpenOne(const CheckpointInfo& info) {
    RepositoryReader reader(store_.get());
    const std::string directory = info.path.substr(store_->Describe().size() + 1);
    return OpenCheckpoint::Open(
               store_.get(), directory,
               std::make_shared<const Manifest>(reader.ReadManifest(directory).value()))
        .value();
  }

  std::shared_ptr<MemoryStore> store_;
  std::unique_ptr<CheckpointManager> manager_;
};

TEST_F(TableRestoreTest, BlocksOfAnySizeGiveTheSameRows) {
  const TestTable table = LargeTable(5);
  const auto open = OpenOne(Save(1, table.All(), SaveKind::kFull));
  for (const std::uint64_t block : {std::uint64_t{1} << 16, std::uint64_t{3} << 20}) {
    TestTableSink sink;
    TableRestore restore(store_.get(), {open.get()}, &sink, {.block_bytes = block});
    ASSERT_TRUE(restore.Start().ok());
    ASSERT_TRUE(restore.Verify().ok());
    EXPECT_EQ(sink.blocks, 0u);
    const Status read = restore.Read();
    ASSERT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(sink.broken, "");
    EXPECT_EQ(sink.rows_given, static_cast<std::uint64_t>(kRows));
    EXPECT_EQ(sink.tables["t"], table);
    EXPECT_GE(sink.blocks, restore.bytes() / block);
  }
}

TEST_F(TableRestoreTest, EveryChunkIsReadOnceHoweverManyBlocksItIsIn) {
  const auto open = OpenOne(Save(1, LargeTable(5).All(), SaveKind::kFull));
  TestTableSink sink;
  TableRestore restore(store_.get(), {open.get()}, &sink, {.block_bytes = 1u << 18});
  ASSERT_TRUE(restore.Start().ok());
  std::uint64_t reads = 0;
  store_->SetHook([&](const StoreOp& op) { reads += op.kind == StoreOp::Kind::kRead ? 1 : 0; });
  ASSERT_TRUE(restore.Read().ok());
  store_->SetHook(nullptr);
  // Columns meet in a chunk, which is read for each of them.
  EXPECT_LE(reads, 3u + 4u) << "of three chunks and four columns";
  EXPECT_EQ(sink.rows_given, static_cast<std::uint64_t>(kRows));
}

TestTable TableOf(std::int64_t rows, std::uint64_t content) {
  TestTable table;
  for (std::int64_t key = 0; key < rows; ++key) table.rows[key * 7 - rows] = content;
  return table;
}

TEST_F(TableRestoreTest, ALeanRestoreGivesTheSameRowsInOneReadOfWhatIsSmall) {
  // Less than is worth keeping, one chunk, and several.
  std::int64_t step = 0;
  for (const std::int64_t rows : {100, 40'000, 260'000}) {
    SCOPED_TRACE(rows);
    TestTable table = TableOf(rows, 5);
    table.pending[1] = 3;
    const auto open = OpenOne(Save(++step, table.All(), SaveKind::kFull));
    TestTableSink sink;
    TableRestore restore(store_.get(), {open.get()}, &sink,
                         {.block_bytes = 1u << 18, .lean = true});
    ASSERT_TRUE(restore.Start().ok());
    std::uint64_t reads = 0;
    store_->SetHook([&](const StoreOp& op) { reads += op.kind == StoreOp::Kind::kRead ? 1 : 0; });
    const Status read = restore.Read();
    store_->SetHook(nullptr);
    ASSERT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(sink.broken, "");
    EXPECT_EQ(sink.tables["t"], table);
    if (rows == 40'000) {
      EXPECT_EQ(reads, 0u) << "all came with the header";
    }
    const std::ptrdiff_t file = open->FindFile("__lookup_table__/rank_0.safetensors");
    ASSERT_GE(file, 0);
    EXPECT_TRUE(open->FirstChunk(static_cast<std::size_t>(file)).empty()) << "nothing stays";
    TestTableSink again;
    TableRestore once_more(store_.get(), {open.get()}, &again, {});
    ASSERT_TRUE(once_more.Start().ok());
    ASSERT_TRUE(once_more.Read().ok()) << "and nothing is missing";
    EXPECT_EQ(again.tables["t"], table);
  }
}

/// Takes keys and values, and looks that there is nothing else.
class KeysAndValues final : public TableSink {
 public:
  static bool Wants(const TableColumn& column) {
    return column.name == "keys" || column.name == "values";
  }
  Status Start(std::vector<TablePart>*) override { return Status::Ok(); }
  Status Block(const TablePart& part, const TableBlock& block) override {
    for (std::size_t i = 0; i < part.columns.size(); ++i) {
      const bool given = part.columns[i].group == block.group && Wants(part.columns[i]);
      const std::uint64_t expected = given ? block.count * part.columns[i].entry_bytes : 0;
      EXPECT_EQ(block.columns[i].size(), expected) << part.columns[i].name;
      bytes += block.columns[i].size();
    }
    return Status::Ok();
  }
  std::uint64_t bytes = 0;
};

TEST_F(TableRestoreTest, ColumnsThatNobodyWantsAreComparedAndNotHandedOut) {
  std::int64_t step = 0;
  for (const std::int64_t rows : {100, 40'000, 260'000}) {
    for (const bool lean : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + (lean ? ", lean" : ""));
      // Of equal bytes there would be no second file.
      const std::uint64_t content = lean ? 6 : 5;
      const CheckpointInfo info = Save(++step, TableOf(rows, content).All(), SaveKind::kFull);
      const auto read = [&](std::uint64_t* bytes) -> Status {
        const auto open = OpenOne(info);
        KeysAndValues sink;
        TableRestore restore(
            store_.get(), {open.get()}, &sink,
            {.block_bytes = 1u << 18, .wants = KeysAndValues::Wants, .lean = lean});
        if (Status start = restore.Start(); !start.ok()) return start;
        const Status status = restore.Read();
        *bytes = sink.bytes;
        return status;
      };
      std::uint64_t bytes = 0;
      const Status status = read(&bytes);
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(bytes, static_cast<std::uint64_t>(rows) * (8 + 8 * TestTable::kDim));
      const std::string file = TableFile(info);
      const std::uint64_t file_bytes = store_->Stat(file)->bytes;
      for (std::uint64_t tenth = 1; tenth < 10; ++tenth) {
        FlipBit(store_.get(), file, file_bytes * tenth / 10);
        EXPECT_TRUE(read(&bytes).Is(Code::kCorruption)) << "a flip at " << tenth << " tenths";
        FlipBit(store_.get(), file, file_bytes * tenth / 10);
      }
    }
  }
}

TEST_F(TableRestoreTest, DamageInTheMiddleMakesTheSinkStartOverWithAnOlderOne) {
  const TestTable old = LargeTable(5);
  const CheckpointInfo first = Save(1, old.All(), SaveKind::kFull);
  const CheckpointInfo second = Save(2, LargeTable(6).All(), SaveKind::kFull);
  Save(3, LargeTable(7).Since(LargeTable(6)), SaveKind::kCumulative);
  FlipBit(store_.get(), TableFile(second), store_->Stat(TableFile(second))->bytes / 2);
  TestTableSink sink;
  auto restored = manager_->Restore({.tables = &sink});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.id, first.id);
  EXPECT_EQ((*restored)->fallbacks.size(), 2u);
  EXPECT_EQ(sink.starts, 3);
  EXPECT_EQ(sink.tables["t"], old);
}

TEST_F(TableRestoreTest, RowsOfOneShardTakeNoMoreThanTheirChunks) {
  const auto open = OpenOne(Save(1, LargeTable(5).All(), SaveKind::kFull));
  TestTableSink sink;
  sink.only = {{7, 8}};
  TableRestore restore(store_.get(), {open.get()}, &sink, {});
  ASSERT_TRUE(restore.Start().ok());
  std::uint64_t reads = 0;
  store_->SetHook([&](const StoreOp& op) { reads += op.kind == StoreOp::Kind::kRead ? 1 : 0; });
  ASSERT_TRUE(restore.Read().ok());
  store_->SetHook(nullptr);
  EXPECT_LE(reads, 4u);
  for (const auto& [key, content] : sink.tables["t"].rows) {
    ASSERT_EQ(TestTable::ShardOf(key), 7u);
  }
  EXPECT_EQ(sink.tables["t"].rows.size(), sink.rows_given);
  EXPECT_GT(sink.rows_given, 0u);
}

TEST_F(TableRestoreTest, ShardsThatDoNotExistAreRefused) {
  const auto open = OpenOne(Save(1, LargeTable(5).All(), SaveKind::kFull));
  for (const std::vector<ShardSpan>& wrong :
       {std::vector<ShardSpan>{{3, 17}}, {{4, 4}}, {{4, 6}, {5, 7}}}) {
    TestTableSink sink;
    sink.only = wrong;
    TableRestore restore(store_.get(), {open.get()}, &sink, {});
    EXPECT_TRUE(restore.Start().Is(Code::kInvalidArgument));
  }
}

TEST_F(TableRestoreTest, CancellingEndsItBetweenBlocks) {
  const auto open = OpenOne(Save(1, LargeTable(5).All(), SaveKind::kFull));
  TestTableSink sink;
  TableRestore restore(
      store_.get(), {open.get()}, &sink,
      {.progress = {}, .cancelled = [&] { return sink.blocks >= 2; }, .block_bytes = 1u << 20});
  ASSERT_TRUE(restore.Start().ok());
  EXPECT_TRUE(restore.Read().Is(Code::kCancelled));
  EXPECT_LE(sink.blocks, 3u);
}

/// Tables as a tool, or damage that the checksums do not show, could leave them.
class StoredTablesTest : public testing::Test {
 protected:
  StoredTablesTest() : store_(NewTestStore()) {
    test_.manifest().tables = {{"t", 2, DType::kF32, 3, 0}};
  }
  void Keys(std::uint64_t n) {
    std::vector<std::int64_t> keys(n, 4);
    test_.Tensor(kFile, "t/keys", DType::kI64, {n}, BytesOf(keys));
  }
  Status Read() {
    test_.Write(store_.get());
    auto open = test_.Open(store_.get());
    if (!open.ok()) return open.status();
    return ReadTables(store_.get(), open->get(), 0).status();
  }
  void Expect(const std::string& words) {
    const Status status = Read();
    EXPECT_TRUE(status.Is(Code::kCorruption)) << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  const std::string kFile = "__lookup_table__/rank_0.safetensors";
  std::unique_ptr<MemoryStore> store_;
  TestCheckpoint test_;
};

TEST_F(StoredTablesTest, ColumnsOfUnequalLengthsAreDamage) {
  Keys(3);
  test_.Tensor(kFile, "t/values", DType::kF32, {4, 2}, std::string(32, 'x'));
  Expect("keys and values have 3 and 4 entries");
}

TEST_F(StoredTablesTest, RowsWithoutKeysAreDamage) {
  test_.Tensor(kFile, "t/values", DType::kF32, {4, 2}, std::string(32, 'x'));
  Expect("has no keys");
}

TEST_F(StoredTablesTest, KeysThatAreNoIntegersAreDamage) {
  test_.Tensor(kFile, "t/keys", DType::kF64, {3}, std::string(24, 'x'));
  Expect("int64");
}

TEST_F(StoredTablesTest, ShardOffsetsThatDoNotFitTheRowsAreDamage) {
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 2, 4}, {1, 2, 3}, {0, 3, 2, 3}, {0, -1, 3}}) {
    test_ = TestCheckpoint();
    test_.manifest().tables = {{"t", 2, DType::kF32, 3, 0}};
    Keys(3);
    test_.Tensor(kFile, "t/shard_offsets", DType::kI64, {offsets.size()}, BytesOf(offsets));
    Expect("shard_offsets");
  }
}

TEST_F(StoredTablesTest, TensorsOfNoTableAreLeftAlone) {
  Keys(3);
  test_.Tensor(kFile, "other/keys", DType::kF64, {3}, std::string(24, 'x'));
  EXPECT_TRUE(Read().ok());
}

}  // namespace
}  // namespace cairn

#include <cairn/table_restore.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "table/test_table.h"

namespace cairn::table {
namespace {

TableGroup GroupOf(const std::string& name) {
  if (name == "deleted") return TableGroup::kDeleted;
  if (name.starts_with("pending_")) return TableGroup::kPending;
  if (name.ends_with("_zstd")) return TableGroup::kPacked;
  return TableGroup::kRows;
}

/// A stored cut as the engine hands it out.
TablePart PartOf(const StoredTable& stored, const std::string& name, std::size_t position) {
  TablePart part;
  part.table = name;
  part.position = position;
  part.increment = stored.kind != CutKind::kFull;
  part.rows = stored.rows;
  part.shard_offsets = stored.Get<std::int64_t>("shard_offsets");
  for (const StoredColumn& column : stored.columns) {
    if (column.name == "shard_offsets") continue;
    TableColumn out;
    out.name = column.name;
    out.group = GroupOf(column.name);
    out.dtype = column.dtype;
    out.entry_shape.assign(column.shape.begin() + 1, column.shape.end());
    out.entry_bytes = static_cast<std::uint64_t>(DTypeBits(column.dtype)) / 8;
    for (const std::uint64_t d : out.entry_shape) out.entry_bytes *= d;
    if (out.group == TableGroup::kDeleted) part.deleted = column.shape[0];
    if (out.group == TableGroup::kPending) part.pending = column.shape[0];
    part.columns.push_back(std::move(out));
  }
  part.wanted = {{0, part.shards()}};
  return part;
}

Status Hand(TableSink* sink, const TablePart& part, const StoredTable& stored, TableGroup group,
            std::uint64_t first, std::uint64_t count) {
  std::vector<std::span<const std::byte>> columns;
  for (const TableColumn& column : part.columns) {
    columns.push_back(column.group != group
                          ? std::span<const std::byte>()
                          : std::span(stored.bytes.at(column.name))
                                .subspan(first * column.entry_bytes, count * column.entry_bytes));
  }
  return sink->Block(part, {group, first, count, columns});
}

/// Does what the engine does with a restore point.
Status Restore(TableSink* sink, const std::vector<StoredTable>& chain,
               const std::string& name = "t") {
  std::vector<TablePart> parts;
  for (std::size_t i = 0; i < chain.size(); ++i) parts.push_back(PartOf(chain[i], name, i));
  if (Status s = sink->Start(&parts); !s.ok()) return s;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const TablePart& part = parts[i];
    if (Status s = sink->Begin(part); !s.ok()) return s;
    if (chain[i].bytes.contains("keys_zstd")) {
      const std::uint64_t bytes = chain[i].bytes.at("keys_zstd").size();
      for (std::uint64_t at = 0; at < bytes; at += 1000) {
        const std::uint64_t n = std::min<std::uint64_t>(1000, bytes - at);
        if (Status s = Hand(sink, part, chain[i], TableGroup::kPacked, at, n); !s.ok()) return s;
      }
    }
    if (part.deleted > 0) {
      const Status s = Hand(sink, part, chain[i], TableGroup::kDeleted, 0, part.deleted);
      if (!s.ok()) return s;
    }
    for (const ShardSpan& span : part.wanted) {
      const auto first = static_cast<std::uint64_t>(part.shard_offsets[span.begin]);
      const auto last = static_cast<std::uint64_t>(part.shard_offsets[span.end]);
      for (std::uint64_t at = first; at < last; at += 77) {
        const std::uint64_t n = std::min<std::uint64_t>(77, last - at);
        if (Status s = Hand(sink, part, chain[i], TableGroup::kRows, at, n); !s.ok()) return s;
      }
    }
    if (part.pending > 0) {
      const Status s = Hand(sink, part, chain[i], TableGroup::kPending, 0, part.pending);
      if (!s.ok()) return s;
    }
    if (Status s = sink->End(part); !s.ok()) return s;
  }
  return Status::Ok();
}

struct Chain {
  std::unique_ptr<Table> table;
  std::vector<StoredTable> stored;
};

Chain MakeChain(CutRequest request = {}) {
  Chain chain;
  auto options = SmallOptions();
  options.admission = AdmissionOptions{2};
  chain.table = SmallTable(options);
  std::vector<float> out(4000);
  EXPECT_TRUE(chain.table->Lookup(Range(0, 1000), out).ok());
  EXPECT_TRUE(chain.table->Lookup(Range(0, 900), std::span(out).first(3600)).ok());
  chain.stored.push_back(SaveCut(chain.table.get(), CutKind::kFull, request));
  Push(chain.table.get(), Range(100, 300));
  EXPECT_TRUE(chain.table->Erase(Range(0, 50)).ok());
  chain.stored.push_back(SaveCut(chain.table.get(), CutKind::kConsecutive, request));
  return chain;
}

TEST(TableRestore, BringsBackAChain) {
  for (const bool compress : {false, true}) {
    const Chain chain = MakeChain({.compress_keys = compress});
    auto options = chain.table->options();
    options.gate = std::make_shared<CutGate>();
    auto table = SmallTable(options);
    TableRestore sink({table.get()});
    const Status restored = Restore(&sink, chain.stored);
    ASSERT_TRUE(restored.ok()) << restored.ToString();
    ASSERT_TRUE(sink.Finish().ok());
    EXPECT_EQ(RowsOf(table.get()), RowsOf(chain.table.get()));
    EXPECT_EQ(table->pending_size(), chain.table->pending_size());
    EXPECT_TRUE(table->has_base());
  }
}

TEST(TableRestore, ReadsOnlyTheShardsThatATableOwns) {
  const Chain chain = MakeChain();
  auto options = chain.table->options();
  options.gate = std::make_shared<CutGate>();
  options.shards = {100, 400};
  auto table = SmallTable(options);
  TableRestore sink({table.get()});
  ASSERT_TRUE(Restore(&sink, chain.stored).ok());
  ASSERT_TRUE(sink.Finish().ok());
  Rows wanted = RowsOf(chain.table.get());
  std::erase_if(wanted,
                [&](const auto& row) { return !options.shards.Contains(TableShardOf(row.first)); });
  EXPECT_EQ(RowsOf(table.get()), wanted);
}

TEST(TableRestore, BeginsAnewWhenARestorePointIsDamaged) {
  const Chain chain = MakeChain();
  auto options = chain.table->options();
  options.gate = std::make_shared<CutGate>();
  auto table = SmallTable(options);
  TableRestore sink({table.get()});
  std::vector<TablePart> parts = {PartOf(chain.stored[0], "t", 0)};
  ASSERT_TRUE(sink.Start(&parts).ok());
  ASSERT_TRUE(sink.Begin(parts[0]).ok());
  ASSERT_TRUE(Hand(&sink, parts[0], chain.stored[0], TableGroup::kRows, 0, 10).ok());
  ASSERT_TRUE(Restore(&sink, chain.stored).ok());
  ASSERT_TRUE(sink.Finish().ok());
  EXPECT_EQ(RowsOf(table.get()), RowsOf(chain.table.get()));
}

TEST(TableRestore, RefusesWhatDoesNotFitBeforeAnythingChanges) {
  const Chain chain = MakeChain();
  auto options = SmallOptions(8);
  auto table = SmallTable(options);
  Push(table.get(), {1});
  TableRestore wrong_dim({table.get()});
  const Status mismatch = Restore(&wrong_dim, chain.stored);
  EXPECT_EQ(mismatch.reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(mismatch.message()), testing::HasSubstr("wanted F32 [900,8]"));
  TableRestore wrong_name({table.get()});
  const Status missing = Restore(&wrong_name, chain.stored, "other");
  EXPECT_THAT(std::string(missing.message()),
              testing::AllOf(testing::HasSubstr("\"t\" is not stored"),
                             testing::HasSubstr("\"other\" is stored and not given")));
  TableRestore twice({table.get(), table.get()});
  EXPECT_TRUE(Restore(&twice, chain.stored).Is(Code::kInvalidArgument));
  EXPECT_EQ(table->size(), 1u);
}

TEST(TableRestore, WithoutFinishTheTableIsLeftEmpty) {
  const Chain chain = MakeChain();
  auto options = chain.table->options();
  options.gate = std::make_shared<CutGate>();
  auto table = SmallTable(options);
  {
    TableRestore sink({table.get()});
    EXPECT_TRUE(sink.Finish().Is(Code::kFailedPrecondition));
    ASSERT_TRUE(Restore(&sink, chain.stored).ok());
  }
  EXPECT_EQ(table->size(), 0u);
}

TEST(TableRestore, FactsAreOfTheCut) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 9));
  const TableFacts facts = FactsOf(*CutOf(table.get(), CutKind::kFull));
  EXPECT_EQ(facts, (TableFacts{.name = "t", .dim = 4, .dtype = DType::kF32, .rows = 9}));
}

}  // namespace
}  // namespace cairn::table

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

namespace cairn {

/// The state of a sparse table, as simple as can be, for tests of the engine: what stands in a row
/// is a function of its key and its `content`, so that a torn or misplaced row shows.
struct TestTable {
  std::map<std::int64_t, std::uint64_t> rows;     // key → content
  std::map<std::int64_t, std::uint64_t> pending;  // key → count

  static constexpr std::uint64_t kDim = 3;
  static constexpr std::uint32_t kShards = 16;

  static std::uint64_t Mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  static std::uint32_t ShardOf(std::int64_t key) {
    return static_cast<std::uint32_t>(Mix(static_cast<std::uint64_t>(key) + 17) % kShards);
  }
  static std::uint64_t Cell(std::int64_t key, std::uint64_t content, std::uint64_t column) {
    return Mix(Mix(static_cast<std::uint64_t>(key)) ^ content ^ (column << 56));
  }

  /// What has to be put over `before` to get this.
  struct Changes {
    std::map<std::int64_t, std::uint64_t> rows;
    std::vector<std::int64_t> deleted;
    std::map<std::int64_t, std::uint64_t> pending;
  };
  Changes Since(const TestTable& before) const {
    Changes changes;
    for (const auto& [key, content] : rows) {
      const auto it = before.rows.find(key);
      if (it == before.rows.end() || it->second != content) changes.rows[key] = content;
    }
    for (const auto& [key, count] : pending) {
      const auto it = before.pending.find(key);
      if (it == before.pending.end() || it->second != count) changes.pending[key] = count;
    }
    for (const auto& [key, content] : before.rows) {
      if (!rows.contains(key)) changes.deleted.push_back(key);  // perhaps pending again
    }
    for (const auto& [key, count] : before.pending) {
      if (!rows.contains(key) && !pending.contains(key)) changes.deleted.push_back(key);
    }
    return changes;
  }
  Changes All() const { return Since({}); }

  friend bool operator==(const TestTable&, const TestTable&) = default;
};

/// Adds the tensors and the facts of a table to a request; `memory` holds the bytes and must
/// outlive the save. Rows are in the order of their shards.
inline void AddTestTable(const std::string& name, const TestTable::Changes& changes,
                         SaveRequest* request, std::deque<std::string>* memory) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> rows(changes.rows.begin(),
                                                           changes.rows.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return TestTable::ShardOf(a.first) < TestTable::ShardOf(b.first);
  });
  const auto add = [&](const std::string& column, DType dtype, std::vector<std::uint64_t> shape,
                       std::string bytes) {
    memory->push_back(std::move(bytes));
    Tensor tensor;
    tensor.name = name + "/" + column;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.data = memory->back().data();
    tensor.group = TensorGroup::kTable;
    request->tensors.push_back(std::move(tensor));
  };
  const auto append = [](std::string* to, auto value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string keys;
  std::string values;
  std::string slots;
  std::string versions;
  std::vector<std::int64_t> offsets(TestTable::kShards + 1, 0);
  for (const auto& [key, content] : rows) {
    append(&keys, key);
    for (std::uint64_t i = 0; i < TestTable::kDim; ++i) {
      append(&values, TestTable::Cell(key, content, i));
    }
    append(&slots, static_cast<std::uint32_t>(TestTable::Cell(key, content, 99)));
    append(&versions, content);
    for (std::uint32_t s = TestTable::ShardOf(key) + 1; s < offsets.size(); ++s) ++offsets[s];
  }
  const std::uint64_t n = rows.size();
  add("keys", DType::kI64, {n}, std::move(keys));
  add("values", DType::kU64, {n, TestTable::kDim}, std::move(values));
  add("slot/accumulator", DType::kU32, {n}, std::move(slots));
  add("version", DType::kU64, {n}, std::move(versions));
  std::string offset_bytes;
  for (const std::int64_t offset : offsets) append(&offset_bytes, offset);
  add("shard_offsets", DType::kI64, {offsets.size()}, std::move(offset_bytes));
  std::string deleted;
  for (const std::int64_t key : changes.deleted) append(&deleted, key);
  add("deleted", DType::kI64, {changes.deleted.size()}, std::move(deleted));
  std::string pending_keys;
  std::string pending_counts;
  for (const auto& [key, count] : changes.pending) {
    append(&pending_keys, key);
    append(&pending_counts, count);
  }
  add("pending_keys", DType::kI64, {changes.pending.size()}, std::move(pending_keys));
  add("pending_counts", DType::kU64, {changes.pending.size()}, std::move(pending_counts));
  request->tables.push_back({.name = name,
                             .dim = TestTable::kDim,
                             .dtype = DType::kU64,
                             .rows = n,
                             .deleted = changes.deleted.size()});
}

/// Puts tables together from a restore, and notices rows that are not what was saved.
class TestTableSink : public TableSink {
 public:
  std::map<std::string, TestTable> tables;
  std::string broken;            // the first thing that is wrong
  std::vector<TablePart> parts;  // of the last Start
  int starts = 0;
  std::uint64_t blocks = 0;
  std::uint64_t rows_given = 0;
  std::vector<ShardSpan> only = {{0, TestTable::kShards}};  // {}: nothing

  Status Start(std::vector<TablePart>* all) override {
    ++starts;
    tables.clear();
    for (TablePart& part : *all) part.wanted = only;
    parts = *all;
    return Status::Ok();
  }

  Status Block(const TablePart& part, const TableBlock& block) override {
    ++blocks;
    TestTable& table = tables[part.table];
    const auto cell = [&](const char* column, std::uint64_t at, auto* value) {
      for (std::size_t i = 0; i < part.columns.size(); ++i) {
        if (part.columns[i].name != column) continue;
        if ((at + 1) * sizeof *value > block.columns[i].size()) {
          broken = std::string(column) + " is too short";
          return;
        }
        std::memcpy(value, block.columns[i].data() + at * sizeof *value, sizeof *value);
        return;
      }
      broken = "no column " + std::string(column);
    };
    for (std::uint64_t i = 0; i < block.count && broken.empty(); ++i) {
      std::int64_t key = 0;
      std::uint64_t count = 0;
      switch (block.group) {
        case TableGroup::kRows:
          TakeRow(&table, i, cell);
          ++rows_given;
          break;
        case TableGroup::kDeleted:
          cell("deleted", i, &key);
          table.rows.erase(key);
          table.pending.erase(key);
          break;
        case TableGroup::kPending:
          cell("pending_keys", i, &key);
          cell("pending_counts", i, &count);
          table.pending[key] = count;
          break;
        case TableGroup::kPacked:
          break;
      }
    }
    return Status::Ok();
  }

 private:
  template <typename Cell>
  void TakeRow(TestTable* table, std::uint64_t i, Cell cell) {
    std::int64_t key = 0;
    std::uint64_t content = 0;
    std::uint32_t slot = 0;
    cell("keys", i, &key);
    cell("version", i, &content);
    cell("slot/accumulator", i, &slot);
    if (slot != static_cast<std::uint32_t>(TestTable::Cell(key, content, 99))) {
      broken = "the slot of key " + std::to_string(key) + " is another's";
    }
    for (std::uint64_t d = 0; d < TestTable::kDim; ++d) {
      std::uint64_t value = 0;
      cell("values", i * TestTable::kDim + d, &value);
      if (value != TestTable::Cell(key, content, d)) {
        broken = "the values of key " + std::to_string(key) + " are another's";
      }
    }
    table->pending.erase(key);
    table->rows[key] = content;
  }
};

}  // namespace cairn

#include "checkpoint/table_diff.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/table_merge.h"

namespace cairn {
namespace {

using Places = std::vector<MergedTable::Place>;

Result<Places> SortedRows(MergedTable* table, std::uint32_t shard) {
  ASSIGN_OR_RETURN(Places rows, table->Rows(shard));
  std::sort(rows.begin(), rows.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
  return rows;
}

Result<Places> AllRows(MergedTable* table) {
  Places all;
  for (std::uint32_t shard = 0; shard < table->shards(); ++shard) {
    ASSIGN_OR_RETURN(const Places rows, table->Rows(shard));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
  return all;
}

std::vector<TableColumn> RowColumns(const MergedTable& table) {
  std::vector<TableColumn> columns;
  for (const TableColumn& column : table.columns()) {
    if (column.group == TableGroup::kRows) columns.push_back(column);
  }
  std::sort(columns.begin(), columns.end(),
            [](const auto& x, const auto& y) { return x.name < y.name; });
  return columns;
}

/// Compares one table of both.
class TableComparison {
 public:
  TableComparison(MergedTable* a, MergedTable* b)
      : a_(a), b_(b), columns_a_(RowColumns(*a)), columns_b_(RowColumns(*b)) {}

  Result<TensorDifference> Run() {
    out_.name = a_->name();
    out_.what = "rows";
    const bool same_columns = std::equal(
        columns_a_.begin(), columns_a_.end(), columns_b_.begin(), columns_b_.end(),
        [](const TableColumn& x, const TableColumn& y) {
          return x.name == y.name && x.dtype == y.dtype && x.entry_shape == y.entry_shape;
        });
    if (!same_columns) {
      out_.what = "shape";
      return out_;
    }
    if (a_->shards() == b_->shards()) {
      for (std::uint32_t shard = 0; shard < a_->shards(); ++shard) {
        ASSIGN_OR_RETURN(const Places rows_a, SortedRows(a_, shard));
        ASSIGN_OR_RETURN(const Places rows_b, SortedRows(b_, shard));
        RETURN_IF_ERROR(Compare(rows_a, rows_b));
      }
    } else {
      ASSIGN_OR_RETURN(const Places rows_a, AllRows(a_));
      ASSIGN_OR_RETURN(const Places rows_b, AllRows(b_));
      RETURN_IF_ERROR(Compare(rows_a, rows_b));
    }
    out_.elements = out_.rows_added + out_.rows_removed + out_.rows_changed;
    return out_;
  }

 private:
  Status Compare(const Places& rows_a, const Places& rows_b) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < rows_a.size() || j < rows_b.size()) {
      if (j == rows_b.size() || (i < rows_a.size() && rows_a[i].key < rows_b[j].key)) {
        ++out_.rows_removed;
        ++i;
      } else if (i == rows_a.size() || rows_b[j].key < rows_a[i].key) {
        ++out_.rows_added;
        ++j;
      } else {
        ASSIGN_OR_RETURN(const bool same, Same(rows_a[i++], rows_b[j++]));
        if (!same) ++out_.rows_changed;
      }
    }
    return Status::Ok();
  }

  Result<bool> Same(const MergedTable::Place& x, const MergedTable::Place& y) {
    for (const TableColumn& column : columns_a_) {
      bytes_a_.resize(column.entry_bytes);
      bytes_b_.resize(column.entry_bytes);
      RETURN_IF_ERROR(a_->Read(column, x.member, x.entry, bytes_a_));
      RETURN_IF_ERROR(b_->Read(column, y.member, y.entry, bytes_b_));
      if (bytes_a_ != bytes_b_) return false;
    }
    return true;
  }

  MergedTable* const a_;
  MergedTable* const b_;
  const std::vector<TableColumn> columns_a_;
  const std::vector<TableColumn> columns_b_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
  TensorDifference out_;
};

std::map<std::string, MergedTable*> ByName(const MergedTables& tables) {
  std::map<std::string, MergedTable*> by_name;
  for (const auto& table : tables.tables()) by_name[table->name()] = table.get();
  return by_name;
}

}  // namespace

Result<std::vector<TensorDifference>> DiffTables(Store* store_a, const OpenRestorePoint& a,
                                                 Store* store_b, const OpenRestorePoint& b) {
  ASSIGN_OR_RETURN(const auto merged_a, MergedTables::Open(store_a, a.chain()));
  ASSIGN_OR_RETURN(const auto merged_b, MergedTables::Open(store_b, b.chain()));
  const auto in_a = ByName(*merged_a);
  const auto in_b = ByName(*merged_b);
  std::vector<TensorDifference> out;
  for (const auto& [name, table] : in_a) {
    const auto other = in_b.find(name);
    if (other == in_b.end()) {
      out.push_back({.name = name, .what = "removed"});
      continue;
    }
    ASSIGN_OR_RETURN(TensorDifference difference, TableComparison(table, other->second).Run());
    if (difference.elements > 0 || difference.what != "rows") out.push_back(difference);
  }
  for (const auto& [name, table] : in_b) {
    if (!in_a.contains(name)) out.push_back({.name = name, .what = "added"});
  }
  return out;
}

}  // namespace cairn

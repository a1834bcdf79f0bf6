#include "checkpoint/table_restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"

namespace cairn {

/// The bytes of a column that are in memory: a stretch of it that moves forward. It is extended to
/// the ends of chunks, so that no chunk is read a second time for the next block.
class TableRestore::Window {
 public:
  Window(std::size_t file, std::uint64_t file_begin, std::uint64_t column_bytes)
      : file_(file), file_begin_(file_begin), column_bytes_(column_bytes) {}

  /// Makes the window hold [begin, end) of the column and adds the run that reads what is missing.
  Status Move(std::uint64_t begin, std::uint64_t end, bool verify_only,
              std::vector<ByteRun>* runs) {
    const std::uint64_t chunk_end =
        (file_begin_ + end + kChunkBytes - 1) / kChunkBytes * kChunkBytes - file_begin_;
    const bool overlaps = begin >= begin_ && begin <= end_;
    const std::uint64_t kept = overlaps ? end_ - begin : 0;
    const std::uint64_t read_from = begin + kept;
    const std::uint64_t read_to = std::max(read_from, std::min(chunk_end, column_bytes_));
    if (!verify_only) RETURN_IF_ERROR(Shift(overlaps ? begin - begin_ : 0, kept, read_to - begin));
    begin_ = begin;
    end_ = std::max(end_, read_to);
    if (!overlaps) end_ = read_to;
    if (read_to == read_from) return Status::Ok();
    runs->push_back({.file = file_,
                     .file_offset = file_begin_ + read_from,
                     .bytes = read_to - read_from,
                     .to = verify_only ? nullptr : memory_.get() + kept});
    return Status::Ok();
  }

  std::span<const std::byte> First(std::uint64_t bytes) const { return {memory_.get(), bytes}; }

 private:
  /// Moves `kept` bytes from `from` to the front of memory for `bytes`.
  Status Shift(std::uint64_t from, std::uint64_t kept, std::uint64_t bytes) {
    if (bytes <= capacity_) {
      if (kept > 0 && from > 0) std::memmove(memory_.get(), memory_.get() + from, kept);
      return Status::Ok();
    }
    std::unique_ptr<std::byte[]> larger(new (std::nothrow) std::byte[bytes]);
    if (larger == nullptr) return ResourceExhaustedError("no memory to read rows into");
    if (kept > 0) std::memcpy(larger.get(), memory_.get() + from, kept);
    memory_ = std::move(larger);
    capacity_ = bytes;
    return Status::Ok();
  }

  const std::size_t file_;
  const std::uint64_t file_begin_;
  const std::uint64_t column_bytes_;
  std::uint64_t begin_ = 0;  // in bytes of the column
  std::uint64_t end_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t capacity_ = 0;
};

Status TableRestore::CheckWanted(const TablePart& part) const {
  const std::uint32_t shards = std::max<std::uint32_t>(part.shards(), 1);
  std::uint32_t last = 0;
  for (const ShardSpan& range : part.wanted) {
    if (range.begin < last || range.end <= range.begin || range.end > shards) {
      return InvalidArgumentError(
          fmt::format("table {}: the shards [{}, {}) that are asked for are none of its {}, or "
                      "not in order",
                      part.table, range.begin, range.end, shards));
    }
    last = range.end;
  }
  return Status::Ok();
}

std::vector<TableRestore::Entries> TableRestore::WantedRows(const TablePart& part) const {
  std::vector<Entries> rows;
  for (const ShardSpan& range : part.wanted) {
    Entries entries{0, part.rows};
    if (!part.shard_offsets.empty()) {
      entries = {static_cast<std::uint64_t>(part.shard_offsets[range.begin]),
                 static_cast<std::uint64_t>(part.shard_offsets[range.end])};
    }
    if (entries.begin == entries.end) continue;
    if (!rows.empty() && rows.back().end == entries.begin) {
      rows.back().end = entries.end;
    } else {
      rows.push_back(entries);
    }
  }
  return rows;
}

Status TableRestore::Start() {
  for (std::size_t i = 0; i < chain_.size(); ++i) {
    ASSIGN_OR_RETURN(std::vector<StoredTable> tables, ReadTables(store_, chain_[i], i));
    std::move(tables.begin(), tables.end(), std::back_inserter(tables_));
  }
  std::vector<TablePart> parts;
  for (const StoredTable& table : tables_) parts.push_back(table.part);
  RETURN_IF_ERROR(sink_->Start(&parts));
  if (parts.size() != tables_.size()) return InvalidArgumentError("the sink changed the parts");
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    StoredTable& table = tables_[i];
    table.part.wanted = std::move(parts[i].wanted);
    RETURN_IF_ERROR(CheckWanted(table.part));
    if (table.part.wanted.empty()) continue;
    std::uint64_t rows = 0;
    for (const Entries& entries : WantedRows(table.part)) rows += entries.end - entries.begin;
    for (std::size_t c = 0; c < table.part.columns.size(); ++c) {
      const TableColumn& column = table.part.columns[c];
      const bool of_rows = column.group == TableGroup::kRows;
      bytes_ += column.entry_bytes * (of_rows ? rows : table.entries[c]);
    }
  }
  return Status::Ok();
}

Status TableRestore::Verify() { return Pass(/*verify_only=*/true); }

Status TableRestore::Read() { return Pass(/*verify_only=*/false); }

/// Of files that are in memory, with their headers, the rest is not needed any more.
void TableRestore::KeepOnlyWanted() {
  std::map<std::pair<std::size_t, std::size_t>, std::vector<NumberRange>> wanted;
  for (const StoredTable& table : tables_) {
    std::vector<NumberRange>& of_file = wanted[{table.part.position, table.file}];
    if (table.part.wanted.empty()) continue;
    for (std::size_t c = 0; c < table.part.columns.size(); ++c) {
      const TableColumn& column = table.part.columns[c];
      if (!Wants(column)) continue;
      of_file.push_back({table.begin[c], table.begin[c] + column.entry_bytes * table.entries[c]});
    }
  }
  for (auto& [where, of_file] : wanted)
    chain_[where.first]->KeepOnly(where.second, std::move(of_file));
}

Status TableRestore::Pass(bool verify_only) {
  done_ = 0;
  const bool lean = options_.lean && !verify_only;
  if (lean) KeepOnlyWanted();
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const StoredTable& table = tables_[i];
    if (!table.part.wanted.empty()) RETURN_IF_ERROR(PassTable(table, verify_only));
    const bool last =
        i + 1 == tables_.size() || tables_[i + 1].part.position != table.part.position;
    if (lean && last) chain_[table.part.position]->ReleaseMemory();
  }
  return Status::Ok();
}

Status TableRestore::PassTable(const StoredTable& table, bool verify_only) {
  const std::vector<TableColumn>& columns = table.part.columns;
  if (!verify_only) RETURN_IF_ERROR(sink_->Begin(table.part));
  const auto of_group = [&](TableGroup group) {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].group == group) members.push_back(i);
    }
    return members;
  };
  for (const std::size_t packed : of_group(TableGroup::kPacked)) {
    RETURN_IF_ERROR(PassColumns(table, {packed}, {{0, table.entries[packed]}}, verify_only));
  }
  RETURN_IF_ERROR(
      PassColumns(table, of_group(TableGroup::kDeleted), {{0, table.part.deleted}}, verify_only));
  RETURN_IF_ERROR(
      PassColumns(table, of_group(TableGroup::kRows), WantedRows(table.part), verify_only));
  RETURN_IF_ERROR(
      PassColumns(table, of_group(TableGroup::kPending), {{0, table.part.pending}}, verify_only));
  return verify_only ? Status::Ok() : sink_->End(table.part);
}

bool TableRestore::IsAtHand(const StoredTable& table, std::size_t column, std::uint64_t first,
                            std::uint64_t count, bool verify_only,
                            std::span<const std::byte>* bytes) const {
  if (!options_.lean || verify_only) return false;
  const OpenCheckpoint& checkpoint = *chain_[table.part.position];
  const std::uint64_t size = table.part.columns[column].entry_bytes;
  const std::uint64_t begin = table.begin[column] + first * size;
  if (!Wants(table.part.columns[column])) {
    return checkpoint.Compared(table.file, begin, count * size);
  }
  *bytes = checkpoint.Kept(table.file, begin, count * size);
  return !bytes->empty();
}

Status TableRestore::PassColumns(const StoredTable& table, const std::vector<std::size_t>& members,
                                 const std::vector<Entries>& wanted, bool verify_only) {
  if (members.empty()) return Status::Ok();
  const std::vector<TableColumn>& columns = table.part.columns;
  std::vector<Window> windows;  // like members
  std::uint64_t entry_bytes = 0;
  for (const std::size_t i : members) {
    entry_bytes += columns[i].entry_bytes;
    windows.emplace_back(table.file, table.begin[i], columns[i].entry_bytes * table.entries[i]);
  }
  const std::uint64_t step =
      std::max<std::uint64_t>(1, options_.block_bytes / std::max<std::uint64_t>(entry_bytes, 1));
  std::vector<std::span<const std::byte>> bytes(columns.size());
  for (const Entries& entries : wanted) {
    for (std::uint64_t first = entries.begin; first < entries.end; first += step) {
      if (options_.cancelled && options_.cancelled()) {
        return CancelledError("the restore was cancelled");
      }
      const std::uint64_t count = std::min(step, entries.end - first);
      std::vector<ByteRun> runs;
      std::vector<std::size_t> moved;  // windows
      for (std::size_t i = 0; i < members.size(); ++i) {
        const std::size_t column = members[i];
        if (IsAtHand(table, column, first, count, verify_only, &bytes[column])) continue;
        const std::uint64_t size = columns[column].entry_bytes;
        const bool compare_only = verify_only || !Wants(columns[column]);
        RETURN_IF_ERROR(windows[i].Move(first * size, (first + count) * size, compare_only, &runs));
        if (!compare_only) moved.push_back(i);
      }
      RETURN_IF_ERROR(ReadRuns(store_, *chain_[table.part.position], runs,
                               {.verify_only = verify_only,
                                .cancelled = options_.cancelled,
                                .at_once = options_.lean ? 1u : ReadRunsOptions().at_once})
                          .WithContext("table " + table.part.table));
      if (!verify_only) {
        for (const std::size_t i : moved) {
          bytes[members[i]] = windows[i].First(count * columns[members[i]].entry_bytes);
        }
        RETURN_IF_ERROR(sink_->Block(table.part, {.group = columns[members.front()].group,
                                                  .first = first,
                                                  .count = count,
                                                  .columns = bytes}));
      }
      done_ += count * entry_bytes;
      if (!options_.progress(done_, bytes_)) return CancelledError("the restore was cancelled");
    }
  }
  return Status::Ok();
}

}  // namespace cairn

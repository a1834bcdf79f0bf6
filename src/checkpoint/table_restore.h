#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>
#include <cairn/table_rows.h>

#include "checkpoint/catalog.h"
#include "checkpoint/stored_tables.h"
#include "storage/store.h"

namespace cairn {

/// Hands the rows of a restore point to a sink: of the full checkpoint, then of each increment.
/// Blocks of some megabytes go through its memory; chunks are compared with the manifest before a
/// block is handed out, and each is read once. One use, one thread. A failure leaves the sink with
/// what it was given before.
class TableRestore {
 public:
  struct Options {
    Progress progress;                // of rows alone
    std::function<bool()> cancelled;  // asked between blocks
    std::uint64_t block_bytes = 16u << 20;
    /// The columns that are handed out; empty: all. The others are compared with their checksums
    /// like them, and are empty in the blocks.
    std::function<bool(const TableColumn&)> wants;
    /// Little memory: what a header was read from is handed out where it is, so that columns need
    /// not be aligned for their numbers, other chunks are read one at a time, and of each
    /// checkpoint nothing stays in memory when its rows were handed out.
    bool lean = false;
  };

  /// `chain`: a full checkpoint, then increments. All borrowed.
  TableRestore(Store* store, std::vector<OpenCheckpoint*> chain, TableSink* sink, Options options)
      : store_(store), chain_(std::move(chain)), sink_(sink), options_(std::move(options)) {}

  /// Reads what tables there are and lets the sink choose. Nothing is changed before it returns.
  Status Start();
  /// Compares all that is wanted with its checksums, and hands nothing out.
  Status Verify();
  Status Read();

  /// Of all that is wanted; after Start.
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Entries {  // [begin, end) of a group
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  class Window;

  bool Wants(const TableColumn& column) const { return !options_.wants || options_.wants(column); }
  void KeepOnlyWanted();
  Status CheckWanted(const TablePart& part) const;
  std::vector<Entries> WantedRows(const TablePart& part) const;
  Status Pass(bool verify_only);
  Status PassTable(const StoredTable& table, bool verify_only);
  /// Columns that are handed out together, by their numbers.
  Status PassColumns(const StoredTable& table, const std::vector<std::size_t>& members,
                     const std::vector<Entries>& wanted, bool verify_only);
  /// Entries [first, first + count) of a column are at hand, or need not be.
  bool IsAtHand(const StoredTable& table, std::size_t column, std::uint64_t first,
                std::uint64_t count, bool verify_only, std::span<const std::byte>* bytes) const;

  Store* const store_;
  const std::vector<OpenCheckpoint*> chain_;
  TableSink* const sink_;
  const Options options_;
  std::vector<StoredTable> tables_;
  std::uint64_t bytes_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

  Status CheckWanted(const TablePart& part) const;
  std::vector<Entries> WantedRows(const TablePart& part) const;
  Status Pass(bool verify_only);
  Status PassTable(const StoredTable& table, bool verify_only);
  /// Columns that are handed out together, by their numbers.
  Status PassColumns(const StoredTable& table, const std::vector<std::size_t>& members,
                     const std::vector<Entries>& wanted, bool verify_only);

  Store* const store_;
  const std::vector<OpenCheckpoint*> chain_;
  TableSink* const sink_;
  const Options options_;
  std::vector<StoredTable> tables_;
  std::uint64_t bytes_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace cairn

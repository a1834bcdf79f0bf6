#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/table_rows.h>

#include "checkpoint/catalog.h"
#include "storage/store.h"

namespace cairn {

inline constexpr std::string_view kKeysColumn = "keys";
inline constexpr std::string_view kDeletedColumn = "deleted";
inline constexpr std::string_view kPendingKeysColumn = "pending_keys";
inline constexpr std::string_view kPackedSuffix = "_zstd";
inline constexpr std::string_view kShardOffsetsColumn = "shard_offsets";

/// One participant's rows of one table in an open checkpoint, and where their bytes are.
struct StoredTable {
  TablePart part;
  std::size_t file = 0;                // index into the checkpoint's files
  std::vector<std::uint64_t> begin;    // by column of the part: where its bytes begin in the file
  std::vector<std::uint64_t> entries;  // by column: how many it has

  /// Index of the column, or -1.
  std::ptrdiff_t Find(std::string_view column) const;
};

/// The tables of an open checkpoint, in the order of its files. The shard offsets are read, the
/// rows are not. Corruption, naming table and column, for columns of unequal lengths, offsets that
/// do not fit the rows, keys that are no integers. `position`: of the checkpoint in its chain.
Result<std::vector<StoredTable>> ReadTables(Store* store, OpenCheckpoint* checkpoint,
                                            std::size_t position);

/// Tensors of one participant that belong to no table of the manifest.
Result<std::vector<std::string>> LooseTableTensors(OpenCheckpoint* checkpoint,
                                                   const std::string& participant);

/// The participants that have a file of tables, in the order of the manifest.
std::vector<std::string> TableParticipants(const Manifest& manifest);

/// InvalidArgument, naming the table, for facts that contradict each other or the tensors of the
/// request.
Status CheckTableFacts(const std::vector<TableFacts>& tables, const std::vector<Tensor>& tensors);

}  // namespace cairn

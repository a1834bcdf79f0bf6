#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>

/// Rows of sparse tables in checkpoints, as the engine sees them: columns of equal length, grouped
/// by logical shard. What a row means (weights, slots, admission) is the table's affair.
///
/// A participant saves a table as tensors of TensorGroup::kTable called `<table>/<column>`, which
/// all lie in its one file of tables:
///
///   keys, values, slot/<name>, frequency, version   the rows: one entry per row in each
///   shard_offsets                                   int64 [shards + 1]: the rows of shard s are
///                                                   those from shard_offsets[s] on
///   deleted                                         of an increment: keys that are gone
///   pending_keys, pending_counts, …                 keys that are not admitted yet
///   <column>_zstd                                   instead of <column>: packed bytes
///
/// Any other column is one of the rows. An increment has what changed. To replay it is to take out
/// its deleted keys, then to put its rows over those that are there, then to put in its pending
/// keys; a key that is deleted or becomes a row is pending no longer. To replay it once more
/// changes nothing.
namespace cairn {

/// Numbers from `begin` up to, and without, `end`.
struct NumberRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const NumberRange&, const NumberRange&) = default;
};

/// What a checkpoint's manifest says of a table: the sum over all participants.
struct TableFacts {
  std::string name;
  std::uint64_t dim = 0;  // weights of a row
  DType dtype = DType::kF32;
  std::uint64_t rows = 0;
  std::uint64_t deleted = 0;
  /// Of a save: the logical shards, or rows of tracked arrays, that this participant holds. No two
  /// may hold the same: their rows could not be told apart. Empty: not said.
  std::vector<NumberRange> held;

  friend bool operator==(const TableFacts&, const TableFacts&) = default;
};

/// Which entries of a table a column belongs to. The columns of a group have equal lengths and are
/// handed out together.
enum class TableGroup : std::uint8_t {
  kRows,
  kDeleted,
  kPending,
  kPacked,  // one column each, whose entries are bytes; it comes whole, in order
};

struct TableColumn {
  std::string name;  // without the table's: "keys", "slot/accumulator"
  TableGroup group = TableGroup::kRows;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> entry_shape;  // of one entry; {} for a plain number
  std::uint64_t entry_bytes = 0;
};

/// Logical shards [begin, end).
struct ShardSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const ShardSpan&, const ShardSpan&) = default;
};

/// What one participant stored of one table in one checkpoint of a restore point.
struct TablePart {
  std::string table;
  std::string participant;
  std::string checkpoint;  // id
  std::int64_t step = 0;
  bool increment = false;
  std::size_t position = 0;  // of its checkpoint: 0 is the full one, then the increments in order
  std::vector<TableColumn> columns;
  std::uint64_t rows = 0;
  std::uint64_t deleted = 0;
  std::uint64_t pending = 0;
  /// shards + 1 numbers; empty where rows are not grouped. Then all of them are handed out.
  std::vector<std::int64_t> shard_offsets;
  /// The shards whose rows are wanted, ascending, without overlap. All of them, unless
  /// TableSink::Start says otherwise; none: nothing of the part is read. Deleted and pending keys
  /// and packed columns come whole: the sink keeps what it owns.
  std::vector<ShardSpan> wanted;

  std::uint32_t shards() const {
    return shard_offsets.empty() ? 0 : static_cast<std::uint32_t>(shard_offsets.size() - 1);
  }
};

/// Entries [first, first + count) of a group of a part.
struct TableBlock {
  TableGroup group = TableGroup::kRows;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  /// By column of the part: its bytes, count × entry_bytes; empty for columns of other groups.
  std::span<const std::span<const std::byte>> columns;
};

/// Takes the rows of a restore point: those of the full checkpoint, then those of each increment in
/// order; of a part the packed columns, the deleted keys, the rows, the pending keys. Called on the
/// thread that called Restore, one call at a time. Every byte was compared with its checksum before
/// it is handed out. A status other than OK ends the restore with it.
///
/// The engine holds a few dozen megabytes at a time, however many rows there are.
class TableSink {
 public:
  virtual ~TableSink() = default;

  /// A restore point is about to be read; `parts` is all that it has, in the order in which it
  /// comes. Nothing was read or changed yet, dense variables neither: the place to refuse what does
  /// not fit (MismatchError), and to cut down `wanted`. Called once more, with an older restore
  /// point, when the one before turned out to be damaged: all that came of it is void then.
  virtual Status Start(std::vector<TablePart>* parts) = 0;
  virtual Status Begin(const TablePart& /*part*/) { return Status::Ok(); }
  /// The bytes are borrowed until it returns.
  virtual Status Block(const TablePart& part, const TableBlock& block) = 0;
  virtual Status End(const TablePart& /*part*/) { return Status::Ok(); }
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/table.h>

/// Row increments of ordinary dense arrays: an embedding that is a plain 2-d variable, with the
/// arrays of its optimizer, is saved with all its rows in a full checkpoint and with those that
/// changed in increments. In checkpoints it is a table whose keys are the numbers of the rows.
/// TableCheckpoints, TrainingSession and Trainer save and restore it as they do tables.
namespace cairn {

/// An array of which row i belongs to row i of its fellows: weights, accumulator, …
struct TrackedArray {
  std::string name;  // the column is <name of the tracker>/column/<this>
  DType dtype = DType::kF32;
  std::uint64_t width = 0;  // elements of a row
  void* data = nullptr;     // rows × width elements; the caller's, outlives the tracker
};

struct RowTrackedOptions {
  std::string name;  // of the variable; its pieces have the same, and so have other processes'
  std::uint64_t rows = 0;
  std::vector<TrackedArray> arrays;
  /// Of a piece of a partitioned variable: its first row in the whole, and the whole's rows (0:
  /// this is all of it).
  std::uint64_t first_row = 0;
  std::uint64_t whole_rows = 0;
  std::shared_ptr<CutGate> gate;  // shared by all that is cut together; nullptr: the process's
  std::uint64_t side_buffer_bytes = 512u << 20;  // as of tables

  std::uint64_t whole() const { return whole_rows == 0 ? rows : whole_rows; }
  Status Validate() const;
};

/// Knows which rows of its arrays changed. Whoever changes rows enters a batch of the gate, tells
/// their numbers to Touch, changes them, and leaves the batch. Any thread; two threads that change
/// the same row are the caller's business. What is not told is not in increments.
class RowTracked {
 public:
  static Result<std::unique_ptr<RowTracked>> Make(RowTrackedOptions options);
  virtual ~RowTracked() = default;

  /// Before rows (numbers within this piece) are changed. FailedPrecondition outside of a batch.
  virtual Status Touch(std::span<const std::int64_t> rows) = 0;

  virtual const RowTrackedOptions& options() const = 0;
  virtual bool has_base() const = 0;
  virtual std::uint64_t settled_count() const = 0;  // as Table's
  virtual std::uint64_t ChangedRows(CutKind kind) const = 0;

  /// After the arrays were filled from a full checkpoint: increments stand on it.
  virtual Status Restored() = 0;
  /// Rows of an increment on top, by their numbers in the whole; those of other pieces are passed
  /// over. `columns` as options().arrays. Corruption: a row outside of the whole, columns of other
  /// lengths; nothing was changed.
  virtual Status ApplyIncrement(std::span<const std::int64_t> keys,
                                const std::vector<std::span<const std::byte>>& columns) = 0;
};

/// One variable may be in several pieces here: InvalidArgument, naming it, unless all of one name
/// have the same arrays, are pieces of the same whole, and do not overlap.
Status CheckPieces(std::span<RowTracked* const> arrays);

/// CutTables, with dense arrays that are tracked by row. Their cuts come after those of the tables,
/// and each has <name>/keys and <name>/column/<array> of its piece: all rows or the changed ones.
Result<std::vector<std::unique_ptr<TableCut>>> CutTablesAndArrays(
    std::span<Table* const> tables, std::span<RowTracked* const> arrays, const CutRequest& request,
    const std::function<Status()>& also = {});

}  // namespace cairn

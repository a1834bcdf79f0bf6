#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cairn/row_tracked.h>
#include <cairn/table_rows.h>

namespace cairn::table {

/// Fills the pieces of one variable that is tracked by row from a restore point: all rows from the
/// full checkpoint, then those of each increment. Other processes' rows are passed over, so that
/// any partition is restored from any other. When a call failed the arrays are filled in part. One
/// use, one thread; nobody else uses the arrays meanwhile.
class ArrayFiller {
 public:
  /// Pieces of one name (CheckPieces); at least one.
  explicit ArrayFiller(std::vector<RowTracked*> pieces);

  const std::string& name() const { return pieces_.front()->options().name; }

  /// Compares columns and numbers of rows of all parts of this variable with the arrays: Mismatch,
  /// naming what differs. Changes nothing. What came before is void. None of it stored: it is left
  /// as it is.
  Status Start(const std::vector<TablePart>& parts);
  Status Block(const TablePart& part, const TableBlock& block);
  /// Corruption when rows were missing.
  Status Finish();

 private:
  Status Fits(const TablePart& part) const;
  Status Fill(std::span<const std::int64_t> keys,
              const std::vector<std::span<const std::byte>>& columns);
  /// The full checkpoint was read.
  Status EndFull();

  const std::vector<RowTracked*> pieces_;
  std::vector<std::vector<bool>> filled_;  // like pieces_: rows that came
  bool full_ended_ = false;
};

}  // namespace cairn::table

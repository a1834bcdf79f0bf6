#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/table_rows.h>

#include "checkpoint/stored_bytes.h"
#include "checkpoint/stored_tables.h"

namespace cairn {

/// One participant's part of a table with the columns that a full checkpoint has, however they are
/// stored: packed keys unpacked, 8-bit rows as the numbers that they stand for. Gives, bit for bit,
/// what a restore would put into the table. Packed keys are held in memory once they were asked
/// for. For one thread; a failure leaves it usable.
class PlainPart {
 public:
  /// `weights`: the dtype of the table's weights, which 8-bit ones do not tell. `bytes`: of the
  /// part's checkpoint; borrowed.
  PlainPart(StoredTable table, StoredBytes* bytes, DType weights);

  const TablePart& part() const { return table_.part; }
  /// Without packed keys and scales. A packed column that is not known stays as it is.
  const std::vector<TableColumn>& columns() const { return columns_; }
  const TableColumn* Find(std::string_view column) const;

  /// Entries [first, first + count) of a column of keys; none when the part has no such column.
  Result<std::vector<std::int64_t>> Keys(std::string_view column, std::uint64_t first,
                                         std::uint64_t count);
  /// Whole entries of a column, from `entry` on.
  Status Read(std::string_view column, std::uint64_t entry, std::span<std::byte> into);

 private:
  struct Origin {
    std::size_t stored = 0;            // column of the stored part
    std::optional<std::size_t> scale;  // of 8-bit rows
  };

  Status ReadStored(std::size_t column, std::uint64_t entry, std::span<std::byte> into);
  Status ReadQuantized(const TableColumn& column, const Origin& origin, std::uint64_t entry,
                       std::span<std::byte> into);
  Status Unpack();

  StoredTable table_;
  StoredBytes* bytes_;
  std::vector<TableColumn> columns_;
  std::vector<Origin> origins_;  // like columns_
  std::optional<std::size_t> packed_;
  std::vector<std::int64_t> unpacked_;
};

}  // namespace cairn

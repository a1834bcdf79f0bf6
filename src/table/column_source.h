#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cairn/table.h>

#include "checkpoint/cheap_source.h"
#include "table/cut_gatherer.h"
#include "table/table_impl.h"

namespace cairn::table {

/// Which of a shard's records a column is of.
enum class StoreKind : std::uint8_t { kRows, kDeleted, kPending };

/// What a column holds for each record.
enum class ColumnKind : std::uint8_t {
  kKey,
  kFrequency,
  kVersion,
  kPayload,    // a column of the row layout, as it is
  kQuantized,  // the same in 8-bit integers …
  kScale,      // … and what they are multiplied with
};

struct ColumnSpec {
  std::string name;
  StoreKind store = StoreKind::kRows;
  ColumnKind kind = ColumnKind::kKey;
  std::size_t payload = 0;  // RowLayout::columns
  DType dtype = DType::kI64;
  std::vector<std::uint64_t> shape;
  std::size_t row_bytes = 8;
};

/// How far the columns of a cut were read. A shard whose columns were all read is no longer kept
/// aside; a payload column that was read gives its part back. Used by the thread that reads.
class CutProgress {
 public:
  /// `gatherer`: borrowed; of the rows that need no walk.
  CutProgress(TableImpl* table, const std::vector<ColumnSpec>& columns, CutGatherer* gatherer);
  /// The column was read to the end of the shard.
  void Passed(const ColumnSpec& column, std::uint32_t shard);
  CutGatherer* gatherer() const { return gatherer_; }

 private:
  TableImpl* const table_;
  CutGatherer* const gatherer_;
  std::array<std::uint32_t, 3> columns_{};            // by StoreKind
  std::vector<std::uint32_t> readers_;                // by payload column
  std::array<std::vector<std::uint32_t>, 3> passed_;  // by StoreKind, by shard
  std::vector<std::vector<std::uint32_t>> payload_passed_;
};

/// One column of a cut as a tensor: walks over the shards, some rows under each lock.
class ColumnSource final : public CheapSource {
 public:
  ColumnSource(TableImpl* table, const ColumnSpec* spec, std::span<const std::uint32_t> counts,
               CutProgress* progress, TableCut::Error* error);

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override;
  void Abandoned() override;

 private:
  /// Whole rows into `out`, as many as one lock gives; returns how many.
  Result<std::size_t> Produce(std::span<std::byte> out);
  Status BeginWalk(RowStore* store) const;
  /// The same of a shard that is gathered.
  Result<std::size_t> ReadStaged(std::span<std::byte> out);
  void Write(const RowStore& store, const RowStore::CutRow& row, std::byte* out);
  /// Rows of a shard that was gathered, from number `first`.
  void WriteStaged(std::uint32_t first, std::size_t rows, std::byte* out);
  Status MissingRows(std::size_t rows) const;
  void WriteQuantized(const std::byte* stored, std::byte* out);
  RowStore* StoreOf(Shard* shard) const;

  TableImpl* const table_;
  const ColumnSpec* const spec_;
  const std::span<const std::uint32_t> counts_;
  CutProgress* const progress_;
  TableCut::Error* const error_;
  const bool weights_;       // of the rows, as they are
  RowStore::Wanted wanted_;  // of a record: what is fetched ahead

  std::uint64_t next_ = 0;  // offset
  std::uint32_t shard_ = 0;
  std::uint32_t done_in_shard_ = 0;
  RowStore::CutCursor cursor_;
  std::vector<std::byte> carry_;  // a row that did not fit, and how much of it was given out
  std::size_t carried_ = 0;
  std::vector<float> floats_;
};

}  // namespace cairn::table

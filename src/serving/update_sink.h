#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/table_rows.h>

#include "serving/versions.h"

namespace cairn::serving {

/// Puts the rows of checkpoints into the update that is under way: those of a full one and its
/// increments, or those of increments alone. Weights are taken, slots and counts are passed over.
/// One use, one thread.
class UpdateSink final : public TableSink {
 public:
  struct Options {
    bool finite = true;           // refuse rows with NaN or infinities
    std::function<void()> pause;  // called after each block, to share the processor
  };
  /// `replaces`: the update replaces all rows, so every table must come.
  UpdateSink(Versions* versions, bool replaces, Options options)
      : versions_(versions), replaces_(replaces), options_(std::move(options)) {}

  /// It takes something from this column; of others it needs no bytes.
  static bool Wants(const TableColumn& column);

  /// MismatchError names a table that is missing or has other rows than the model wants.
  Status Start(std::vector<TablePart>* parts) override;
  Status Begin(const TablePart& part) override;
  Status Block(const TablePart& part, const TableBlock& block) override;

  /// After everything came. FailedPrecondition names a row that is not finite.
  Status Finish() const;
  std::uint64_t rows() const { return rows_; }        // that came
  std::uint64_t deleted() const { return deleted_; }  // keys likewise

 private:
  Status Fits(const TablePart& part, const VersionedTable& table) const;
  Status PutRows(const TablePart& part, const TableBlock& block, std::size_t index);
  void NoteNotFinite(std::size_t index, const std::vector<std::int64_t>& keys,
                     const std::byte* values);

  Versions* const versions_;
  const bool replaces_;
  const Options options_;
  std::uint64_t rows_ = 0;
  std::uint64_t deleted_ = 0;
  std::set<std::pair<std::size_t, std::int64_t>> not_finite_;  // (table, key), as of now
  // Of the part that is being read.
  std::vector<std::byte> packed_keys_;
  std::vector<std::int64_t> unpacked_keys_;
  std::vector<std::int64_t> keys_;
  std::vector<std::byte> values_;
};

}  // namespace cairn::serving

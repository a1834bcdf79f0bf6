#include "table/array_filler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "table/row_tracked_cut.h"

namespace cairn::table {
namespace {

std::string ColumnOf(const TrackedArray& array) {
  return std::string(kArrayColumnPrefix) + array.name;
}

}  // namespace

ArrayFiller::ArrayFiller(std::vector<RowTracked*> pieces) : pieces_(std::move(pieces)) {}

Status ArrayFiller::Fits(const TablePart& part) const {
  std::vector<std::string> wrong;
  const std::vector<TrackedArray>& arrays = pieces_.front()->options().arrays;
  const auto find = [&](const std::string& name) {
    return std::find_if(part.columns.begin(), part.columns.end(),
                        [&](const TableColumn& column) { return column.name == name; });
  };
  for (const TrackedArray& array : arrays) {
    const auto column = find(ColumnOf(array));
    if (column == part.columns.end()) {
      wrong.push_back(fmt::format("\"{}\" is not stored", array.name));
    } else if (column->dtype != array.dtype ||
               column->entry_shape != std::vector<std::uint64_t>{array.width}) {
      wrong.push_back(fmt::format("\"{}\": stored {} [n,{}], wanted {} [n,{}]", array.name,
                                  DTypeName(column->dtype), fmt::join(column->entry_shape, ","),
                                  DTypeName(array.dtype), array.width));
    }
  }
  for (const TableColumn& column : part.columns) {
    if (column.name == "keys" && column.dtype == DType::kI64) continue;
    if (std::none_of(arrays.begin(), arrays.end(),
                     [&](const TrackedArray& array) { return ColumnOf(array) == column.name; })) {
      wrong.push_back(fmt::format("\"{}\" is stored, not tracked", column.name));
    }
  }
  if (wrong.empty()) return Status::Ok();
  return MismatchError(
      fmt::format("the tracked arrays \"{}\" do not match: {}", name(), fmt::join(wrong, "; ")));
}

Status ArrayFiller::Start(const std::vector<TablePart>& parts) {
  filled_.clear();
  full_ended_ = false;
  bool stored = false;
  std::uint64_t rows = 0;
  for (const TablePart& part : parts) {
    if (part.table != name()) continue;
    stored = true;
    RETURN_IF_ERROR(Fits(part));
    if (!part.increment) rows += part.rows;
  }
  if (!stored) return Status::Ok();
  const std::uint64_t wanted = pieces_.front()->options().whole();
  if (rows != wanted) {
    return MismatchError(fmt::format(
        "the tracked arrays \"{}\" do not match: stored {} rows, wanted {}", name(), rows, wanted));
  }
  for (const RowTracked* piece : pieces_) filled_.emplace_back(piece->options().rows);
  return Status::Ok();
}

Status ArrayFiller::Block(const TablePart& part, const TableBlock& block) {
  if (block.group != TableGroup::kRows) return Status::Ok();
  std::vector<std::int64_t> keys(block.count);
  std::vector<std::span<const std::byte>> columns;
  for (const TrackedArray& array : pieces_.front()->options().arrays) {
    for (std::size_t i = 0; i < part.columns.size(); ++i) {
      if (part.columns[i].name == ColumnOf(array)) columns.push_back(block.columns[i]);
    }
  }
  for (std::size_t i = 0; i < part.columns.size(); ++i) {
    if (part.columns[i].name == "keys" && block.count > 0) {
      std::memcpy(keys.data(), block.columns[i].data(), keys.size() * sizeof keys[0]);
    }
  }
  if (!part.increment) return Fill(keys, columns);
  RETURN_IF_ERROR(EndFull());
  for (RowTracked* piece : pieces_) RETURN_IF_ERROR(piece->ApplyIncrement(keys, columns));
  return Status::Ok();
}

Status ArrayFiller::Fill(std::span<const std::int64_t> keys,
                         const std::vector<std::span<const std::byte>>& columns) {
  const std::uint64_t whole = pieces_.front()->options().whole();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto key = static_cast<std::uint64_t>(keys[i]);  // a negative one is outside too
    if (key >= whole) {
      return CorruptionError(
          fmt::format("tracked arrays \"{}\": row {} of {}", name(), keys[i], whole));
    }
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const RowTrackedOptions& piece = pieces_[p]->options();
      if (key < piece.first_row || key - piece.first_row >= piece.rows) continue;
      const std::uint64_t row = key - piece.first_row;
      if (filled_[p][row]) {
        return CorruptionError(
            fmt::format("tracked arrays \"{}\": row {} is there twice", name(), keys[i]));
      }
      filled_[p][row] = true;
      for (std::size_t a = 0; a < columns.size(); ++a) {
        const std::size_t bytes = columns[a].size() / keys.size();
        std::memcpy(static_cast<std::byte*>(piece.arrays[a].data) + row * bytes,
                    columns[a].data() + i * bytes, bytes);
      }
    }
  }
  return Status::Ok();
}

Status ArrayFiller::EndFull() {
  if (std::exchange(full_ended_, true)) return Status::Ok();
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const auto missing = std::find(filled_[p].begin(), filled_[p].end(), false);
    if (missing != filled_[p].end()) {
      return CorruptionError(
          fmt::format("tracked arrays \"{}\": row {} is missing", name(),
                      pieces_[p]->options().first_row +
                          static_cast<std::uint64_t>(missing - filled_[p].begin())));
    }
    RETURN_IF_ERROR(pieces_[p]->Restored());
  }
  return Status::Ok();
}

Status ArrayFiller::Finish() {
  if (filled_.empty()) return Status::Ok();  // not in the checkpoint
  return EndFull();
}

}  // namespace cairn::table

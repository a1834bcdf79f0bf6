#include "serving/update_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include <cairn/table.h>

#include "base/status_macros.h"
#include "format/row_quantization.h"
#include "serving/finite.h"
#include "table/row_layout.h"

namespace cairn::serving {
namespace {

constexpr std::string_view kKeys = "keys";
constexpr std::string_view kPackedKeys = "keys_zstd";
constexpr std::string_view kValues = "values";
constexpr std::string_view kScales = "values_scale";  // of quantized ones
constexpr std::string_view kDeleted = "deleted";

const TableColumn* FindColumn(const TablePart& part, std::string_view name) {
  for (const TableColumn& column : part.columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

std::span<const std::byte> BytesOf(const TablePart& part, const TableBlock& block,
                                   std::string_view name) {
  for (std::size_t i = 0; i < part.columns.size(); ++i) {
    if (part.columns[i].name == name) return block.columns[i];
  }
  return {};
}

/// A column's entries as numbers. Blocks need not be aligned for them.
template <typename T>
void CopyNumbers(std::span<const std::byte> bytes, std::vector<T>* out) {
  out->resize(bytes.size() / sizeof(T));
  if (!out->empty()) std::memcpy(out->data(), bytes.data(), out->size() * sizeof(T));
}

}  // namespace

bool UpdateSink::Wants(const TableColumn& column) {
  switch (column.group) {
    case TableGroup::kPacked:
      return column.name == kPackedKeys;
    case TableGroup::kDeleted:
      return column.name == kDeleted;
    case TableGroup::kRows:
      return column.name == kKeys || column.name == kValues || column.name == kScales;
    case TableGroup::kPending:
      break;
  }
  return false;
}

Status UpdateSink::Fits(const TablePart& part, const VersionedTable& table) const {
  const ServedTable& wanted = table.options();
  const TableColumn* values = FindColumn(part, kValues);
  if (part.rows == 0) return Status::Ok();
  if (values == nullptr) return MismatchError("table \"" + wanted.name + "\": has no values");
  const bool quantized = values->dtype == DType::kI8 && FindColumn(part, kScales) != nullptr;
  if ((values->dtype == wanted.dtype || quantized) &&
      values->entry_shape == std::vector<std::uint64_t>{wanted.dim}) {
    return Status::Ok();
  }
  return MismatchError(fmt::format("table \"{}\": stored rows are {} [{}], the model wants {} [{}]",
                                   wanted.name, DTypeName(values->dtype),
                                   fmt::join(values->entry_shape, ","), DTypeName(wanted.dtype),
                                   wanted.dim));
}

Status UpdateSink::Start(std::vector<TablePart>* parts) {
  std::vector<std::uint64_t> rows(versions_->tables().size());
  std::vector<bool> there(versions_->tables().size());
  for (TablePart& part : *parts) {
    const std::ptrdiff_t index = versions_->Find(part.table);
    if (index < 0) {
      part.wanted.clear();
      continue;
    }
    const auto i = static_cast<std::size_t>(index);
    RETURN_IF_ERROR(Fits(part, *versions_->tables()[i]));
    there[i] = true;
    if (!part.increment) rows[i] += part.rows;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    VersionedTable* table = versions_->tables()[i].get();
    if (replaces_ && !there[i]) {
      return MismatchError("table \"" + table->options().name + "\" is not in the checkpoint");
    }
    if (rows[i] > 0) RETURN_IF_ERROR(table->Reserve(rows[i]));
  }
  return Status::Ok();
}

Status UpdateSink::Begin(const TablePart& /*part*/) {
  packed_keys_.clear();
  unpacked_keys_.clear();
  return Status::Ok();
}

Status UpdateSink::Block(const TablePart& part, const TableBlock& block) {
  const std::ptrdiff_t found = versions_->Find(part.table);
  if (found < 0) return Status::Ok();
  const auto index = static_cast<std::size_t>(found);
  switch (block.group) {
    case TableGroup::kPending:
      break;
    case TableGroup::kPacked: {
      const std::span<const std::byte> bytes = BytesOf(part, block, kPackedKeys);
      packed_keys_.insert(packed_keys_.end(), bytes.begin(), bytes.end());
      break;
    }
    case TableGroup::kDeleted:
      CopyNumbers(BytesOf(part, block, kDeleted), &keys_);
      RETURN_IF_ERROR(versions_->tables()[index]->Delete(keys_));
      deleted_ += keys_.size();
      if (!not_finite_.empty()) {
        for (const std::int64_t key : keys_) not_finite_.erase({index, key});
      }
      break;
    case TableGroup::kRows:
      RETURN_IF_ERROR(PutRows(part, block, index));
      break;
  }
  if (options_.pause) options_.pause();
  return Status::Ok();
}

Status UpdateSink::PutRows(const TablePart& part, const TableBlock& block, std::size_t index) {
  VersionedTable* table = versions_->tables()[index].get();
  const ServedTable& wanted = table->options();
  if (packed_keys_.empty()) {
    CopyNumbers(BytesOf(part, block, kKeys), &keys_);
  } else {
    if (unpacked_keys_.empty()) {
      ASSIGN_OR_RETURN(unpacked_keys_, DecodeTableKeys(packed_keys_, part.rows));
    }
    if (block.first > unpacked_keys_.size() || block.count > unpacked_keys_.size() - block.first) {
      return CorruptionError("table \"" + part.table + "\": fewer keys than rows");
    }
    const auto first = unpacked_keys_.begin() + static_cast<std::ptrdiff_t>(block.first);
    keys_.assign(first, first + static_cast<std::ptrdiff_t>(block.count));
  }
  std::span<const std::byte> values = BytesOf(part, block, kValues);
  if (FindColumn(part, kValues)->dtype == DType::kI8) {
    std::vector<float> scales;
    CopyNumbers(BytesOf(part, block, kScales), &scales);
    std::vector<float> row(wanted.dim);
    const table::RowLayout layout(wanted.dim, wanted.dtype, {});
    values_.resize(keys_.size() * table->row_bytes());
    for (std::size_t i = 0; i < keys_.size() && i < scales.size(); ++i) {
      DequantizeRow(reinterpret_cast<const std::int8_t*>(values.data()) + i * wanted.dim, scales[i],
                    row);
      layout.WriteStored(row.data(), values_.data() + i * table->row_bytes());
    }
    values = values_;
  }
  if (values.size() != keys_.size() * table->row_bytes()) {
    return CorruptionError("table \"" + part.table + "\": its columns have different lengths");
  }
  RETURN_IF_ERROR(table->Put(keys_, values.data()));
  rows_ += keys_.size();
  if (options_.finite) NoteNotFinite(index, keys_, values.data());
  return Status::Ok();
}

/// A row that comes again, finite, in a later increment is in order.
void UpdateSink::NoteNotFinite(std::size_t index, const std::vector<std::int64_t>& keys,
                               const std::byte* values) {
  const VersionedTable& table = *versions_->tables()[index];
  const ServedTable& wanted = table.options();
  if (not_finite_.empty() && AllFinite(wanted.dtype, values, keys.size() * table.row_bytes()))
    return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::pair place(index, keys[i]);
    if (AllFinite(wanted.dtype, values + i * table.row_bytes(), table.row_bytes())) {
      not_finite_.erase(place);
    } else {
      not_finite_.insert(place);
    }
  }
}

Status UpdateSink::Finish() const {
  if (not_finite_.empty()) return Status::Ok();
  const auto& [index, key] = *not_finite_.begin();
  return FailedPreconditionError(
      fmt::format("table \"{}\": the row of key {} has NaN or infinite weights ({} such rows)",
                  versions_->tables()[index]->options().name, key, not_finite_.size()));
}

}  // namespace cairn::serving

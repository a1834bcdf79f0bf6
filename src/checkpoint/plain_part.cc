#include "checkpoint/plain_part.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "format/half_float.h"
#include "format/key_column.h"
#include "format/row_quantization.h"

namespace cairn {
namespace {

constexpr std::string_view kValuesColumn = "values";
constexpr std::string_view kSlotPrefix = "slot/";
constexpr std::string_view kScaleSuffix = "_scale";

/// The scales of a column of 8-bit rows, or nothing.
std::optional<std::size_t> ScaleOf(const StoredTable& table, const TableColumn& column) {
  if (column.group != TableGroup::kRows || column.dtype != DType::kI8) return std::nullopt;
  if (column.name != kValuesColumn && !column.name.starts_with(kSlotPrefix)) return std::nullopt;
  const std::ptrdiff_t index = table.Find(column.name + std::string(kScaleSuffix));
  if (index < 0) return std::nullopt;
  const TableColumn& scale = table.part.columns[static_cast<std::size_t>(index)];
  if (scale.dtype != DType::kF32 || !scale.entry_shape.empty()) return std::nullopt;
  return static_cast<std::size_t>(index);
}

bool IsWeights(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

PlainPart::PlainPart(StoredTable table, StoredBytes* bytes, DType weights)
    : table_(std::move(table)), bytes_(bytes) {
  const std::vector<TableColumn>& stored = table_.part.columns;
  const std::string packed_keys = std::string(kKeysColumn) + std::string(kPackedSuffix);
  std::vector<std::size_t> scales;
  for (const TableColumn& column : stored) {
    if (const auto scale = ScaleOf(table_, column)) scales.push_back(*scale);
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (std::find(scales.begin(), scales.end(), i) != scales.end()) continue;
    TableColumn plain = stored[i];
    const std::optional<std::size_t> scale = ScaleOf(table_, plain);
    if (plain.name == packed_keys) {
      packed_ = i;
      plain = {.name = std::string(kKeysColumn),
               .group = TableGroup::kRows,
               .dtype = DType::kI64,
               .entry_shape = {},
               .entry_bytes = sizeof(std::int64_t)};
    } else if (scale && IsWeights(weights)) {
      const std::uint64_t width = plain.entry_bytes;  // a byte each
      plain.dtype = plain.name == kValuesColumn ? weights : DType::kF32;
      plain.entry_bytes = width * static_cast<std::uint64_t>(DTypeBits(plain.dtype)) / 8;
    }
    columns_.push_back(std::move(plain));
    origins_.push_back({i, IsWeights(weights) ? scale : std::nullopt});
  }
}

const TableColumn* PlainPart::Find(std::string_view column) const {
  const auto it = std::find_if(columns_.begin(), columns_.end(),
                               [&](const TableColumn& one) { return one.name == column; });
  return it == columns_.end() ? nullptr : &*it;
}

Status PlainPart::ReadStored(std::size_t column, std::uint64_t entry, std::span<std::byte> into) {
  return bytes_->Read(table_.file,
                      table_.begin[column] + entry * table_.part.columns[column].entry_bytes, into);
}

Status PlainPart::Unpack() {
  if (!unpacked_.empty() || table_.part.rows == 0) return Status::Ok();
  try {
    std::vector<std::byte> packed(table_.entries[*packed_]);
    RETURN_IF_ERROR(ReadStored(*packed_, 0, packed));
    auto keys = DecodeKeyColumn(packed, table_.part.rows);
    if (!keys.ok()) return keys.status().WithContext("table " + table_.part.table);
    unpacked_ = *std::move(keys);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("no memory for the keys of table " + table_.part.table);
  }
  return Status::Ok();
}

Result<std::vector<std::int64_t>> PlainPart::Keys(std::string_view column, std::uint64_t first,
                                                  std::uint64_t count) {
  if (count == 0 || Find(column) == nullptr) return std::vector<std::int64_t>();
  std::vector<std::int64_t> keys(count);
  RETURN_IF_ERROR(Read(column, first, std::as_writable_bytes(std::span(keys))));
  return keys;
}

Status PlainPart::Read(std::string_view name, std::uint64_t entry, std::span<std::byte> into) {
  const TableColumn* column = Find(name);
  if (column == nullptr) {
    return InternalError("column " + std::string(name) + " is not in this part");
  }
  const Origin& origin = origins_[static_cast<std::size_t>(column - columns_.data())];
  if (origin.scale) return ReadQuantized(*column, origin, entry, into);
  if (origin.stored != packed_) return ReadStored(origin.stored, entry, into);
  RETURN_IF_ERROR(Unpack());
  const std::uint64_t count = into.size() / sizeof(std::int64_t);
  if (entry > unpacked_.size() || count > unpacked_.size() - entry) {
    return CorruptionError("table " + table_.part.table + ": fewer keys than rows");
  }
  if (count > 0) std::memcpy(into.data(), unpacked_.data() + entry, count * sizeof(std::int64_t));
  return Status::Ok();
}

Status PlainPart::ReadQuantized(const TableColumn& column, const Origin& origin,
                                std::uint64_t entry, std::span<std::byte> into) {
  if (into.empty()) return Status::Ok();
  const std::uint64_t width = table_.part.columns[origin.stored].entry_bytes;
  const std::uint64_t count = into.size() / column.entry_bytes;
  std::vector<std::int8_t> integers(count * width);
  std::vector<float> scales(count);
  std::vector<float> row(width);
  RETURN_IF_ERROR(ReadStored(origin.stored, entry, std::as_writable_bytes(std::span(integers))));
  RETURN_IF_ERROR(ReadStored(*origin.scale, entry, std::as_writable_bytes(std::span(scales))));
  for (std::uint64_t i = 0; i < count; ++i) {
    DequantizeRow(integers.data() + i * width, scales[i], row);
    WriteFloats(column.dtype, row.data(), width, into.data() + i * column.entry_bytes);
  }
  return Status::Ok();
}

}  // namespace cairn

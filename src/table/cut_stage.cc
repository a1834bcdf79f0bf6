#include "table/cut_stage.h"

#include <cstring>

namespace cairn::table {
namespace {

/// The size is known here, so that a row is a few moves and not a call.
template <std::size_t kBytes>
void CopyFixed(std::span<const RowHeader* const> rows, std::size_t offset, std::byte* out) {
  for (const RowHeader* row : rows) {
    std::memcpy(out, RowLayout::Bytes(row) + offset, kBytes);
    out += kBytes;
  }
}

}  // namespace

void CopyColumn(std::span<const RowHeader* const> rows, const RowLayout::Column& column,
                std::byte* out) {
  switch (column.bytes) {
    case 4:
      return CopyFixed<4>(rows, column.offset, out);
    case 16:
      return CopyFixed<16>(rows, column.offset, out);
    case 32:
      return CopyFixed<32>(rows, column.offset, out);
    case 64:
      return CopyFixed<64>(rows, column.offset, out);
    case 128:
      return CopyFixed<128>(rows, column.offset, out);
    default:
      for (const RowHeader* row : rows) {
        std::memcpy(out, RowLayout::Bytes(row) + column.offset, column.bytes);
        out += column.bytes;
      }
  }
}

std::size_t CutStage::RowBytes(const RowLayout& layout, bool weights) {
  std::size_t bytes = 24;
  for (std::size_t c = weights ? 0 : 1; c < layout.columns().size(); ++c) {
    bytes += layout.columns()[c].bytes;
  }
  return bytes;
}

CutStage::CutStage(const RowLayout* layout, std::span<const std::uint32_t> counts,
                   std::uint32_t shards, Slab* memory)
    : layout_(layout),
      counts_(counts),
      payload_(layout->columns().size()),
      shards_(shards),
      memory_(memory) {
  for (std::size_t c = 1; c < payload_.size(); ++c) {
    payload_[c] = row_bytes_;
    row_bytes_ += layout->columns()[c].bytes;
  }
  payload_[0] = row_bytes_;
}

bool CutStage::Open(std::uint32_t shard, std::byte* weights) {
  Staged& staged = shards_[shard];
  const std::size_t bytes = row_bytes_ + (weights == nullptr ? layout_->columns()[0].bytes : 0);
  staged.base = memory_->Allocate(counts_[shard] * bytes);
  if (staged.base == nullptr) return false;
  staged.weights = weights != nullptr ? weights : At<std::byte>(shard, payload_[0]);
  return true;
}

void CutStage::Put(std::uint32_t shard, std::size_t number,
                   std::span<const RowHeader* const> rows) {
  std::int64_t* const keys = Keys(shard) + number;
  std::int64_t* const versions = Versions(shard) + number;
  std::int64_t* const frequencies = Frequencies(shard) + number;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    keys[i] = rows[i]->key;
    versions[i] = rows[i]->version;
    frequencies[i] = rows[i]->frequency;
  }
  for (std::size_t c = 0; c < payload_.size(); ++c) {
    const RowLayout::Column& column = layout_->columns()[c];
    CopyColumn(rows, column, Payload(shard, c) + number * column.bytes);
  }
}

}  // namespace cairn::table

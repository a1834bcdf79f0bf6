#include "table/cut_stage.h"

#include <cstring>

namespace cairn::table {

std::size_t CutStage::RowBytes(const RowLayout& layout, bool weights) {
  std::size_t bytes = 24;
  for (std::size_t c = weights ? 0 : 1; c < layout.columns().size(); ++c) {
    bytes += layout.columns()[c].bytes;
  }
  return bytes;
}

CutStage::CutStage(const RowLayout* layout, std::span<const std::uint32_t> counts,
                   std::uint32_t shards, bool weights)
    : layout_(layout),
      counts_(counts),
      weights_(weights),
      payload_(layout->columns().size()),
      shards_(shards) {
  for (std::size_t c = 1; c < payload_.size(); ++c) {
    payload_[c] = row_bytes_;
    row_bytes_ += layout->columns()[c].bytes;
  }
  if (!payload_.empty()) payload_[0] = row_bytes_;
}

bool CutStage::Open(std::uint32_t shard, bool weights_too) {
  Staged& staged = shards_[shard];
  staged.weights = weights_ || weights_too;
  std::size_t bytes = row_bytes_;
  if (staged.weights && !payload_.empty()) bytes += layout_->columns()[0].bytes;
  staged.base = slab_.Allocate(counts_[shard] * bytes);
  return staged.base != nullptr;
}

void CutStage::Put(std::uint32_t shard, std::size_t number, const RowHeader* row) {
  Keys(shard)[number] = row->key;
  Versions(shard)[number] = row->version;
  Frequencies(shard)[number] = row->frequency;
  for (std::size_t c = shards_[shard].weights ? 0 : 1; c < payload_.size(); ++c) {
    const RowLayout::Column& column = layout_->columns()[c];
    std::memcpy(Payload(shard, c) + number * column.bytes, RowLayout::Bytes(row) + column.offset,
                column.bytes);
  }
}

}  // namespace cairn::table

#include "table/cut_stage.h"

#include <cstring>

namespace cairn::table {

CutStage::CutStage(const RowLayout* layout, std::span<const std::uint32_t> counts,
                   std::uint64_t limit, bool weights)
    : layout_(layout),
      counts_(counts),
      first_column_(weights ? 0 : 1),
      left_(limit),
      payload_(layout->columns().size()),
      shards_(limit == 0 ? 0 : kTableShards) {
  for (std::size_t c = first_column_; c < payload_.size(); ++c) {
    payload_[c] = row_bytes_;
    row_bytes_ += layout->columns()[c].bytes;
  }
}

bool CutStage::Open(std::uint32_t shard) {
  const std::uint64_t bytes = std::uint64_t{counts_[shard]} * row_bytes_;
  if (shards_.empty() || bytes > left_) return false;
  std::byte* base = slab_.Allocate(bytes);
  if (base == nullptr) return false;  // without memory it is only slower
  left_ -= bytes;
  shards_[shard].base = base;
  return true;
}

void CutStage::Put(std::uint32_t shard, std::size_t number, const RowStore& store,
                   const RowStore::CutRow& row) {
  Keys(shard)[number] = row.header->key;
  Versions(shard)[number] = row.header->version;
  Frequencies(shard)[number] = row.header->frequency;
  for (std::size_t c = first_column_; c < payload_.size(); ++c) {
    const std::size_t bytes = layout_->columns()[c].bytes;
    std::memcpy(Payload(shard, c) + number * bytes, store.CutColumn(row, c), bytes);
  }
}

}  // namespace cairn::table

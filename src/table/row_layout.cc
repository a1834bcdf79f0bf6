#include "table/row_layout.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "format/half_float.h"

namespace cairn::table {

RowLayout::RowLayout(std::uint32_t dim, DType dtype, std::vector<SlotSpec> slots)
    : dim_(dim), dtype_(dtype), slots_(std::move(slots)) {
  auto offset = static_cast<std::uint32_t>(sizeof(RowHeader));
  const auto weight_bytes = dim * static_cast<std::uint32_t>(DTypeBits(dtype) / 8);
  columns_.push_back({offset, weight_bytes});
  offset += (weight_bytes + 3) / 4 * 4;  // slots are floats
  slots_offset_ = offset;
  for (const SlotSpec& slot : slots_) {
    columns_.push_back({offset, slot.width * 4});
    offset += slot.width * 4;
    slot_floats_ += slot.width;
  }
  stride_ = (offset + 7) / 8 * 8;
}

void RowLayout::ReadStored(const std::byte* stored, float* out) const {
  ReadFloats(dtype_, stored, dim_, out);
}

void RowLayout::WriteStored(const float* values, std::byte* stored) const {
  WriteFloats(dtype_, values, dim_, stored);
}

void RowLayout::InitializeSlots(RowHeader* row) const {
  float* at = Slots(row);
  for (const SlotSpec& slot : slots_) {
    std::fill_n(at, slot.width, slot.initial);
    at += slot.width;
  }
}

}  // namespace cairn::table

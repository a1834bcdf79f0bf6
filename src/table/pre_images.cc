#include "table/pre_images.h"

#include <cstring>

namespace cairn::table {

PreImages::PreImages(const RowLayout* layout, std::uint64_t dropped)
    : layout_(layout), dropped_(dropped), map_(16), blocks_(layout->columns().size()) {}

std::uint64_t PreImages::CostOfOne() const {
  std::uint64_t bytes = sizeof(RowHeader) + kMapCost;
  for (std::size_t c = 0; c < blocks_.size(); ++c) {
    if (!Dropped(c)) bytes += layout_->columns()[c].bytes;
  }
  return bytes;
}

std::size_t PreImages::PlaceOf(const RowHeader* row) const {
  const std::size_t mask = map_.size() - 1;
  auto hash = reinterpret_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ULL;
  std::size_t i = (hash >> 32) & mask;
  while (map_[i].row != nullptr && map_[i].row != row) i = (i + 1) & mask;
  return i;
}

void PreImages::GrowMap() {
  std::vector<Place> old(map_.size() * 2);
  old.swap(map_);
  for (const Place& place : old) {
    if (place.row != nullptr) map_[PlaceOf(place.row)] = place;
  }
}

void PreImages::Keep(const RowHeader* row) {
  const auto number = static_cast<std::uint32_t>(headers_.size());
  if (headers_.size() == headers_.capacity()) headers_.reserve(headers_.size() * 2 + 8);
  if ((headers_.size() + 1) * 3 > map_.size() * 2) GrowMap();
  for (std::size_t c = 0; c < blocks_.size(); ++c) {
    const RowLayout::Column& column = layout_->columns()[c];
    if (Dropped(c) || column.bytes == 0) continue;
    if (number / kBlockRows >= blocks_[c].size()) {
      blocks_[c].push_back(
          std::make_unique_for_overwrite<std::byte[]>(std::size_t{kBlockRows} * column.bytes));
    }
    std::memcpy(
        blocks_[c][number / kBlockRows].get() + std::size_t{number % kBlockRows} * column.bytes,
        RowLayout::Bytes(row) + column.offset, column.bytes);
  }
  headers_.push_back(*row);
  map_[PlaceOf(row)] = {row, number};
}

bool PreImages::Find(const RowHeader* row, Image* image) const {
  const Place& place = map_[PlaceOf(row)];
  if (place.row == nullptr) return false;
  *image = {&headers_[place.number], place.number};
  return true;
}

const std::byte* PreImages::Column(const Image& image, std::size_t column) const {
  return blocks_[column][image.number / kBlockRows].get() +
         std::size_t{image.number % kBlockRows} * layout_->columns()[column].bytes;
}

std::uint64_t PreImages::DropColumn(std::size_t column) {
  if (Dropped(column)) return 0;
  dropped_ |= std::uint64_t{1} << column;
  blocks_[column].clear();
  blocks_[column].shrink_to_fit();
  return headers_.size() * std::uint64_t{layout_->columns()[column].bytes};
}

std::uint64_t PreImages::bytes() const { return headers_.size() * CostOfOne(); }

}  // namespace cairn::table

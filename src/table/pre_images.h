#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "table/row_layout.h"

namespace cairn::table {

/// What rows of one shard held at the cut that is being written, kept by those who changed them
/// since. Column by column, so that a column that was written gives its memory back at once.
/// Guarded by the shard's lock.
class PreImages {
 public:
  /// `dropped`: a bit for each column that nobody will ask for.
  PreImages(const RowLayout* layout, std::uint64_t dropped);

  /// Bytes that Keep will use for one row now.
  std::uint64_t CostOfOne() const;
  /// Keeps the row as it is. At most once for a row.
  void Keep(const RowHeader* row);
  /// Where the row was kept, or nullptr.
  struct Image {
    const RowHeader* header;
    std::uint32_t number;
  };
  bool Find(const RowHeader* row, Image* image) const;
  /// A payload column of a kept row (RowLayout::columns).
  const std::byte* Column(const Image& image, std::size_t column) const;
  /// No one will ask for this column again; returns the bytes that are free now.
  std::uint64_t DropColumn(std::size_t column);
  /// What all that is kept was taken for.
  std::uint64_t bytes() const;

 private:
  static constexpr std::uint32_t kBlockRows = 64;
  static constexpr std::uint64_t kMapCost = 24;  // a place of the map, at two thirds
  struct Place {
    const RowHeader* row = nullptr;
    std::uint32_t number = 0;
  };
  std::size_t PlaceOf(const RowHeader* row) const;
  void GrowMap();

  bool Dropped(std::size_t column) const { return (dropped_ >> column & 1) != 0; }

  const RowLayout* layout_;
  std::uint64_t dropped_;
  std::vector<Place> map_;          // open addressing; a power of two
  std::vector<RowHeader> headers_;  // by number
  std::vector<std::vector<std::unique_ptr<std::byte[]>>> blocks_;  // by column, kBlockRows each
};

}  // namespace cairn::table

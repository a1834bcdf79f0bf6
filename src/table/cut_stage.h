#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table/slab.h"
#include "table/table_impl.h"

namespace cairn::table {

/// A column of some rows, one after the other.
void CopyColumn(std::span<const RowHeader* const> rows, const RowLayout::Column& column,
                std::byte* out);

/// The rows of an increment as columns, filled while its first column is read. Rows of an increment
/// lie apart in memory, and a walk over them costs the more the more often it is made: so each row
/// is visited once, and all columns are read from here. What is here is no longer kept aside by
/// those who change it. Bounded: only the first shards are gathered here, as many as there is room
/// for; the others are walked for each column. Shards are independent of each other: one thread at
/// a time for each.
class CutStage {
 public:
  /// Bytes that a row takes here. `weights`: they stay.
  static std::size_t RowBytes(const RowLayout& layout, bool weights);

  /// `shards`: so many of the first are gathered. `memory`: rewound by the owner.
  CutStage(const RowLayout* layout, std::span<const std::uint32_t> counts, std::uint32_t shards,
           Slab* memory);

  std::uint32_t shards() const { return static_cast<std::uint32_t>(shards_.size()); }
  bool Gathers(std::uint32_t shard) const { return shard < shards_.size(); }
  std::uint32_t Rows(std::uint32_t shard) const { return counts_[shard]; }
  /// Before Put takes the rows of a shard, in order. `weights`: where they go if they are read
  /// first, and once; nullptr: they stay with the rest. False: there is no memory.
  bool Open(std::uint32_t shard, std::byte* weights);
  void Put(std::uint32_t shard, std::size_t number, std::span<const RowHeader* const> rows);
  /// Memory that lives as long as what is here; nullptr without.
  std::byte* Allocate(std::size_t bytes) { return memory_->Allocate(bytes); }

  // The columns of a shard that is here, one value after the other.
  std::int64_t* Keys(std::uint32_t shard) const { return At<std::int64_t>(shard, kKeys); }
  std::int64_t* Versions(std::uint32_t shard) const { return At<std::int64_t>(shard, kVersions); }
  std::int64_t* Frequencies(std::uint32_t shard) const {
    return At<std::int64_t>(shard, kFrequencies);
  }
  /// Column 0 are the weights.
  std::byte* Payload(std::uint32_t shard, std::size_t column) const {
    return column == 0 ? shards_[shard].weights : At<std::byte>(shard, payload_[column]);
  }

 private:
  static constexpr std::size_t kKeys = 0;
  static constexpr std::size_t kVersions = 8;
  static constexpr std::size_t kFrequencies = 16;
  struct Staged {
    std::byte* base = nullptr;
    std::byte* weights = nullptr;
  };
  /// A column begins at so many bytes for each row of the shard.
  template <typename T>
  T* At(std::uint32_t shard, std::size_t bytes_before) const {
    return reinterpret_cast<T*>(shards_[shard].base + bytes_before * counts_[shard]);
  }

  const RowLayout* const layout_;
  const std::span<const std::uint32_t> counts_;
  std::size_t row_bytes_ = 24;        // without the weights, which stand last
  std::vector<std::size_t> payload_;  // where a column begins, as above
  std::vector<Staged> shards_;
  Slab* const memory_;
};

}  // namespace cairn::table

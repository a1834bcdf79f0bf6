#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/optimizer.h>

namespace cairn::table {

/// What every record begins with. Weights and slots follow.
struct RowHeader {
  std::int64_t key;
  std::int64_t version;
  std::uint32_t frequency;  // kDeadRow: the place is free
  std::uint32_t epoch;      // of the last change
};
static_assert(sizeof(RowHeader) == 24);

inline constexpr std::uint32_t kDeadRow = ~std::uint32_t{0};
inline constexpr std::uint32_t kMaxFrequency = kDeadRow - 1;  // counts stay there

/// Where the columns of a row stand in its record: the weights, then each slot. A layout without
/// weights (dim 0) has only the header. Immutable.
class RowLayout {
 public:
  RowLayout() = default;
  RowLayout(std::uint32_t dim, DType dtype, std::vector<SlotSpec> slots);

  struct Column {
    std::uint32_t offset = 0;  // from the start of the record
    std::uint32_t bytes = 0;
  };
  /// The weights, then one for each slot.
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<SlotSpec>& slots() const { return slots_; }
  std::uint32_t dim() const { return dim_; }
  DType dtype() const { return dtype_; }
  std::size_t stride() const { return stride_; }
  std::uint32_t slot_floats() const { return slot_floats_; }

  static std::byte* Bytes(RowHeader* row) { return reinterpret_cast<std::byte*>(row); }
  static const std::byte* Bytes(const RowHeader* row) {
    return reinterpret_cast<const std::byte*>(row);
  }
  float* Slots(RowHeader* row) const {
    return reinterpret_cast<float*>(Bytes(row) + slots_offset_);
  }
  const float* Slots(const RowHeader* row) const {
    return reinterpret_cast<const float*>(Bytes(row) + slots_offset_);
  }
  /// Of float32 rows only.
  float* Weights(RowHeader* row) const {
    return reinterpret_cast<float*>(Bytes(row) + sizeof(RowHeader));
  }
  void ReadWeights(const RowHeader* row, float* out) const {
    ReadStored(Bytes(row) + sizeof(RowHeader), out);
  }
  void WriteWeights(RowHeader* row, const float* values) const {
    WriteStored(values, Bytes(row) + sizeof(RowHeader));
  }
  /// Between float32 and the type that weights are stored in.
  void ReadStored(const std::byte* stored, float* out) const;
  void WriteStored(const float* values, std::byte* stored) const;
  /// The slots of a row that was just made.
  void InitializeSlots(RowHeader* row) const;

 private:
  std::uint32_t dim_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<SlotSpec> slots_;
  std::vector<Column> columns_;
  std::uint32_t slots_offset_ = sizeof(RowHeader);
  std::uint32_t slot_floats_ = 0;
  std::size_t stride_ = sizeof(RowHeader);
};

}  // namespace cairn::table

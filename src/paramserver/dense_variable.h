#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/optimizer.h>
#include <cairn/ps.h>
#include <cairn/status.h>

#include "paramserver/placement.h"

namespace cairn::ps {

/// The blocks of a dense variable that one server has: values and the optimizer's slots. Each row
/// is updated by itself, so that the result does not depend on how the variable is split. Not
/// thread-safe: its owner has the lock.
class DenseVariable {
 public:
  /// All zero.
  static Result<std::unique_ptr<DenseVariable>> Make(DenseSpec spec, int server, int servers);

  const DenseSpec& spec() const { return spec_; }
  /// Of this server's blocks, back to back.
  std::span<const float> values() const { return values_; }
  std::span<float> values() { return values_; }
  /// Of the same rows, all slots of a row together.
  std::span<const float> slots() const { return slots_; }

  /// Sets the values and begins the slots anew. InvalidArgument when it is another number.
  Status Assign(std::span<const float> values);
  /// InvalidArgument when it is another number of elements; nothing changed.
  Status Apply(std::span<const float> gradient);

  /// As pieces of the whole variable: <name> and, where the optimizer has some, <name>/slots.
  std::vector<Tensor> Tensors() const;
  std::vector<MutableTensor> MutableTensors();

 private:
  struct Piece {
    std::string name;
    std::vector<std::uint64_t> shape;
    ShardSpec shard;
    float* data;
  };
  DenseVariable() = default;
  std::vector<Piece> Pieces();

  DenseSpec spec_;
  DenseShape shape_;
  std::vector<DenseBlock> blocks_;
  std::shared_ptr<const Optimizer> optimizer_;  // shared: as tables have it
  std::vector<SlotSpec> slot_specs_;
  std::uint64_t slot_width_ = 0;  // of a row, all slots
  std::vector<float> values_;
  std::vector<float> slots_;
};

}  // namespace cairn::ps

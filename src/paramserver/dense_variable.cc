#include "paramserver/dense_variable.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "paramserver/declaration.h"

namespace cairn::ps {

Result<std::unique_ptr<DenseVariable>> DenseVariable::Make(DenseSpec spec, int server,
                                                           int servers) {
  auto variable = std::unique_ptr<DenseVariable>(new DenseVariable());
  ASSIGN_OR_RETURN(variable->shape_, RowsOf(spec.shape));
  if (variable->shape_.width > 0xffffffff) {
    return InvalidArgumentError("dense variable \"" + spec.name + "\": rows too long");
  }
  ASSIGN_OR_RETURN(variable->optimizer_, MakeOptimizer(spec.optimizer));
  variable->slot_specs_ =
      variable->optimizer_->Slots(static_cast<std::uint32_t>(variable->shape_.width));
  for (const SlotSpec& slot : variable->slot_specs_) variable->slot_width_ += slot.width;
  variable->blocks_ = BlocksOf(spec.name, variable->shape_, server, servers);
  variable->spec_ = std::move(spec);
  const std::uint64_t rows = RowsIn(variable->blocks_);
  variable->values_.resize(rows * variable->shape_.width);
  variable->slots_.resize(rows * variable->slot_width_);
  RETURN_IF_ERROR(variable->Assign(variable->values_));
  return variable;
}

Status DenseVariable::Assign(std::span<const float> values) {
  if (values.size() != values_.size()) {
    return InvalidArgumentError("dense variable \"" + spec_.name + "\": this server has " +
                                std::to_string(values_.size()) + " elements of it, not " +
                                std::to_string(values.size()));
  }
  if (values.data() != values_.data()) std::copy(values.begin(), values.end(), values_.begin());
  float* at = slots_.data();
  for (std::uint64_t row = RowsIn(blocks_); row > 0; --row) {
    for (const SlotSpec& slot : slot_specs_) at = std::fill_n(at, slot.width, slot.initial);
  }
  return Status::Ok();
}

Status DenseVariable::Apply(std::span<const float> gradient) {
  if (gradient.size() != values_.size()) {
    return InvalidArgumentError("dense variable \"" + spec_.name + "\": a gradient of " +
                                std::to_string(gradient.size()) + " elements for " +
                                std::to_string(values_.size()));
  }
  const std::uint64_t width = shape_.width;
  const float rate = optimizer_->learning_rate();
  for (std::uint64_t row = 0; row * width < values_.size(); ++row) {
    optimizer_->Apply(values_.data() + row * width, slots_.data() + row * slot_width_,
                      gradient.data() + row * width, static_cast<std::uint32_t>(width), rate);
  }
  return Status::Ok();
}

std::vector<DenseVariable::Piece> DenseVariable::Pieces() {
  std::vector<Piece> pieces;
  std::uint64_t row = 0;
  for (const DenseBlock& block : blocks_) {
    Piece piece;
    piece.name = spec_.name;
    piece.shape = spec_.shape;
    piece.shard.global_shape = spec_.shape;
    piece.shard.offset.assign(spec_.shape.size(), 0);
    if (!spec_.shape.empty()) {
      piece.shape[0] = block.count;
      piece.shard.offset[0] = block.first;
    }
    piece.data = values_.data() + row * shape_.width;
    pieces.push_back(std::move(piece));
    if (slot_width_ > 0) {
      pieces.push_back({spec_.name + "/slots",
                        {block.count, slot_width_},
                        {{shape_.rows, slot_width_}, {block.first, 0}},
                        slots_.data() + row * slot_width_});
    }
    row += block.count;
  }
  return pieces;
}

std::vector<Tensor> DenseVariable::Tensors() const {
  std::vector<Tensor> tensors;
  for (Piece& piece : const_cast<DenseVariable*>(this)->Pieces()) {
    Tensor tensor;
    tensor.name = std::move(piece.name);
    tensor.shape = std::move(piece.shape);
    tensor.data = piece.data;
    // A plain number is whole.
    if (!piece.shard.global_shape.empty()) tensor.shard = std::move(piece.shard);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<MutableTensor> DenseVariable::MutableTensors() {
  std::vector<MutableTensor> tensors;
  for (Piece& piece : Pieces()) {
    MutableTensor tensor;
    tensor.name = std::move(piece.name);
    tensor.shape = std::move(piece.shape);
    tensor.data = piece.data;
    // A plain number is whole.
    if (!piece.shard.global_shape.empty()) tensor.shard = std::move(piece.shard);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace cairn::ps

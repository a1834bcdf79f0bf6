#include "checkpoint/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
namespace {

constexpr int kMaxDepth = 256;

using Pieces = std::span<const StoredPiece*>;

// Exact for every array whose bytes fit 64 bits; a zero extent hides overflow, so zeros go first.
std::uint64_t Volume(const std::vector<std::uint64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t volume = 1;
  for (const std::uint64_t extent : shape) volume *= extent;
  return volume;
}

bool Overlap(const StoredPiece& a, const StoredPiece& b) {
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

// Compares each piece with those whose extent in dimension 0 reaches it.
bool AnyOverlapBySweep(Pieces pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const StoredPiece* a, const StoredPiece* b) { return a->offset[0] < b->offset[0]; });
  std::vector<const StoredPiece*> active;
  for (const StoredPiece* piece : pieces) {
    std::erase_if(active, [&](const StoredPiece* other) {
      return other->offset[0] + other->shape[0] <= piece->offset[0];
    });
    for (const StoredPiece* other : active) {
      if (Overlap(*piece, *other)) return true;
    }
    active.push_back(piece);
  }
  return false;
}

// Pieces fall into groups along a dimension where no piece of one reaches into the next; groups
// cannot overlap and are looked at alone, along the other dimensions. Layouts of grids and cuts
// come apart this way in n log n; what does not is swept. `stuck`: dimensions tried in a row
// without a cut; `depth` bounds the stack against layouts made to be deep.
bool AnyOverlap(Pieces pieces, std::size_t dimension, std::size_t stuck, int depth) {
  if (pieces.size() < 2) return false;
  const std::size_t rank = pieces[0]->shape.size();
  if (stuck == rank || depth == 0) return AnyOverlapBySweep(pieces);
  const std::size_t d = dimension % rank;
  std::sort(pieces.begin(), pieces.end(), [d](const StoredPiece* a, const StoredPiece* b) {
    return a->offset[d] < b->offset[d];
  });
  std::size_t begin = 0;
  std::uint64_t reach = pieces[0]->offset[d] + pieces[0]->shape[d];
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i]->offset[d] >= reach) {
      if (AnyOverlap(pieces.subspan(begin, i - begin), d + 1, 0, depth - 1)) return true;
      begin = i;
    }
    reach = std::max(reach, pieces[i]->offset[d] + pieces[i]->shape[d]);
  }
  return AnyOverlap(pieces.subspan(begin), d + 1, begin == 0 ? stuck + 1 : 0, depth - 1);
}

}  // namespace

Status CheckCoverage(std::string_view name, const StoredTensor& tensor) {
  if (tensor.pieces.size() == 1 && tensor.pieces[0].shape == tensor.shape) return Status::Ok();
  const std::uint64_t whole = Volume(tensor.shape);
  std::uint64_t sum = 0;
  std::vector<const StoredPiece*> pieces;
  for (const StoredPiece& piece : tensor.pieces) {
    const std::uint64_t volume = Volume(piece.shape);
    if (volume == 0) continue;
    if (volume > whole - sum) {
      return CorruptionError(fmt::format("array {}: its pieces hold more than the array", name));
    }
    sum += volume;
    pieces.push_back(&piece);
  }
  if (sum != whole) {
    return CorruptionError(
        fmt::format("array {}: its pieces hold {} of {} elements", name, sum, whole));
  }
  if (AnyOverlap(pieces, 0, 0, kMaxDepth)) {
    return CorruptionError(fmt::format("array {}: its pieces overlap", name));
  }
  return Status::Ok();
}

Status CheckShardsFillArrays(std::span<const Tensor> tensors) {
  std::map<std::pair<TensorGroup, std::string_view>, StoredTensor> arrays;
  for (const Tensor& tensor : tensors) {
    if (!tensor.shard) continue;
    StoredTensor& array = arrays[{tensor.group, tensor.name}];
    if (!array.pieces.empty() && array.shape != tensor.shard->global_shape) {
      return InvalidArgumentError(
          fmt::format("array {}: its shards name different global shapes", tensor.name));
    }
    array.shape = tensor.shard->global_shape;
    array.pieces.push_back({.shape = tensor.shape, .offset = tensor.shard->offset});
  }
  for (const auto& [key, array] : arrays) {
    const Status covered = CheckCoverage(key.second, array);
    if (covered.ok()) continue;
    return InvalidArgumentError(std::string(covered.message()) +
                                "; nobody else saves the rest: open the repository with rank and "
                                "world_size when several processes hold the array");
  }
  return Status::Ok();
}

}  // namespace cairn

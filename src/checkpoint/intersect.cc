#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/restore.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

/// One loop of a copy between two row-major rectangles; strides in bits.
struct Loop {
  std::uint64_t count;
  std::uint64_t from_stride;
  std::uint64_t to_stride;
};

std::vector<std::uint64_t> RowMajorStrides(const std::vector<std::uint64_t>& shape,
                                           std::uint64_t element) {
  std::vector<std::uint64_t> strides(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = element;
    element *= shape[d];
  }
  return strides;
}

/// A rectangle that two row-major arrays share, as nested loops over contiguous stretches.
struct SharedRectangle {
  std::uint64_t from_start = 0;  // bits
  std::uint64_t to_start = 0;
  std::uint64_t stretch = 0;
  std::vector<Loop> loops;  // outermost first; none has a count of 1

  bool WholeBytes() const {
    std::uint64_t odd = from_start | to_start | stretch;
    for (const Loop& loop : loops) odd |= loop.from_stride | loop.to_stride;
    return odd % 8 == 0;
  }
};

// False when they share nothing. No arithmetic overflows: both rectangles lie inside one array
// whose bits fit 64 bits (TensorBytes).
bool Intersect(const StoredPiece& piece, const std::vector<std::uint64_t>& shape,
               const std::vector<std::uint64_t>& offset, std::uint64_t element_bits,
               SharedRectangle* out) {
  const std::size_t rank = shape.size();
  const std::vector<std::uint64_t> from_strides = RowMajorStrides(piece.shape, element_bits);
  const std::vector<std::uint64_t> to_strides = RowMajorStrides(shape, element_bits);
  *out = {.stretch = element_bits};
  bool contiguous = true;  // so far, from the innermost dimension
  for (std::size_t d = rank; d-- > 0;) {
    const std::uint64_t begin = std::max(piece.offset[d], offset[d]);
    const std::uint64_t end = std::min(piece.offset[d] + piece.shape[d], offset[d] + shape[d]);
    if (begin >= end) return false;
    const std::uint64_t extent = end - begin;
    out->from_start += (begin - piece.offset[d]) * from_strides[d];
    out->to_start += (begin - offset[d]) * to_strides[d];
    if (contiguous) {
      out->stretch *= extent;
      contiguous = extent == piece.shape[d] && extent == shape[d];
      continue;
    }
    if (extent == 1) continue;
    if (!out->loops.empty()) {
      Loop& inner = out->loops.back();
      if (from_strides[d] == inner.count * inner.from_stride &&
          to_strides[d] == inner.count * inner.to_stride) {
        inner.count *= extent;  // the two loops are one
        continue;
      }
    }
    out->loops.push_back({extent, from_strides[d], to_strides[d]});
  }
  std::reverse(out->loops.begin(), out->loops.end());
  return true;
}

void AddRuns(const SharedRectangle& rectangle, ByteRun run, std::vector<ByteRun>* runs) {
  run.bytes = rectangle.stretch / 8;
  run.file_offset += rectangle.from_start / 8;
  run.to += rectangle.to_start / 8;
  std::vector<Loop> outer = rectangle.loops;
  if (!outer.empty()) {
    run.count = outer.back().count;
    run.file_stride = outer.back().from_stride / 8;
    run.to_stride = outer.back().to_stride / 8;
    outer.pop_back();
  }
  std::vector<std::uint64_t> at(outer.size(), 0);
  while (true) {
    runs->push_back(run);
    std::size_t d = outer.size();
    for (; d > 0; --d) {
      const Loop& loop = outer[d - 1];
      run.file_offset += loop.from_stride / 8;
      run.to += loop.to_stride / 8;
      if (++at[d - 1] < loop.count) break;
      run.file_offset -= loop.count * loop.from_stride / 8;
      run.to -= loop.count * loop.to_stride / 8;
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

bool Inside(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& offset,
            const std::vector<std::uint64_t>& whole) {
  if (shape.size() != whole.size() || offset.size() != whole.size()) return false;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (offset[d] > whole[d] || shape[d] > whole[d] - offset[d]) return false;
  }
  return true;
}

}  // namespace

Status IntersectPieces(const StoredTensor& stored, const std::vector<std::uint64_t>& shape,
                       const std::vector<std::uint64_t>& offset, std::byte* target,
                       std::size_t owner, std::vector<ByteRun>* runs) {
  if (!Inside(shape, offset, stored.shape)) {
    return InvalidArgumentError(fmt::format("the rectangle [{}] at [{}] is not inside [{}]",
                                            EncodeDims(shape), EncodeDims(offset),
                                            EncodeDims(stored.shape)));
  }
  ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(stored.dtype, shape));
  if (bytes == 0) return Status::Ok();
  const std::size_t before = runs->size();
  const auto bits = static_cast<std::uint64_t>(DTypeBits(stored.dtype));
  for (const StoredPiece& piece : stored.pieces) {
    ByteRun run{.file = piece.file, .file_offset = piece.file_offset, .to = target, .owner = owner};
    if (piece.shape == shape && piece.offset == offset) {  // mostly: the whole of a whole tensor
      run.bytes = bytes;
      runs->push_back(run);
      return Status::Ok();
    }
    SharedRectangle shared;
    if (!Intersect(piece, shape, offset, bits, &shared)) continue;
    if (!shared.WholeBytes()) {
      runs->resize(before);
      return UnimplementedError(
          fmt::format("elements of {} bits in pieces that do not start at whole bytes", bits));
    }
    AddRuns(shared, run, runs);
  }
  return Status::Ok();
}

}  // namespace cairn

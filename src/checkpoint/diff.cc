#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/element_difference.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

// Tensors are compared in batches of so many bytes of each side: many small ones share the chunks
// they are read with, a large one is cut into blocks.
constexpr std::uint64_t kBatchBytes = 64u << 20;

/// A tensor that both checkpoints hold with the same type and shape.
struct Pair {
  std::string name;
  StoredTensor a;
  StoredTensor b;
  ElementDifference difference;
};

/// A rectangle of a pair's array.
struct Block {
  std::size_t pair = 0;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offset;
  std::uint64_t bytes = 0;
};

std::set<std::string> Participants(const OpenCheckpoint& checkpoint) {
  const auto& list = checkpoint.manifest().participants;
  return {list.begin(), list.end()};
}

// All tensors of a checkpoint. Those of tables and states belong to a participant each, and are
// named by it.
Result<TensorMap> AllTensors(OpenCheckpoint* checkpoint) {
  ASSIGN_OR_RETURN(TensorMap all, checkpoint->ReadCatalog(TensorGroup::kModel, ""));
  for (const std::string& participant : Participants(*checkpoint)) {
    for (const TensorGroup group : {TensorGroup::kTable, TensorGroup::kState}) {
      ASSIGN_OR_RETURN(TensorMap own, checkpoint->ReadCatalog(group, participant));
      for (auto& [name, tensor] : own) {
        std::string full = names::Path(participant, name);
        while (all.contains(full)) full += '\'';  // a variable of the model may be called so
        all.emplace(std::move(full), std::move(tensor));
      }
    }
  }
  return all;
}

// True when the manifests alone show that the bytes are the same: each piece stands at the same
// place of chunks with the same sums.
bool SameBySums(const OpenCheckpoint& a, const StoredTensor& x, const OpenCheckpoint& b,
                const StoredTensor& y) {
  if (x.pieces.size() != y.pieces.size()) return false;
  for (std::size_t i = 0; i < x.pieces.size(); ++i) {
    const StoredPiece& p = x.pieces[i];
    const StoredPiece& q = y.pieces[i];
    if (p.shape != q.shape || p.offset != q.offset || p.file_offset != q.file_offset) return false;
    if (p.bytes == 0) continue;
    const FileHash& f = a.files()[p.file].entry->hash;
    const FileHash& g = b.files()[q.file].entry->hash;
    if (f == g) continue;
    const std::size_t first = p.file_offset / kChunkBytes;
    const std::size_t last = (p.file_offset + p.bytes - 1) / kChunkBytes;
    if ((last + 1 == f.chunks.size() || last + 1 == g.chunks.size()) && f.bytes != g.bytes) {
      return false;  // the last chunks have other lengths
    }
    for (std::size_t c = first; c <= last; ++c) {
      if (f.chunks[c] != g.chunks[c]) return false;
    }
  }
  return true;
}

// Cuts the rectangle along its first dimensions into blocks of at most kBatchBytes.
Status Cut(DType dtype, Block block, std::size_t dimension, std::vector<Block>* blocks) {
  ASSIGN_OR_RETURN(block.bytes, TensorBytes(dtype, block.shape));
  if (block.bytes == 0) return Status::Ok();
  if (block.bytes <= kBatchBytes) {
    blocks->push_back(std::move(block));
    return Status::Ok();
  }
  const std::uint64_t extent = block.shape[dimension];
  // Eight rows of any type fill whole bytes.
  std::uint64_t rows =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<unsigned __int128>(extent) *
                                                            kBatchBytes / block.bytes));
  if (rows > 8) rows -= rows % 8;
  for (std::uint64_t row = 0; row < extent; row += rows) {
    Block part = block;
    part.shape[dimension] = std::min(rows, extent - row);
    part.offset[dimension] += row;
    RETURN_IF_ERROR(Cut(dtype, std::move(part), dimension + 1, blocks));
  }
  return Status::Ok();
}

struct FreeMemory {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{4096}); }
};
using Memory = std::unique_ptr<std::byte, FreeMemory>;

Result<Memory> NewMemory(std::uint64_t bytes) {
  void* memory = ::operator new(bytes, std::align_val_t{4096}, std::nothrow);
  if (memory == nullptr) return ResourceExhaustedError("no memory to compare tensors in");
  return Memory(static_cast<std::byte*>(memory));
}

/// Reads pairs of tensors block by block and adds up how they differ.
class Comparison {
 public:
  Comparison(Store* store_a, const OpenCheckpoint& a, Store* store_b, const OpenCheckpoint& b,
             std::vector<Pair>* pairs)
      : store_a_(store_a), a_(a), store_b_(store_b), b_(b), pairs_(*pairs) {}

  Status Run(const Progress& progress) {
    // In the order of the files, so that neighbours share the chunks that are read.
    std::sort(pairs_.begin(), pairs_.end(),
              [](const Pair& x, const Pair& y) { return Position(x) < Position(y); });
    std::vector<Block> blocks;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const std::vector<std::uint64_t>& shape = pairs_[i].a.shape;
      const Status status =
          Cut(pairs_[i].a.dtype,
              {.pair = i, .shape = shape, .offset = std::vector<std::uint64_t>(shape.size(), 0)}, 0,
              &blocks);
      if (!status.ok()) return status.WithContext("tensor " + pairs_[i].name);
    }
    for (const Block& block : blocks) total += block.bytes;
    if (total == 0) return Status::Ok();
    const std::uint64_t memory = std::min(total, kBatchBytes);
    ASSIGN_OR_RETURN(memory_a_, NewMemory(memory));
    ASSIGN_OR_RETURN(memory_b_, NewMemory(memory));
    std::uint64_t done = 0;
    for (std::size_t begin = 0; begin < blocks.size();) {
      std::uint64_t bytes = 0;
      std::size_t end = begin;
      while (end < blocks.size() && bytes + blocks[end].bytes <= memory) {
        bytes += blocks[end++].bytes;
      }
      RETURN_IF_ERROR(CompareBatch(std::span(blocks).subspan(begin, end - begin)));
      begin = end;
      done += bytes;
      if (!progress(done, total)) return CancelledError("interrupted");
    }
    return Status::Ok();
  }

 private:
  static std::pair<std::size_t, std::uint64_t> Position(const Pair& pair) {
    if (pair.a.pieces.empty()) return {0, 0};
    return {pair.a.pieces.front().file, pair.a.pieces.front().file_offset};
  }

  Status Fetch(Store* store, const OpenCheckpoint& checkpoint, StoredTensor Pair::* side,
               std::span<const Block> blocks, std::byte* to) {
    std::vector<ByteRun> runs;
    for (const Block& block : blocks) {
      const Pair& pair = pairs_[block.pair];
      const Status status = IntersectPieces(pair.*side, block.shape, block.offset, to, 0, &runs);
      if (!status.ok()) return status.WithContext("tensor " + pair.name);
      to += block.bytes;
    }
    return ReadRuns(store, checkpoint, runs, {});
  }

  Status CompareBatch(std::span<const Block> blocks) {
    RETURN_IF_ERROR(Fetch(store_a_, a_, &Pair::a, blocks, memory_a_.get()));
    RETURN_IF_ERROR(Fetch(store_b_, b_, &Pair::b, blocks, memory_b_.get()));
    std::uint64_t at = 0;
    for (const Block& block : blocks) {
      Pair& pair = pairs_[block.pair];
      pair.difference.Merge(CompareElements(pair.a.dtype, {memory_a_.get() + at, block.bytes},
                                            {memory_b_.get() + at, block.bytes}));
      at += block.bytes;
    }
    return Status::Ok();
  }

  Store* const store_a_;
  const OpenCheckpoint& a_;
  Store* const store_b_;
  const OpenCheckpoint& b_;
  std::vector<Pair>& pairs_;
  Memory memory_a_;
  Memory memory_b_;
};

}  // namespace

Result<std::vector<TensorDifference>> DiffCheckpoints(Store* store_a, OpenCheckpoint* a,
                                                      Store* store_b, OpenCheckpoint* b,
                                                      const Progress& progress) {
  ASSIGN_OR_RETURN(TensorMap in_a, AllTensors(a));
  ASSIGN_OR_RETURN(TensorMap in_b, AllTensors(b));
  std::vector<TensorDifference> out;
  std::vector<Pair> pairs;
  for (auto& [name, x] : in_a) {
    const auto it = in_b.find(name);
    if (it == in_b.end()) {
      out.push_back({.name = name, .what = "removed"});
      continue;
    }
    StoredTensor& y = it->second;
    if (x.dtype != y.dtype) {
      out.push_back({.name = name, .what = "dtype"});
    } else if (x.shape != y.shape) {
      out.push_back({.name = name, .what = "shape"});
    } else if (!SameBySums(*a, x, *b, y)) {
      pairs.push_back({name, std::move(x), std::move(y)});
    }
  }
  for (const auto& [name, tensor] : in_b) {
    if (!in_a.contains(name)) out.push_back({.name = name, .what = "added"});
  }
  RETURN_IF_ERROR(Comparison(store_a, *a, store_b, *b, &pairs).Run(progress));
  for (const Pair& pair : pairs) {
    if (pair.difference.elements == 0) continue;
    out.push_back({.name = pair.name,
                   .what = "changed",
                   .max_abs = pair.difference.max_abs,
                   .elements = pair.difference.elements});
  }
  std::sort(out.begin(), out.end(),
            [](const TensorDifference& x, const TensorDifference& y) { return x.name < y.name; });
  return out;
}

}  // namespace cairn

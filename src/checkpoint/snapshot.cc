#include "checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/stream_copy.h"

namespace cairn {
namespace {

// Large enough that handing out pieces costs nothing, small enough that all cores end together.
constexpr std::uint64_t kPiece = 4u << 20;

// A snapshot that is larger than any cache is written past it.
constexpr std::uint64_t kStreamFrom = 64u << 20;

struct Copy {
  const std::byte* from;
  std::byte* to;
  std::uint64_t bytes;
};

}  // namespace

void CopyIntoArena(const SaveRequest& request, const SavePlan& plan, std::byte* arena,
                   WorkerPool* pool) {
  if (plan.arena_bytes == 0) return;  // everything is streamed
  // Pieces of about kPiece bytes: big tensors are cut, runs of small ones go together.
  std::vector<Copy> copies;
  std::vector<std::size_t> pieces = {0};  // where each piece begins in `copies`
  std::uint64_t in_piece = 0;
  auto add = [&](const void* from, std::byte* to, std::uint64_t bytes) {
    const auto* source = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      const std::uint64_t n = std::min(bytes, kPiece - in_piece);
      copies.push_back({source, to, n});
      source += n;
      to += n;
      bytes -= n;
      in_piece += n;
      if (in_piece == kPiece) {
        pieces.push_back(copies.size());
        in_piece = 0;
      }
    }
  };
  for (const PlannedFile& file : plan.files) {
    if (file.streamed) {
      for (const PlannedTensor& tensor : file.tensors) {
        const Tensor& source = request.tensors[tensor.index];
        if (source.source == nullptr) add(source.data, arena + tensor.arena_offset, tensor.bytes);
      }
      continue;
    }
    std::byte* to = arena + file.arena_offset;
    add(file.head.data(), to, file.head.size());
    for (const PlannedTensor& tensor : file.tensors) {
      add(request.tensors[tensor.index].data, to + tensor.file_offset, tensor.bytes);
    }
    // The room up to the page's end is written with the last part and cut off again.
    const std::uint64_t rest = (4096 - file.bytes % 4096) % 4096;
    std::memset(to + file.bytes, 0, rest);
  }
  if (pieces.back() != copies.size()) pieces.push_back(copies.size());
  const bool stream = plan.arena_bytes >= kStreamFrom;
  pool->Run(pieces.size() - 1, [&](std::size_t piece) {
    for (std::size_t i = pieces[piece]; i < pieces[piece + 1]; ++i) {
      if (stream) {
        StreamCopy(copies[i].to, copies[i].from, copies[i].bytes);
      } else {
        std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
      }
    }
  });
}

}  // namespace cairn

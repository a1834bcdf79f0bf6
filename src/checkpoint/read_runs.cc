#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "base/thread_annotations.h"
#include "checkpoint/names.h"
#include "checkpoint/read_chunks.h"
#include "checkpoint/restore.h"

namespace cairn {
namespace {

/// That a run has bytes in a chunk.
struct Share {
  std::size_t file;
  std::uint64_t chunk;
  std::size_t run;
};

void Copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Shorter ones are not worth the wait for their last stores.
  constexpr std::size_t kStreamFrom = 256u << 10;
  if (bytes >= kStreamFrom) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

std::uint64_t RunEnd(const ByteRun& run) {
  return run.file_offset + (run.count - 1) * run.file_stride + run.bytes;
}

std::uint64_t FirstRowThatEndsAfter(const ByteRun& run, std::uint64_t position) {
  const std::uint64_t first_end = run.file_offset + run.bytes;
  if (position < first_end) return 0;
  return (position - first_end) / run.file_stride + 1;
}

// Calls `fn(offset in the file, bytes, to)` for the parts of the run inside [begin, end).
template <typename Fn>
void ForEachStretch(const ByteRun& run, std::uint64_t begin, std::uint64_t end, Fn fn) {
  const std::uint64_t first = run.count == 1 ? 0 : FirstRowThatEndsAfter(run, begin);
  for (std::uint64_t i = first; i < run.count; ++i) {
    const std::uint64_t row = run.file_offset + i * run.file_stride;
    const std::uint64_t from = std::max(row, begin);
    const std::uint64_t to = std::min(row + run.bytes, end);
    if (row >= end) return;
    if (from < to) fn(from, to - from, run.to + i * run.to_stride + (from - row));
  }
}

Status CheckRun(const OpenCheckpoint& checkpoint, const ByteRun& run) {
  if (run.file >= checkpoint.files().size()) return InternalError("a run of no file");
  const std::uint64_t bytes = checkpoint.files()[run.file].entry->hash.bytes;
  const std::uint64_t rows = run.count - 1;
  if (run.count == 0 || run.bytes > bytes || run.file_offset > bytes - run.bytes ||
      (rows > 0 && (run.file_stride < run.bytes ||
                    rows > (bytes - run.bytes - run.file_offset) / run.file_stride))) {
    return InternalError(
        names::Path(checkpoint.directory(), checkpoint.files()[run.file].entry->path) +
        ": a run outside of the file");
  }
  return Status::Ok();
}

Result<std::vector<Share>> ShareOut(const OpenCheckpoint& checkpoint,
                                    std::span<const ByteRun> runs) {
  std::vector<Share> shares;
  shares.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ByteRun& run = runs[i];
    if (run.bytes == 0) continue;
    RETURN_IF_ERROR(CheckRun(checkpoint, run));
    for (std::uint64_t at = run.file_offset; at < RunEnd(run);) {
      const std::uint64_t chunk = at / kChunkBytes;
      shares.push_back({run.file, chunk, i});
      at = (chunk + 1) * kChunkBytes;
      if (run.count > 1 && at < RunEnd(run)) {
        // Rows far apart may leave whole chunks out.
        at = std::max(at, run.file_offset + FirstRowThatEndsAfter(run, at) * run.file_stride);
      }
    }
  }
  const auto before = [](const Share& a, const Share& b) {
    return std::tie(a.file, a.chunk, a.run) < std::tie(b.file, b.chunk, b.run);
  };
  if (!std::is_sorted(shares.begin(), shares.end(), before)) {
    std::sort(shares.begin(), shares.end(), before);
  }
  return shares;
}

}  // namespace

Status ReadRuns(Store* store, const OpenCheckpoint& checkpoint, std::span<const ByteRun> runs,
                const ReadRunsOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Share> shares, ShareOut(checkpoint, runs));
  std::vector<ChunkRequest> requests;
  std::vector<std::size_t> first_share;  // of each request, and the end
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const ChunkRequest request{shares[i].file, shares[i].chunk};
    if (!requests.empty() && requests.back() == request) continue;
    requests.push_back(request);
    first_share.push_back(i);
  }
  first_share.push_back(shares.size());

  std::vector<bool>* const touched = options.touched;
  Mutex touched_mu;  // guards *touched
  const auto copy = [&](std::size_t index, const Status& outcome,
                        std::span<const std::byte> bytes) {
    if (options.cancelled && options.cancelled())
      return CancelledError("the restore was cancelled");
    if (!outcome.ok() || options.verify_only) return outcome;
    const std::uint64_t begin = requests[index].chunk * kChunkBytes;
    const std::span<const Share> chunk_shares(&shares[first_share[index]],
                                              first_share[index + 1] - first_share[index]);
    for (const Share& share : chunk_shares) {
      if (runs[share.run].to == nullptr) continue;
      ForEachStretch(runs[share.run], begin, begin + bytes.size(),
                     [&](std::uint64_t from, std::uint64_t count, std::byte* to) {
                       Copy(to, bytes.data() + (from - begin), count);
                     });
    }
    if (touched == nullptr) return outcome;
    MutexLock lock(&touched_mu);
    for (const Share& share : chunk_shares) {
      const std::size_t owner = runs[share.run].owner;
      if (owner >= touched->size()) touched->resize(owner + 1);
      (*touched)[owner] = true;
    }
    return outcome;
  };
  return ReadChunks(store, checkpoint, requests,
                    {.delivery = ReadChunksOptions::Delivery::kConcurrent,
                     .at_once = options.at_once,
                     .progress = options.progress},
                    copy);
}

}  // namespace cairn

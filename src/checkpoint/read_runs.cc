#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/read_chunks.h"
#include "checkpoint/restore.h"

namespace cairn {
namespace {

constexpr std::uintptr_t kDirectAlign = 4096;

/// That a run has bytes in a chunk.
struct Share {
  std::size_t file;
  std::uint64_t chunk;
  std::size_t run;
};

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

// The memory that the chunk alone fills, when it can be read straight into it; null otherwise.
std::byte* DirectTarget(const ByteRun& run, std::uint64_t chunk) {
  const std::uint64_t begin = chunk * kChunkBytes;
  if (run.count != 1 || run.file_offset > begin || RunEnd(run) < begin + kChunkBytes) {
    return nullptr;
  }
  std::byte* to = run.to + (begin - run.file_offset);
  return reinterpret_cast<std::uintptr_t>(to) % kDirectAlign == 0 ? to : nullptr;
}

}  // namespace

Status ReadRuns(Store* store, const OpenCheckpoint& checkpoint, std::span<const ByteRun> runs,
                bool verify_only, const Progress& progress, std::vector<bool>* touched) {
  ASSIGN_OR_RETURN(const std::vector<Share> shares, ShareOut(checkpoint, runs));
  std::vector<ChunkRequest> requests;
  std::vector<std::size_t> first_share;  // of each request, and the end
  std::uint64_t total = 0;
  const auto touch = [&](const Share& share) {
    if (touched == nullptr) return;
    const std::size_t owner = runs[share.run].owner;
    if (owner >= touched->size()) touched->resize(owner + 1);
    (*touched)[owner] = true;
  };
  for (std::size_t i = 0; i < shares.size();) {
    const Share& share = shares[i];
    std::size_t end = i + 1;
    while (end < shares.size() && shares[end].file == share.file &&
           shares[end].chunk == share.chunk) {
      ++end;
    }
    first_share.push_back(i);
    std::byte* direct =
        verify_only || end - i > 1 ? nullptr : DirectTarget(runs[share.run], share.chunk);
    requests.push_back({share.file, share.chunk, direct});
    total += ChunkLength(checkpoint.files()[share.file].entry->hash.bytes, share.chunk);
    i = end;
  }
  first_share.push_back(shares.size());

  std::uint64_t done = 0;
  std::size_t started = 0;
  const Status status =
      ReadChunks(store, checkpoint, requests, {.started = &started},
                 [&](std::size_t index, const Status& outcome, std::span<const std::byte> bytes) {
                   const ChunkRequest& request = requests[index];
                   const std::uint64_t begin = request.chunk * kChunkBytes;
                   const std::span<const Share> chunk_shares(
                       &shares[first_share[index]], first_share[index + 1] - first_share[index]);
                   if (!outcome.ok()) return outcome;
                   if (!verify_only && request.direct == nullptr) {
                     for (const Share& share : chunk_shares) {
                       touch(share);
                       ForEachStretch(runs[share.run], begin, begin + bytes.size(),
                                      [&](std::uint64_t from, std::uint64_t count, std::byte* to) {
                                        std::memcpy(to, bytes.data() + (from - begin), count);
                                      });
                     }
                   }
                   done += bytes.size();
                   if (progress) progress(done, total);
                   return Status::Ok();
                 });
  for (std::size_t i = 0; i < started; ++i) {
    if (requests[i].direct != nullptr) touch(shares[first_share[i]]);
  }
  return status;
}

}  // namespace cairn

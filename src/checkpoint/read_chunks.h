#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/catalog.h"
#include "storage/store.h"

namespace cairn {

/// A chunk of a checkpoint's file to read.
struct ChunkRequest {
  std::size_t file = 0;     // index into OpenCheckpoint::files
  std::uint64_t chunk = 0;  // number of the kChunkBytes piece
  /// Where the bytes go; null: into a buffer that is valid during the callback. Only for full
  /// chunks and 4 KiB-aligned memory.
  std::byte* direct = nullptr;
};

struct ReadChunksOptions {
  /// Compare with the manifest's sums; a difference is Corruption. Off for callers that hash
  /// themselves.
  bool verify = true;
  /// Hand over in the order of the requests rather than as they arrive.
  bool in_order = false;
  /// Set to the number of requests (the first ones) whose reads were started, also on failure: the
  /// memory of `direct` ones among them may have changed.
  std::size_t* started = nullptr;
};

/// Receives each chunk with the outcome of its read (`bytes` is empty when that failed). A status
/// that is not OK ends the reading.
using ChunkSink = std::function<Status(std::size_t request, const Status& outcome,
                                       std::span<const std::byte> bytes)>;

/// Reads chunks with several in flight, through the checkpoint's buffers, and hands each to `sink`
/// on the calling thread. A failure names checkpoint, file and chunk. When it returns, nothing is
/// in flight any more.
Status ReadChunks(Store* store, const OpenCheckpoint& checkpoint,
                  const std::vector<ChunkRequest>& requests, const ReadChunksOptions& options,
                  const ChunkSink& sink);

/// How many bytes the chunk of a file of `file_bytes` has.
std::uint64_t ChunkLength(std::uint64_t file_bytes, std::uint64_t chunk);

}  // namespace cairn

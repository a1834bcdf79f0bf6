#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/catalog.h"
#include "storage/store.h"

namespace cairn {

/// A chunk of a checkpoint's file to read.
struct ChunkRequest {
  std::size_t file = 0;     // index into OpenCheckpoint::files
  std::uint64_t chunk = 0;  // number of the kChunkBytes piece

  friend bool operator==(const ChunkRequest&, const ChunkRequest&) = default;
};

struct ReadChunksOptions {
  /// Compare with the manifest's sums; a difference is Corruption. Off for callers that hash
  /// themselves.
  bool verify = true;
  enum class Delivery {
    kAsTheyArrive,  // on the calling thread
    kInOrder,       // on the calling thread, in the order of the requests
    kConcurrent,    // on the calling thread, and on a second one where that falls behind the reads
  };
  Delivery delivery = Delivery::kAsTheyArrive;
  /// Chunks in memory (a quarter more when a second thread helps). They keep a disk busy while
  /// others are hashed and copied, also when the thread that does that has to wait for a processor;
  /// and 128 MiB later a buffer has left the caches, from where a disk would be slower to take it
  /// back. Never more than a store that is far away answers at once: the others would hold memory
  /// and wait for their turn.
  std::size_t at_once = 32;
  /// Called on the calling thread with the bytes handed over so far and all that were asked for.
  Progress progress = {};
};

/// Receives each chunk with the outcome of its read (`bytes` is empty when that failed; they are
/// valid during the call). A status that is not OK ends the reading.
using ChunkSink = std::function<Status(std::size_t request, const Status& outcome,
                                       std::span<const std::byte> bytes)>;

/// Reads chunks with several in flight, through the checkpoint's buffers, and hands each to `sink`.
/// A failure names checkpoint, file and chunk. When it returns, nothing is in flight and no call of
/// `sink` is under way any more.
Status ReadChunks(Store* store, const OpenCheckpoint& checkpoint,
                  const std::vector<ChunkRequest>& requests, const ReadChunksOptions& options,
                  const ChunkSink& sink);

/// How many of `at_once` chunks the store reads at the same time.
std::size_t ChunksWorthReading(const Store& store, std::size_t at_once);

/// How many bytes the chunk of a file of `file_bytes` has.
std::uint64_t ChunkLength(std::uint64_t file_bytes, std::uint64_t chunk);

}  // namespace cairn

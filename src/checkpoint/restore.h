#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/catalog.h"
#include "storage/store.h"

namespace cairn {

/// Bytes of a file that go to one place in memory; with `count` > 1 rows of a rectangle: that many
/// stretches of `bytes`, each `file_stride` after the one before it in the file and `to_stride` in
/// memory (strides ≥ bytes).
struct ByteRun {
  std::size_t file = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;  // null: compared, and copied nowhere
  std::uint64_t count = 1;
  std::uint64_t file_stride = 0;
  std::uint64_t to_stride = 0;
  std::size_t owner = 0;  // the caller's number for what the run belongs to
};

struct ReadRunsOptions {
  bool verify_only = false;              // compare and copy nothing
  Progress progress = {};                // counts bytes of chunks
  std::function<bool()> cancelled = {};  // asked from any thread; true: Cancelled
  std::vector<bool>* touched = nullptr;  // has true for the owners whose memory was written to
  std::size_t at_once = 32;              // chunks in memory, see ReadChunksOptions
};

/// Reads the chunks of the checkpoint's files that hold the runs, compares each chunk with the
/// manifest's checksum and only then copies from it. Runs may be in any order: each chunk is read
/// once; several are in flight, and one or two threads hash and copy. On Corruption the message
/// names file and chunk; what was copied before stays. The runs' destinations must not overlap.
Status ReadRuns(Store* store, const OpenCheckpoint& checkpoint, std::span<const ByteRun> runs,
                const ReadRunsOptions& options);

/// Adds the runs that fill `target` (of `shape`, standing at `offset` of the whole array) from the
/// stored pieces: the intersection of rectangles, in contiguous stretches. InvalidArgument when the
/// rectangle is not inside the array; Unimplemented when elements of less than a byte would have to
/// be shifted. Nothing is added then.
Status IntersectPieces(const StoredTensor& stored, const std::vector<std::uint64_t>& shape,
                       const std::vector<std::uint64_t>& offset, std::byte* target,
                       std::size_t owner, std::vector<ByteRun>* runs);

/// Restores one checkpoint as the request says: all names, shapes and dtypes are compared before
/// memory is touched (FailedPrecondition, request.mismatch filled), then everything is read and
/// verified. `participant` selects whose own state is read; when the checkpoint has no such
/// participant (another number of ranks), the first one's counters are used and its state tensors
/// are reported as skipped. A failure while reading says which tensors were already overwritten.
///
/// In a model of very many tensors, a restore of few of them (not strict, nothing renamed or
/// allocated) looks only for those: `skipped` then has one line ("*") for all that nobody wants.
Result<Restored> RestoreCheckpoint(Store* store, OpenCheckpoint* checkpoint,
                                   const RestoreRequest& request, const std::string& participant,
                                   const Progress& progress);

/// The same for a restore point (a full checkpoint, then increments): the variables of the last
/// one, and the rows of tables of all, in order, for request.tables.
Result<Restored> RestoreChain(Store* store, std::vector<OpenCheckpoint*> chain,
                              const RestoreRequest& request, const std::string& participant,
                              const Progress& progress);

/// Every file of the checkpoint, all bytes: the chunk sums and the whole file's. Returns the bytes
/// read; problems are appended, one per damaged file.
Result<std::uint64_t> VerifyFiles(Store* store, const OpenCheckpoint& checkpoint,
                                  const Progress& progress, std::vector<VerifyProblem>* problems);

/// The tensors that differ between two open checkpoints (model and table groups, and states).
Result<std::vector<TensorDifference>> DiffCheckpoints(Store* store_a, OpenCheckpoint* a,
                                                      Store* store_b, OpenCheckpoint* b,
                                                      const Progress& progress);

}  // namespace cairn

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/catalog.h"
#include "checkpoint/chunk_buffers.h"
#include "storage/store.h"

namespace cairn {

/// Reads bytes of a checkpoint's files where they are wanted next, several chunks ahead, and
/// compares each chunk with the manifest before any of it is handed out. Meant for reading roughly
/// front to back: a dozen chunks are kept unless told otherwise. For one thread at a time; a
/// failure names the file and leaves the reader usable.
class StoredBytes {
 public:
  /// Both outlive this object. `chunks`: how many are kept, half of them read ahead; at least 2.
  StoredBytes(Store* store, const OpenCheckpoint* checkpoint, std::size_t chunks = 12)
      : store_(store), checkpoint_(checkpoint), chunks_(chunks) {}
  StoredBytes(const StoredBytes&) = delete;
  StoredBytes& operator=(const StoredBytes&) = delete;

  const OpenCheckpoint& checkpoint() const { return *checkpoint_; }

  /// `file`: index into the checkpoint's files.
  Status Read(std::size_t file, std::uint64_t offset, std::span<std::byte> into);

 private:
  struct Slot {
    enum class State { kFree, kInFlight, kReady } state = State::kFree;
    std::size_t file = 0;
    std::uint64_t chunk = 0;
    std::uint64_t used = 0;  // when, in reads
    Status status;
    std::size_t bytes = 0;
  };

  Status Prepare();
  Slot* Find(std::size_t file, std::uint64_t chunk);
  /// Starts reading the chunk into a slot other than `keep`; null when the others are all in
  /// flight.
  Result<Slot*> Start(std::size_t file, std::uint64_t chunk, const Slot* keep);
  Status StartAhead(const Slot& current);
  Status WaitOne();
  Result<Slot*> Load(std::size_t file, std::uint64_t chunk);
  Status Judge(const Slot& slot, const ReadQueue::Done& done) const;

  Store* const store_;
  const OpenCheckpoint* const checkpoint_;
  const std::size_t chunks_;
  std::uint64_t reads_ = 0;
  std::vector<Slot> slots_;
  ChunkBuffers buffers_;              // one per slot
  std::unique_ptr<ReadQueue> queue_;  // last: its destructor waits for what is in flight
};

/// The bytes of a stored file, or of a stretch of it, as a source.
class StoredFileSource final : public TensorSource {
 public:
  StoredFileSource(StoredBytes* bytes, std::size_t file, std::uint64_t begin)
      : bytes_(bytes), file_(file), begin_(begin) {}
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    return bytes_->Read(file_, begin_ + offset, into);
  }

 private:
  StoredBytes* const bytes_;
  const std::size_t file_;
  const std::uint64_t begin_;
};

/// The bytes of a stored array, row-major and whole, put together from its pieces a block at a
/// time.
class StoredArraySource final : public TensorSource {
 public:
  /// `block_bytes`: how much is put together at once, at least a row of the last dimension.
  StoredArraySource(StoredBytes* bytes, StoredTensor tensor, std::uint64_t block_bytes = 64u << 20);
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override;

 private:
  struct Block {
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> offset;
    std::uint64_t begin = 0;  // of its bytes in the array
    std::uint64_t bytes = 0;
  };

  Status Cut(Block block, std::size_t dimension);
  Status LoadBlock(std::size_t block);

  StoredBytes* const bytes_;
  const StoredTensor tensor_;
  const std::uint64_t block_bytes_;
  std::vector<Block> blocks_;
  std::optional<std::size_t> loaded_;
  std::vector<std::byte> memory_;
};

}  // namespace cairn

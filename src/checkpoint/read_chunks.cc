#include "checkpoint/read_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"

namespace cairn {
namespace {

// Eight chunks of 4 MiB keep a disk busy while one of them is hashed and copied.
constexpr int kDepth = 8;
constexpr std::uint64_t kReadAlign = 4096;

/// The state of one ReadChunks call: which chunks are in flight, in which buffers.
class ChunkPipeline {
 public:
  ChunkPipeline(const OpenCheckpoint& checkpoint, const std::vector<ChunkRequest>& requests,
                const ReadChunksOptions& options, const ChunkSink& sink)
      : checkpoint_(checkpoint), requests_(requests), options_(options), sink_(sink) {}

  Status Run(Store* store) {
    RETURN_IF_ERROR(Prepare(store));
    while (delivered_ < requests_.size()) {
      RETURN_IF_ERROR(SubmitMore());
      ASSIGN_OR_RETURN(const ReadQueue::Done done, queue_->Wait());
      Slot& slot = slots_[done.tag];
      slot.outcome = Outcome(slot, done);
      if (!options_.in_order) {
        RETURN_IF_ERROR(Deliver(&slot));
        continue;
      }
      while (Slot* next = Find(delivered_)) {
        if (!next->outcome.has_value()) break;
        RETURN_IF_ERROR(Deliver(next));
      }
    }
    return Status::Ok();
  }

  std::size_t submitted() const { return submitted_; }

 private:
  struct Slot {
    bool used = false;
    std::size_t request = 0;
    std::ptrdiff_t buffer = -1;  // -1: read straight into the caller's memory
    std::span<std::byte> bytes;
    std::optional<Status> outcome;  // once the read is done
  };

  Status Prepare(Store* store) {
    const auto buffered = static_cast<std::size_t>(std::count_if(
        requests_.begin(), requests_.end(), [](const auto& r) { return r.direct == nullptr; }));
    const std::size_t buffers = std::min<std::size_t>(buffered, kDepth);
    RETURN_IF_ERROR(checkpoint_.buffers()->Reserve(buffers));
    for (std::size_t i = buffers; i-- > 0;) free_buffers_.push_back(static_cast<std::ptrdiff_t>(i));
    ASSIGN_OR_RETURN(queue_, store->NewReadQueue(kDepth));
    slots_.resize(static_cast<std::size_t>(std::min(kDepth, queue_->depth())));
    return Status::Ok();
  }

  Status SubmitMore() {
    for (std::size_t i = 0; i < slots_.size() && submitted_ < requests_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.used) continue;
      const ChunkRequest& request = requests_[submitted_];
      if (request.direct == nullptr && free_buffers_.empty()) break;
      const OpenFile& file = checkpoint_.files()[request.file];
      const std::uint64_t length = ChunkLength(file.entry->hash.bytes, request.chunk);
      slot = {.used = true, .request = submitted_};
      std::byte* memory = request.direct;
      if (memory == nullptr) {
        slot.buffer = free_buffers_.back();
        free_buffers_.pop_back();
        memory = (*checkpoint_.buffers())[static_cast<std::size_t>(slot.buffer)].data();
      }
      slot.bytes = {memory, length};
      const std::uint64_t asked = (length + kReadAlign - 1) / kReadAlign * kReadAlign;
      const Status status = queue_->Submit(file.reader.get(), request.chunk * kChunkBytes,
                                           {memory, asked}, /*tag=*/i);
      if (!status.ok()) return status.WithContext(Where(request));
      ++submitted_;
    }
    return Status::Ok();
  }

  Status Outcome(const Slot& slot, const ReadQueue::Done& done) const {
    const ChunkRequest& request = requests_[slot.request];
    if (!done.status.ok()) return done.status.WithContext(Where(request));
    if (done.bytes != slot.bytes.size()) {
      return CorruptionError(fmt::format("{}: short read: {} of {} bytes", Where(request),
                                         done.bytes, slot.bytes.size()));
    }
    if (!options_.verify) return Status::Ok();
    const FileHash& hash = checkpoint_.files()[request.file].entry->hash;
    if (Xxh3(slot.bytes) == hash.chunks[request.chunk]) return Status::Ok();
    return CorruptionError(Where(request) + ": the bytes differ from their checksum");
  }

  Status Deliver(Slot* slot) {
    const Status& outcome = *slot->outcome;
    const Status status = sink_(
        slot->request, outcome,
        outcome.ok() ? std::span<const std::byte>(slot->bytes) : std::span<const std::byte>());
    if (slot->buffer >= 0) free_buffers_.push_back(slot->buffer);
    *slot = {};
    ++delivered_;
    return status;
  }

  Slot* Find(std::size_t request) {
    for (Slot& slot : slots_) {
      if (slot.used && slot.request == request) return &slot;
    }
    return nullptr;
  }

  std::string Where(const ChunkRequest& request) const {
    const ManifestFile& entry = *checkpoint_.files()[request.file].entry;
    return fmt::format("{}: chunk {} of {}", names::Path(checkpoint_.directory(), entry.path),
                       request.chunk + 1, entry.hash.chunks.size());
  }

  const OpenCheckpoint& checkpoint_;
  const std::vector<ChunkRequest>& requests_;
  const ReadChunksOptions& options_;
  const ChunkSink& sink_;
  std::vector<Slot> slots_;
  std::vector<std::ptrdiff_t> free_buffers_;
  std::size_t submitted_ = 0;
  std::size_t delivered_ = 0;
  std::unique_ptr<ReadQueue> queue_;  // last: its destructor waits for what is in flight
};

}  // namespace

std::uint64_t ChunkLength(std::uint64_t file_bytes, std::uint64_t chunk) {
  const std::uint64_t start = chunk * kChunkBytes;
  return start >= file_bytes ? 0 : std::min<std::uint64_t>(kChunkBytes, file_bytes - start);
}

Status ReadChunks(Store* store, const OpenCheckpoint& checkpoint,
                  const std::vector<ChunkRequest>& requests, const ReadChunksOptions& options,
                  const ChunkSink& sink) {
  if (options.started != nullptr) *options.started = 0;
  if (requests.empty()) return Status::Ok();
  ChunkPipeline pipeline(checkpoint, requests, options, sink);
  const Status status = pipeline.Run(store);
  if (options.started != nullptr) *options.started = pipeline.submitted();
  return status;
}

}  // namespace cairn

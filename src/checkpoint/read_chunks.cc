#include "checkpoint/read_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"

namespace cairn {
namespace {

using Delivery = ReadChunksOptions::Delivery;

constexpr std::uint64_t kReadAlign = 4096;
// A second thread is not worth its start for less than this.
constexpr std::size_t kManyChunks = 8;
// A second thread has chunks of its own in memory, so many times fewer.
constexpr std::size_t kShareBeside = 4;
// A chunk that comes sooner had been read before it was asked for.
constexpr std::chrono::microseconds kNoWait{20};

/// What the pipelines of one ReadChunks call share.
struct Work {
  const OpenCheckpoint& checkpoint;
  const std::vector<ChunkRequest>& requests;
  const ReadChunksOptions& options;
  const ChunkSink& sink;
  std::uint64_t total = 0;
  std::atomic<std::size_t> next = 0;     // the first request that nobody has taken
  std::atomic<std::uint64_t> bytes = 0;  // handed over
  std::atomic<bool> failed = false;      // nobody takes a request any more

  std::uint64_t Length(const ChunkRequest& request) const {
    return ChunkLength(checkpoint.files()[request.file].entry->hash.bytes, request.chunk);
  }

  std::string Where(const ChunkRequest& request) const {
    const ManifestFile& entry = *checkpoint.files()[request.file].entry;
    return fmt::format("{}: chunk {} of {}", names::Path(checkpoint.directory(), entry.path),
                       request.chunk + 1, entry.hash.chunks.size());
  }
};

/// Takes requests, reads them with several in flight, hashes and delivers them, all on one thread.
/// Several pipelines may work on one list beside each other, each with buffers of its own.
class ChunkPipeline {
 public:
  /// `behind`: called once, if the store is found to wait for this thread rather than this thread
  /// for the store.
  ChunkPipeline(Work* work, std::size_t first_buffer, std::size_t depth,
                std::function<void()> behind = {})
      : work_(*work), first_buffer_(first_buffer), slots_(depth), behind_(std::move(behind)) {}

  /// `report`: this thread is the caller's, and tells the progress.
  Status Run(Store* store, bool report) {
    const Status status = ReadAll(store, report);
    if (!status.ok()) work_.failed = true;
    return status;
  }

 private:
  struct Slot {
    bool used = false;
    std::size_t request = 0;
    std::span<std::byte> bytes;
    std::optional<Status> outcome;  // once the read is done
  };

  Status ReadAll(Store* store, bool report) {
    ASSIGN_OR_RETURN(queue_, store->NewReadQueue(static_cast<int>(slots_.size())));
    const bool in_order = work_.options.delivery == Delivery::kInOrder;
    while (true) {
      RETURN_IF_ERROR(SubmitMore());
      if (queue_->in_flight() == 0) return Status::Ok();
      ASSIGN_OR_RETURN(const ReadQueue::Done done, WaitForOne());
      Slot* slot = &slots_[done.tag];
      slot->outcome = Outcome(*slot, done);
      if (!in_order) RETURN_IF_ERROR(Deliver(slot));
      while (in_order && (slot = FindNext()) != nullptr) RETURN_IF_ERROR(Deliver(slot));
      if (report && !work_.options.progress(work_.bytes, work_.total)) {
        return CancelledError("interrupted");
      }
    }
  }

  Result<ReadQueue::Done> WaitForOne() {
    const auto began = std::chrono::steady_clock::now();
    Result<ReadQueue::Done> done = queue_->Wait();
    const bool waited = std::chrono::steady_clock::now() - began > kNoWait;
    unawaited_ = waited ? 0 : unawaited_ + 1;
    if (behind_ && unawaited_ == slots_.size()) std::exchange(behind_, nullptr)();
    return done;
  }

  Status SubmitMore() {
    for (std::size_t i = 0; i < slots_.size() && !work_.failed; ++i) {
      Slot& slot = slots_[i];
      if (slot.used) continue;
      ASSIGN_OR_RETURN(const std::size_t index, TakeRequest());
      if (index >= work_.requests.size()) return Status::Ok();
      const ChunkRequest& request = work_.requests[index];
      const std::uint64_t length = work_.Length(request);
      const std::uint64_t asked = (length + kReadAlign - 1) / kReadAlign * kReadAlign;
      ASSIGN_OR_RETURN(const std::span<std::byte> buffer,
                       work_.checkpoint.buffers()->Get(first_buffer_ + i, asked));
      slot = {.used = true, .request = index, .bytes = buffer.first(length)};
      const Status status = queue_->Submit(work_.checkpoint.files()[request.file].reader.get(),
                                           request.chunk * kChunkBytes, buffer.first(asked), i);
      if (!status.ok()) return status.WithContext(work_.Where(request));
    }
    return Status::Ok();
  }

  /// The next request that has to be read. Those whose bytes are at hand are delivered on the way,
  /// while others are being read.
  Result<std::size_t> TakeRequest() {
    for (;;) {
      const std::size_t index = work_.next++;
      if (index >= work_.requests.size() || work_.failed) return work_.requests.size();
      const ChunkRequest& request = work_.requests[index];
      if (work_.options.delivery != Delivery::kConcurrent || request.chunk != 0) return index;
      const std::span<const std::byte> bytes = work_.checkpoint.FirstChunk(request.file);
      if (bytes.empty()) return index;
      RETURN_IF_ERROR(work_.sink(index, Status::Ok(), bytes));
      work_.bytes += bytes.size();
    }
  }

  Status Outcome(const Slot& slot, const ReadQueue::Done& done) const {
    const ChunkRequest& request = work_.requests[slot.request];
    if (done.status.Is(Code::kInternal)) {
      // The disk cannot give the bytes back: to a reader the same as wrong ones.
      return CorruptionError(fmt::format("{}: {}", work_.Where(request), done.status.message()));
    }
    if (!done.status.ok()) return done.status.WithContext(work_.Where(request));
    if (done.bytes != slot.bytes.size()) {
      return CorruptionError(fmt::format("{}: short read: {} of {} bytes", work_.Where(request),
                                         done.bytes, slot.bytes.size()));
    }
    if (!work_.options.verify) return Status::Ok();
    const FileHash& hash = work_.checkpoint.files()[request.file].entry->hash;
    if (Xxh3(slot.bytes) == hash.chunks[request.chunk]) return Status::Ok();
    return CorruptionError(work_.Where(request) + ": the bytes differ from their checksum");
  }

  Status Deliver(Slot* slot) {
    const std::span<const std::byte> bytes =
        slot->outcome->ok() ? slot->bytes : std::span<std::byte>();
    const Status status = work_.sink(slot->request, *slot->outcome, bytes);
    work_.bytes += bytes.size();
    *slot = {};
    ++delivered_;
    return status;
  }

  // The slot of the next request in order, if it has been read. Then all requests come this way.
  Slot* FindNext() {
    for (Slot& slot : slots_) {
      if (slot.used && slot.request == delivered_ && slot.outcome.has_value()) return &slot;
    }
    return nullptr;
  }

  Work& work_;
  const std::size_t first_buffer_;
  std::vector<Slot> slots_;
  std::size_t delivered_ = 0;
  std::size_t unawaited_ = 0;  // chunks in a row that were there already
  std::function<void()> behind_;
  std::unique_ptr<ReadQueue> queue_;  // last: its destructor waits for what is in flight
};

}  // namespace

std::size_t ChunksWorthReading(const Store& store, std::size_t at_once) {
  const auto requests = static_cast<std::size_t>(std::max(1, store.traits().parallel_requests));
  return requests == 1 ? at_once : std::min(at_once, requests);
}

std::uint64_t ChunkLength(std::uint64_t file_bytes, std::uint64_t chunk) {
  const std::uint64_t start = chunk * kChunkBytes;
  return start >= file_bytes ? 0 : std::min<std::uint64_t>(kChunkBytes, file_bytes - start);
}

Status ReadChunks(Store* store, const OpenCheckpoint& checkpoint,
                  const std::vector<ChunkRequest>& requests, const ReadChunksOptions& options,
                  const ChunkSink& sink) {
  if (requests.empty()) return Status::Ok();
  Work work{.checkpoint = checkpoint, .requests = requests, .options = options, .sink = sink};
  for (const ChunkRequest& request : requests) work.total += work.Length(request);
  const std::size_t depth = std::min(requests.size(), ChunksWorthReading(*store, options.at_once));
  const std::size_t depth_beside = std::max<std::size_t>(depth / kShareBeside, 1);
  checkpoint.buffers()->Reserve(depth + depth_beside);

  if (options.delivery != Delivery::kConcurrent || requests.size() < kManyChunks || depth < 2) {
    return ChunkPipeline(&work, 0, depth).Run(store, /*report=*/true);
  }
  // One thread hashes and copies faster than most disks read; then two cost more than they give.
  Status no_memory = ResourceExhaustedError("no memory to read with");
  Status status_beside;
  std::jthread beside;
  const auto help = [&] {
    try {
      beside = std::jthread([&] {
        try {
          status_beside = ChunkPipeline(&work, depth, depth_beside).Run(store, false);
        } catch (const std::bad_alloc&) {  // nobody above could catch it
          work.failed = true;
          status_beside = std::move(no_memory);
        }
      });
    } catch (const std::system_error&) {
      // No thread to be had: this one takes all requests.
    }
  };
  const Status status = ChunkPipeline(&work, 0, depth, help).Run(store, /*report=*/true);
  if (beside.joinable()) beside.join();
  if (!status.ok()) return status;
  if (status_beside.ok()) options.progress(work.bytes, work.total);
  return status_beside;
}

}  // namespace cairn

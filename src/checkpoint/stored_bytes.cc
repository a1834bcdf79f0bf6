#include "checkpoint/stored_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/read_chunks.h"
#include "checkpoint/restore.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::uint64_t kReadAlign = 4096;

std::uint64_t ChunksOf(const OpenFile& file) { return file.entry->hash.chunks.size(); }

}  // namespace

Status StoredBytes::Prepare() {
  if (queue_ != nullptr) return Status::Ok();
  buffers_.Reserve(chunks_);
  ASSIGN_OR_RETURN(queue_, store_->NewReadQueue(static_cast<int>(chunks_)));
  slots_.resize(chunks_);
  return Status::Ok();
}

StoredBytes::Slot* StoredBytes::Find(std::size_t file, std::uint64_t chunk) {
  for (Slot& slot : slots_) {
    if (slot.state != Slot::State::kFree && slot.file == file && slot.chunk == chunk) return &slot;
  }
  return nullptr;
}

Result<StoredBytes::Slot*> StoredBytes::Start(std::size_t file, std::uint64_t chunk,
                                              const Slot* keep) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::kInFlight || &slot == keep) continue;
    if (slot.state == Slot::State::kFree) {
      oldest = &slot;
      break;
    }
    if (oldest == nullptr || slot.used < oldest->used) oldest = &slot;
  }
  if (oldest == nullptr) return oldest;
  const OpenFile& open = checkpoint_->files()[file];
  const auto index = static_cast<std::size_t>(oldest - slots_.data());
  *oldest = Slot{.file = file, .chunk = chunk, .used = reads_};
  oldest->bytes = ChunkLength(open.entry->hash.bytes, chunk);
  const std::uint64_t asked = (oldest->bytes + kReadAlign - 1) / kReadAlign * kReadAlign;
  ASSIGN_OR_RETURN(const std::span<std::byte> buffer, buffers_.Get(index, asked));
  RETURN_IF_ERROR(
      queue_->Submit(open.reader.get(), chunk * kChunkBytes, buffer.first(asked), index));
  oldest->state = Slot::State::kInFlight;
  return oldest;
}

Status StoredBytes::StartAhead(const Slot& current) {
  const std::vector<OpenFile>& files = checkpoint_->files();
  std::size_t file = current.file;
  std::uint64_t chunk = current.chunk;
  for (std::size_t i = 0; i < chunks_ / 2; ++i) {
    // The files of a checkpoint are mostly read one after the other.
    for (++chunk; file < files.size() && chunk >= ChunksOf(files[file]); chunk = 0) ++file;
    if (file >= files.size()) return Status::Ok();
    if (Find(file, chunk) != nullptr) continue;
    ASSIGN_OR_RETURN(const Slot* started, Start(file, chunk, &current));
    if (started == nullptr) return Status::Ok();
  }
  return Status::Ok();
}

Status StoredBytes::Judge(const Slot& slot, const ReadQueue::Done& done) const {
  const ManifestFile& entry = *checkpoint_->files()[slot.file].entry;
  const std::string where =
      fmt::format("{}: chunk {} of {}", names::Path(checkpoint_->directory(), entry.path),
                  slot.chunk + 1, entry.hash.chunks.size());
  if (done.status.Is(Code::kInternal)) {
    // The disk cannot give the bytes back: to a reader the same as wrong ones.
    return CorruptionError(fmt::format("{}: {}", where, done.status.message()));
  }
  if (!done.status.ok()) return done.status.WithContext(where);
  if (done.bytes < slot.bytes) {
    return CorruptionError(
        fmt::format("{}: short read: {} of {} bytes", where, done.bytes, slot.bytes));
  }
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  if (Xxh3(buffers_[index].first(slot.bytes)) == entry.hash.chunks[slot.chunk]) {
    return Status::Ok();
  }
  return CorruptionError(where + ": the bytes differ from their checksum");
}

Status StoredBytes::WaitOne() {
  ASSIGN_OR_RETURN(const ReadQueue::Done done, queue_->Wait());
  Slot& slot = slots_[done.tag];
  slot.state = Slot::State::kReady;
  slot.status = Judge(slot, done);
  return Status::Ok();
}

Result<StoredBytes::Slot*> StoredBytes::Load(std::size_t file, std::uint64_t chunk) {
  Slot* slot = Find(file, chunk);
  while (slot == nullptr) {
    ASSIGN_OR_RETURN(slot, Start(file, chunk, nullptr));
    if (slot == nullptr) RETURN_IF_ERROR(WaitOne());
  }
  slot->used = ++reads_;
  RETURN_IF_ERROR(StartAhead(*slot));
  while (slot->state == Slot::State::kInFlight) RETURN_IF_ERROR(WaitOne());
  if (!slot->status.ok()) {
    slot->state = Slot::State::kFree;
    return slot->status;
  }
  return slot;
}

Status StoredBytes::Read(std::size_t file, std::uint64_t offset, std::span<std::byte> into) {
  RETURN_IF_ERROR(Prepare());
  while (!into.empty()) {
    const std::uint64_t chunk = offset / kChunkBytes;
    if (chunk >= ChunksOf(checkpoint_->files()[file])) {
      return CorruptionError(
          names::Path(checkpoint_->directory(), checkpoint_->files()[file].entry->path) +
          ": a tensor reaches behind the end of the file");
    }
    ASSIGN_OR_RETURN(const Slot* slot, Load(file, chunk));
    const std::uint64_t from = offset - chunk * kChunkBytes;
    if (from >= slot->bytes) {
      return CorruptionError(
          names::Path(checkpoint_->directory(), checkpoint_->files()[file].entry->path) +
          ": a tensor reaches behind the end of the file");
    }
    const std::size_t n = std::min<std::uint64_t>(into.size(), slot->bytes - from);
    const auto index = static_cast<std::size_t>(slot - slots_.data());
    std::memcpy(into.data(), buffers_[index].data() + from, n);
    into = into.subspan(n);
    offset += n;
  }
  return Status::Ok();
}

StoredArraySource::StoredArraySource(StoredBytes* bytes, StoredTensor tensor,
                                     std::uint64_t block_bytes)
    : bytes_(bytes), tensor_(std::move(tensor)), block_bytes_(block_bytes) {}

// Along the first dimension, and along the next where a single row is too large: the blocks follow
// one another in the array's bytes.
Status StoredArraySource::Cut(Block block, std::size_t dimension) {
  ASSIGN_OR_RETURN(block.bytes, TensorBytes(tensor_.dtype, block.shape));
  if (block.bytes == 0) return Status::Ok();
  if (block.bytes <= block_bytes_ || dimension >= block.shape.size()) {
    block.begin = blocks_.empty() ? 0 : blocks_.back().begin + blocks_.back().bytes;
    blocks_.push_back(std::move(block));
    return Status::Ok();
  }
  const std::uint64_t extent = block.shape[dimension];
  const auto share = static_cast<std::uint64_t>(static_cast<unsigned __int128>(extent) *
                                                block_bytes_ / block.bytes);
  std::uint64_t rows = std::max<std::uint64_t>(1, share);
  if (rows > 8) rows -= rows % 8;  // eight rows of any type fill whole bytes
  for (std::uint64_t row = 0; row < extent; row += rows) {
    Block part = block;
    part.shape[dimension] = std::min(rows, extent - row);
    part.offset[dimension] += row;
    RETURN_IF_ERROR(Cut(std::move(part), dimension + 1));
  }
  return Status::Ok();
}

Status StoredArraySource::LoadBlock(std::size_t block) {
  if (loaded_ == block) return Status::Ok();
  loaded_.reset();
  const Block& wanted = blocks_[block];
  memory_.resize(wanted.bytes);
  std::vector<ByteRun> runs;
  RETURN_IF_ERROR(
      IntersectPieces(tensor_, wanted.shape, wanted.offset, memory_.data(), /*owner=*/0, &runs));
  for (const ByteRun& run : runs) {
    for (std::uint64_t i = 0; i < run.count; ++i) {
      RETURN_IF_ERROR(bytes_->Read(run.file, run.file_offset + i * run.file_stride,
                                   {run.to + i * run.to_stride, run.bytes}));
    }
  }
  loaded_ = block;
  return Status::Ok();
}

Status StoredArraySource::Fill(std::uint64_t offset, std::span<std::byte> into) {
  if (tensor_.pieces.size() == 1) {
    return bytes_->Read(tensor_.pieces[0].file, tensor_.pieces[0].file_offset + offset, into);
  }
  if (blocks_.empty()) {
    Block whole{.shape = tensor_.shape,
                .offset = std::vector<std::uint64_t>(tensor_.shape.size(), 0)};
    RETURN_IF_ERROR(Cut(std::move(whole), 0));
  }
  while (!into.empty()) {
    const auto it = std::partition_point(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return block.begin + block.bytes <= offset;
    });
    if (it == blocks_.end()) return InternalError("read behind the end of an array");
    RETURN_IF_ERROR(LoadBlock(static_cast<std::size_t>(it - blocks_.begin())));
    const std::uint64_t from = offset - it->begin;
    const std::size_t n = std::min<std::uint64_t>(into.size(), it->bytes - from);
    std::memcpy(into.data(), memory_.data() + from, n);
    into = into.subspan(n);
    offset += n;
  }
  return Status::Ok();
}

}  // namespace cairn

#include "checkpoint/chunk_buffers.h"

#include <sys/mman.h>

#include <new>

#include "base/checksum.h"

namespace cairn {
namespace {

// A multiple of it is the start of every buffer: the size of a huge page, and what O_DIRECT needs.
constexpr std::align_val_t kAlign{2u << 20};

}  // namespace

ChunkBuffers::~ChunkBuffers() {
  for (std::byte* buffer : buffers_) ::operator delete(buffer, kAlign);
}

Status ChunkBuffers::Reserve(std::size_t count) {
  buffers_.reserve(count);
  while (buffers_.size() < count) {
    void* memory = ::operator new(kChunkBytes, kAlign, std::nothrow);
    if (memory == nullptr) return ResourceExhaustedError("no memory for a read buffer of 4 MiB");
    // Only advice: without huge pages everything works, with more page faults.
    (void)madvise(memory, kChunkBytes, MADV_HUGEPAGE);
    buffers_.push_back(static_cast<std::byte*>(memory));
  }
  return Status::Ok();
}

std::span<std::byte> ChunkBuffers::operator[](std::size_t index) const {
  return {buffers_[index], kChunkBytes};
}

}  // namespace cairn

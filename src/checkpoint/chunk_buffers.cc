#include "checkpoint/chunk_buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace cairn {
namespace {

constexpr std::size_t kAlign = 4096;  // of reads that bypass the page cache
constexpr std::size_t kHugePage = 2u << 20;

std::size_t RoundUp(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

std::size_t PageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

MappedPages::~MappedPages() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

MappedPages MappedPages::Of(std::size_t bytes) {
  bytes = RoundUp(bytes, std::max(kAlign, PageBytes()));
  // A chunk is so many of them; less would fill the last one only in part.
  const bool huge = bytes % kHugePage == 0;
  const std::size_t reserve = huge ? bytes + kHugePage : bytes;
  void* const mapped =
      mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MappedPages pages;
  if (mapped == MAP_FAILED) return pages;
  auto* base = static_cast<std::byte*>(mapped);
  if (huge) {
    const auto at = reinterpret_cast<std::uintptr_t>(base);
    const std::size_t head = RoundUp(at, kHugePage) - at;
    if (head > 0) munmap(base, head);
    if (head < kHugePage) munmap(base + head + bytes, kHugePage - head);
    base += head;
    // Only advice: without huge pages everything works, with more page faults.
    (void)madvise(base, bytes, MADV_HUGEPAGE);
  }
  pages.bytes_ = {base, bytes};
  return pages;
}

void MappedPages::Drop(std::size_t begin, std::size_t end) {
  begin = RoundUp(begin, PageBytes());
  end = std::min(end, bytes_.size()) / PageBytes() * PageBytes();
  if (begin < end) (void)madvise(bytes_.data() + begin, end - begin, MADV_DONTNEED);
}

void ChunkBuffers::Reserve(std::size_t count) {
  if (buffers_.size() < count) buffers_.resize(count);
}

Result<std::span<std::byte>> ChunkBuffers::Get(std::size_t index, std::uint64_t bytes) {
  MappedPages& buffer = buffers_[index];
  if (buffer.bytes().size() < bytes) {
    buffer = MappedPages();
    buffer = MappedPages::Of(bytes);
    if (buffer.bytes().empty()) {
      return ResourceExhaustedError(fmt::format("no memory for a read buffer of {} bytes", bytes));
    }
  }
  return buffer.bytes();
}

MappedPages ChunkBuffers::Take(const std::byte* begin) {
  for (MappedPages& buffer : buffers_) {
    if (!buffer.bytes().empty() && buffer.bytes().data() == begin) {
      return std::exchange(buffer, MappedPages());
    }
  }
  return {};
}

}  // namespace cairn

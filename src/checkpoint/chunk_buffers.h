#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// Pages of memory that are the system's again as soon as they are given up.
class MappedPages {
 public:
  MappedPages() = default;
  MappedPages(MappedPages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedPages& operator=(MappedPages&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedPages();

  /// At least `bytes`, which are not 0, on huge pages where that wastes nothing and the kernel has
  /// them. Empty without memory.
  static MappedPages Of(std::size_t bytes);

  std::span<std::byte> bytes() const { return bytes_; }
  /// Gives up the pages that lie in [begin, end) as a whole. What was in them is lost.
  void Drop(std::size_t begin, std::size_t end);

 private:
  std::span<std::byte> bytes_;
};

/// Page-aligned memory for chunks that are being read: as many bytes as are read at a time, kept
/// until destruction so that later reads meet pages that are there. One reader at a time, which may
/// ask for different buffers on different threads.
class ChunkBuffers {
 public:
  /// At least `count` buffers exist afterwards; they take no memory yet.
  void Reserve(std::size_t count);
  /// The buffer, with room for `bytes`; what was in one that is too small is lost.
  /// ResourceExhausted when there is no memory.
  Result<std::span<std::byte>> Get(std::size_t index, std::uint64_t bytes);
  /// What Get gave last.
  std::span<std::byte> operator[](std::size_t index) const { return buffers_[index].bytes(); }
  /// Gives away the buffer that begins there, with what is in it; empty pages when none does.
  MappedPages Take(const std::byte* begin);

 private:
  std::vector<MappedPages> buffers_;
};

}  // namespace cairn

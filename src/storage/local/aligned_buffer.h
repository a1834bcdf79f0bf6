#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace cairn {

/// Memory that starts at a 4 KiB boundary, as O_DIRECT wants it. Not initialised. Large buffers ask
/// for huge pages: the kernel pins every page of a direct transfer, and 512 times fewer are
/// quicker.
class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 4096;

  /// `bytes` must be a multiple of kAlignment. Empty when there is no memory.
  explicit AlignedBuffer(std::size_t bytes) {
    constexpr std::size_t kHugePage = 2u << 20;
    const bool huge = bytes >= kHugePage;
    const std::size_t alignment = huge ? kHugePage : kAlignment;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (data_ == nullptr) return;
    bytes_ = bytes;
    if (huge) (void)madvise(data_.get(), rounded, MADV_HUGEPAGE);
  }

  std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace cairn

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// Page-aligned memory for chunks that are being read: buffers of kChunkBytes each, in huge pages
/// where the kernel gives them, kept until destruction so that later reads meet pages that are
/// there. One reader at a time.
class ChunkBuffers {
 public:
  ChunkBuffers() = default;
  ~ChunkBuffers();
  ChunkBuffers(const ChunkBuffers&) = delete;
  ChunkBuffers& operator=(const ChunkBuffers&) = delete;

  /// At least `count` buffers exist afterwards. ResourceExhausted when there is no memory; the
  /// buffers there were stay.
  Status Reserve(std::size_t count);
  std::span<std::byte> operator[](std::size_t index) const;

 private:
  std::vector<std::byte*> buffers_;
};

}  // namespace cairn

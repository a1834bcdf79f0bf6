#pragma once

#include <cstddef>
#include <cstdint>

#include <cairn/status.h>

namespace cairn {

/// The memory that snapshots are copied into: one mapping, kept and reused from save to save,
/// because fresh pages cost more than the copy itself. The first copy into it faults its pages in,
/// on all the cores that copy. For one thread at a time; the bytes
/// may be read by others meanwhile.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes room for `bytes`; the content is undefined. ResourceExhausted when memory is short; then
  /// the arena is empty.
  Status Reserve(std::uint64_t bytes);
  /// Starts at a multiple of 4 KiB.
  std::byte* data() { return data_; }
  std::uint64_t capacity() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t capacity_ = 0;
};

}  // namespace cairn

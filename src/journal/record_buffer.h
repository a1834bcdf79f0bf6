#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "format/journal_frames.h"

namespace cairn {

/// The payload of one record, behind room for the head of its frame: both are written with one
/// call, and the payload is copied once. A value type; moved, not copied.
class RecordBuffer {
 public:
  RecordBuffer() = default;
  /// Not initialised.
  explicit RecordBuffer(std::size_t payload)
      : bytes_(std::make_unique_for_overwrite<char[]>(kFrameHeaderBytes + payload)),
        size_(payload),
        capacity_(payload) {}

  /// The same memory for another payload, where it is enough.
  bool Resize(std::size_t payload) {
    if (payload > capacity_) return false;
    size_ = payload;
    return true;
  }
  std::size_t capacity() const { return capacity_; }

  /// The pieces one after the other; together they are size() bytes.
  void Fill(std::span<const std::string_view> pieces) {
    char* to = bytes_.get() + kFrameHeaderBytes;
    for (const std::string_view piece : pieces) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }
  std::size_t size() const { return size_; }
  std::string_view payload() const { return {bytes_.get() + kFrameHeaderBytes, size_}; }
  std::span<char, kFrameHeaderBytes> head() {
    return std::span<char, kFrameHeaderBytes>(bytes_.get(), kFrameHeaderBytes);
  }
  /// The head, as it was written there, and the payload.
  std::string_view frame() const { return {bytes_.get(), kFrameHeaderBytes + size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace cairn

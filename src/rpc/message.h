#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace cairn::rpc {

/// Bytes to send: written once by whoever makes the message, then handed to the transport without a
/// copy. A value type; moved, not copied.
class Message {
 public:
  Message() = default;
  /// Not initialised: the maker writes every byte.
  explicit Message(std::size_t bytes) : data_(new std::byte[bytes]), size_(bytes) {}

  std::span<std::byte> bytes() { return {data_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  std::byte* release() { return data_.release(); }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// Bytes that came: a view into the transport's memory, which lives as long as this does.
class Received {
 public:
  Received() = default;
  Received(std::span<const std::byte> bytes, std::shared_ptr<const void> holder)
      : bytes_(bytes), holder_(std::move(holder)) {}

  /// Not aligned for anything.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> holder_;  // shared: a copy of the view keeps the memory too
};

}  // namespace cairn::rpc

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn {

/// Walks over the fields of one message in Protocol Buffers' wire format, without knowing its
/// schema. A value type; borrows the bytes. For one thread.
class WireReader {
 public:
  enum class Type : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  struct Field {
    std::uint32_t number = 0;
    Type type = Type::kVarint;
    std::uint64_t number_value = 0;          // of the varint and fixed types
    std::span<const std::byte> bytes_value;  // of kBytes: a string, a message, packed numbers
    std::string_view text() const {
      return {reinterpret_cast<const char*>(bytes_value.data()), bytes_value.size()};
    }
  };

  explicit WireReader(std::span<const std::byte> bytes) : left_(bytes) {}

  bool done() const { return left_.empty(); }
  /// The next field. Corruption when the bytes are no message.
  Result<Field> Next();
  /// The next varint of a packed field.
  Result<std::uint64_t> NextVarint();

 private:
  std::span<const std::byte> left_;
};

}  // namespace cairn

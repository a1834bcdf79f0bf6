#include "model/foreign/wire_reader.h"

#include <cstring>

#include "base/status_macros.h"

namespace cairn {

Result<std::uint64_t> WireReader::NextVarint() {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < left_.size() && i < 10; ++i) {
    const auto byte = static_cast<std::uint64_t>(left_[i]);
    value |= (byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      left_ = left_.subspan(i + 1);
      return value;
    }
  }
  return CorruptionError("a number of the message does not end");
}

Result<WireReader::Field> WireReader::Next() {
  ASSIGN_OR_RETURN(const std::uint64_t tag, NextVarint());
  Field field;
  if (tag >> 3 == 0 || tag >> 3 >= 1u << 29) {
    return CorruptionError("the message has a field without a number");
  }
  field.number = static_cast<std::uint32_t>(tag >> 3);
  field.type = static_cast<Type>(tag & 7);
  switch (field.type) {
    case Type::kVarint: {
      ASSIGN_OR_RETURN(field.number_value, NextVarint());
      return field;
    }
    case Type::kFixed64:
    case Type::kFixed32: {
      const std::size_t size = field.type == Type::kFixed64 ? 8 : 4;
      if (left_.size() < size) return CorruptionError("the message ends within a number");
      std::memcpy(&field.number_value, left_.data(), size);  // little-endian, as this machine
      left_ = left_.subspan(size);
      return field;
    }
    case Type::kBytes: {
      ASSIGN_OR_RETURN(const std::uint64_t size, NextVarint());
      if (size > left_.size()) return CorruptionError("the message ends within a field");
      field.bytes_value = left_.first(size);
      left_ = left_.subspan(size);
      return field;
    }
  }
  return CorruptionError("the message has a field of an unknown type");
}

}  // namespace cairn

#include "paramserver/log_record.h"

#include <cstring>

namespace cairn::ps {
namespace {

constexpr std::uint8_t kVersion = 1;

bool Known(std::uint8_t kind) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kHello:
    case Kind::kDeclareTable:
    case Kind::kDeclareDense:
    case Kind::kPull:
    case Kind::kPush:
    case Kind::kAssign:
    case Kind::kErase:
    case Kind::kEvict:
    case Kind::kSetRate:
    case Kind::kDensePush:
    case Kind::kEndStep:
    case Kind::kLeave:
    case Kind::kStatus:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::array<char, kLogHeadBytes> EncodeHead(const LogRecord& record) {
  std::array<char, kLogHeadBytes> out{};
  out[0] = static_cast<char>(kVersion);
  out[1] = static_cast<char>(record.kind);
  std::memcpy(out.data() + 2, &record.flags, 2);
  std::memcpy(out.data() + 4, &record.trainer, 4);
  std::memcpy(out.data() + 8, &record.id, 4);
  std::memcpy(out.data() + 16, &record.sequence, 8);
  return out;
}

std::string Encode(const LogRecord& record) {
  const auto head = EncodeHead(record);
  std::string out(head.data(), head.size());
  out.append(AsText(record.body));
  return out;
}

Result<LogRecord> DecodeLogRecord(std::span<const std::byte> bytes) {
  if (bytes.size() < kLogHeadBytes) return CorruptionError("a log record shorter than its head");
  const auto version = static_cast<std::uint8_t>(bytes[0]);
  if (version != kVersion) {
    return UnimplementedError("a log record of version " + std::to_string(version) +
                              ": this program knows version " + std::to_string(kVersion));
  }
  const auto kind = static_cast<std::uint8_t>(bytes[1]);
  std::uint32_t zero = 0;
  std::memcpy(&zero, bytes.data() + 12, 4);
  if (!Known(kind) || zero != 0) {
    return CorruptionError("a log record of unknown kind " + std::to_string(kind));
  }
  LogRecord record;
  record.kind = static_cast<Kind>(kind);
  std::memcpy(&record.flags, bytes.data() + 2, 2);
  std::memcpy(&record.trainer, bytes.data() + 4, 4);
  std::memcpy(&record.id, bytes.data() + 8, 4);
  std::memcpy(&record.sequence, bytes.data() + 16, 8);
  record.body = bytes.subspan(kLogHeadBytes);
  return record;
}

}  // namespace cairn::ps

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <cairn/status.h>

#include "paramserver/payload.h"

namespace cairn::ps {

inline constexpr std::size_t kLogHeadBytes = 24;

/// One record of a server's update log (docs/format/update_log.md): what a trainer asked for, with
/// the body that the request had. Pure bytes; anything malformed is Corruption.
struct LogRecord {
  /// kDeclareTable, kDeclareDense, kPull (rows were counted or made), kPush, kAssign, kErase,
  /// kEvict, kSetRate, kDensePush, kEndStep, kLeave; kHello: a trainer that had left is back;
  /// kStatus: the log was opened, and the body says where.
  Kind kind = Kind::kPush;
  std::uint16_t flags = 0;
  std::uint32_t trainer = kObserver;
  std::uint32_t id = 0;               // of the table or dense variable
  std::uint64_t sequence = 0;         // of the trainer's change; kEndStep: of the last before
  std::span<const std::byte> body{};  // borrowed
};

std::string Encode(const LogRecord& record);
/// What stands before the body.
std::array<char, kLogHeadBytes> EncodeHead(const LogRecord& record);
Result<LogRecord> DecodeLogRecord(std::span<const std::byte> bytes);

}  // namespace cairn::ps

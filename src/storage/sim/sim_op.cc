#include "storage/sim/sim_op.h"

#include <cctype>
#include <cstddef>

#include "base/ids.h"

namespace cairn {
namespace {

bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string_view SimOpName(SimOp::Kind kind) {
  switch (kind) {
    case SimOp::Kind::kCreate:
      return "create";
    case SimOp::Kind::kTruncate:
      return "truncate";
    case SimOp::Kind::kWrite:
      return "write";
    case SimOp::Kind::kAllocate:
      return "allocate";
    case SimOp::Kind::kSync:
      return "sync";
    case SimOp::Kind::kMakeDirectory:
      return "mkdir";
    case SimOp::Kind::kRemoveDirectory:
      return "rmdir";
    case SimOp::Kind::kUnlink:
      return "unlink";
    case SimOp::Kind::kLink:
      return "link";
    case SimOp::Kind::kRename:
      return "rename";
    case SimOp::Kind::kSyncDirectory:
      return "sync directory";
  }
  return "unknown";
}

std::string DescribeSimOp(const SimOp& op) {
  std::string text(SimOpName(op.kind));
  text.append(" ").append(op.path);
  if (!op.to.empty()) text.append(" to ").append(op.to);
  if (!op.why.empty()) text.append(" (").append(op.why).append(")");
  if (op.kind == SimOp::Kind::kWrite) {
    text.append(" ").append(std::to_string(op.offset));
    text.append("+").append(std::to_string(op.bytes));
  } else if (op.kind == SimOp::Kind::kTruncate || op.kind == SimOp::Kind::kAllocate) {
    text.append(" ").append(std::to_string(op.bytes));
  }
  return text;
}

std::string NormalizeSimPath(std::string_view path) {
  constexpr std::size_t kUuidChars = 36;
  constexpr std::size_t kLongHex = 16;
  std::string text;
  std::size_t at = 0;
  while (at < path.size()) {
    if (IsUuid(path.substr(at, kUuidChars))) {
      text.push_back('*');
      at += kUuidChars;
      continue;
    }
    std::size_t hex_end = at;
    while (hex_end < path.size() && IsHex(path[hex_end])) ++hex_end;
    if (hex_end - at >= kLongHex) {
      text.push_back('*');
      at = hex_end;
    } else if (IsDigit(path[at])) {
      text.push_back('#');
      while (at < path.size() && IsDigit(path[at])) ++at;
    } else {
      text.push_back(path[at++]);
    }
  }
  return text;
}

}  // namespace cairn

#include "storage/memory/store_op.h"

namespace cairn {

std::string_view StoreOpName(StoreOp::Kind kind) {
  switch (kind) {
    case StoreOp::Kind::kPut:
      return "put";
    case StoreOp::Kind::kCreate:
      return "create";
    case StoreOp::Kind::kGet:
      return "get";
    case StoreOp::Kind::kStat:
      return "stat";
    case StoreOp::Kind::kList:
      return "list";
    case StoreOp::Kind::kDelete:
      return "delete";
    case StoreOp::Kind::kPruneDirectories:
      return "prune directories";
    case StoreOp::Kind::kSyncNames:
      return "sync names";
    case StoreOp::Kind::kLink:
      return "link";
    case StoreOp::Kind::kLinkCount:
      return "link count";
    case StoreOp::Kind::kMoveToPool:
      return "move to pool";
    case StoreOp::Kind::kTryLock:
      return "lock";
    case StoreOp::Kind::kFreeBytes:
      return "free bytes";
    case StoreOp::Kind::kRefresh:
      return "refresh";
    case StoreOp::Kind::kOpenReader:
      return "open reader";
    case StoreOp::Kind::kRead:
      return "read";
    case StoreOp::Kind::kOpenObject:
      return "open object";
    case StoreOp::Kind::kAppend:
      return "append";
    case StoreOp::Kind::kCloseObject:
      return "close object";
    case StoreOp::Kind::kWaitPart:
      return "wait part";
    case StoreOp::Kind::kDrain:
      return "drain";
    case StoreOp::Kind::kPublish:
      return "publish";
  }
  return "unknown";
}

std::string DescribeStoreOp(const StoreOp& op) {
  std::string text(StoreOpName(op.kind));
  if (!op.name.empty()) text.append(" ").append(op.name);
  if (!op.to.empty()) text.append(" to ").append(op.to);
  if (!op.why.empty()) text.append(" (").append(op.why).append(")");
  if (op.offset > 0) text.append(" at ").append(std::to_string(op.offset));
  if (op.bytes > 0) text.append(" (").append(std::to_string(op.bytes)).append(" bytes)");
  return text;
}

bool IsMutation(StoreOp::Kind kind) {
  switch (kind) {
    case StoreOp::Kind::kPut:
    case StoreOp::Kind::kCreate:
    case StoreOp::Kind::kDelete:
    case StoreOp::Kind::kPruneDirectories:
    case StoreOp::Kind::kSyncNames:
    case StoreOp::Kind::kLink:
    case StoreOp::Kind::kMoveToPool:
    case StoreOp::Kind::kTryLock:
    case StoreOp::Kind::kOpenObject:
    case StoreOp::Kind::kAppend:
    case StoreOp::Kind::kCloseObject:
    case StoreOp::Kind::kWaitPart:
    case StoreOp::Kind::kDrain:
    case StoreOp::Kind::kPublish:
      return true;
    case StoreOp::Kind::kGet:
    case StoreOp::Kind::kStat:
    case StoreOp::Kind::kList:
    case StoreOp::Kind::kLinkCount:
    case StoreOp::Kind::kFreeBytes:
    case StoreOp::Kind::kRefresh:
    case StoreOp::Kind::kOpenReader:
    case StoreOp::Kind::kRead:
      return false;
  }
  return false;
}

}  // namespace cairn

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// An operation on a Store, as the hook of MemoryStore and the faults of FaultyStore see it.
struct StoreOp {
  enum class Kind {
    kPut,
    kCreate,
    kGet,
    kStat,
    kList,
    kDelete,
    kPruneDirectories,
    kSyncNames,
    kLink,
    kLinkCount,
    kMoveToPool,
    kTryLock,
    kFreeBytes,
    kRefresh,
    // Readers and read queues.
    kOpenReader,
    kRead,
    // Write sessions.
    kOpenObject,
    kAppend,
    kCloseObject,
    kWaitPart,
    kDrain,
    kPublish,  // MemoryStore in object-store mode: one closed object appears, during a drain
  };
  Kind kind = Kind::kGet;
  std::string name;  // object or prefix
  std::string to;    // kLink, kMoveToPool
  std::string why;   // kSyncNames
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::string_view StoreOpName(StoreOp::Kind kind);
/// One line for the output of a failing test: "create generations/000007.json (120 bytes)".
std::string DescribeStoreOp(const StoreOp& op);
/// Whether the operation may change what is stored.
bool IsMutation(StoreOp::Kind kind);

}  // namespace cairn

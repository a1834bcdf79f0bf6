#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// An operation that changes the disk, as the hook of SimFs sees it.
struct SimOp {
  enum class Kind {
    kCreate,    // Open with `create` or TryLock: the name may be there already
    kTruncate,  // also Open with `truncate` and without `create`
    kWrite,
    kAllocate,
    kSync,
    kMakeDirectory,
    kRemoveDirectory,
    kUnlink,
    kLink,
    kRename,
    kSyncDirectory,
  };
  Kind kind = Kind::kWrite;
  std::string path;          // of an open file: the path it was opened by
  std::string to;            // kLink, kRename
  std::string why;           // kSync, kSyncDirectory
  std::uint64_t offset = 0;  // kWrite
  std::uint64_t bytes = 0;   // kWrite: length; kTruncate, kAllocate: the new size
};

std::string_view SimOpName(SimOp::Kind kind);
/// One line for the output of a failing test: "sync /r/a.tmp (record)".
std::string DescribeSimOp(const SimOp& op);

/// A sync that was asked for.
struct SimSync {
  enum class Kind { kFile, kDirectory };
  Kind kind = Kind::kFile;
  std::string why;
  std::string path;

  auto operator<=>(const SimSync&) const = default;
};

/// The path with uuids (and other long runs of hex digits) as "*" and runs of digits as "#", so
/// that the same sync of two runs, or of two checkpoints, has one name.
std::string NormalizeSimPath(std::string_view path);

}  // namespace cairn

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "storage/append_object.h"
#include "storage/fs.h"

namespace cairn {

/// A tail (docs/format/journal.md, "The tail"): a file of fixed size that is mapped as memory and
/// has the newest bytes of one object beside it at a time. Of one process; kept open from object to
/// object, because memory that was mapped anew costs as much as what it saves.
class AppendTail {
 public:
  /// Unimplemented where the file system maps nothing.
  static Result<std::shared_ptr<AppendTail>> Open(Fs* fs, const std::string& path);
  virtual ~AppendTail() = default;
  /// Whether the path still leads to it.
  virtual bool IsAt(Fs* fs, const std::string& path) const = 0;
};

/// An object that grows fast and is synced seldom: an append is one copy into the tail, a sync
/// writes from there to the object, past the kernel's cache. Takes the tail over: who had it before
/// can only be closed. `path` is in the tail's directory. Unimplemented without direct I/O,
/// NotFound without the object.
Result<std::unique_ptr<AppendObject>> OpenTailedObject(Fs* fs, const std::string& path,
                                                       std::shared_ptr<AppendTail> tail);
/// AppendingStore::RecoverTail.
Status RecoverTailedObject(Fs* fs, const std::string& tail);

}  // namespace cairn

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/fs.h"

namespace cairn {

/// Which directories of a local store hold names that are not durable yet, and the syncs that make
/// them so. Directories are named relative to the store's root, which is "".
///
/// A name is durable only if every directory above it is, so a change in a directory also marks the
/// directories above it that hold a component of the path not known to be durable: one this store
/// made, or one it found and somebody else may have made a moment ago.
///
/// May be used from several threads. A mark is cleared only by a successful sync that began after
/// it was set; after a failed sync the directory is still marked.
class DirtyDirectories {
 public:
  DirtyDirectories(Fs* fs, std::string root) : fs_(fs), root_(std::move(root)) {}

  /// A name in `directory` was created, linked, renamed or removed. To be called after the fact: a
  /// mark set before it could be cleared by a sync that does not cover it.
  void NamesChanged(std::string_view directory);
  /// The directory was made anew: whatever was known of its name is void.
  void Made(std::string_view directory);
  /// The directory was removed.
  void Removed(std::string_view directory);

  /// Syncs the marked directories at and below `prefix` and on the path to it. Returns only when
  /// every name that was changed there before the call is durable, also when another thread's sync
  /// is under way. A directory that has disappeared counts as synced.
  Status SyncTree(std::string_view prefix, std::string_view why);
  /// The same for `directory` itself, which must still be there, and for those above it that hold
  /// a component of its path not known to be durable.
  Status SyncPath(std::string_view directory, std::string_view why, std::string_view path_why);
  /// Syncs `directory` alone, whoever changed names in it.
  Status SyncAlone(std::string_view directory, std::string_view why);

 private:
  struct Mark {
    std::uint64_t change = 0;
    std::set<std::string, std::less<>> children;  // directories in here not known to be durable
  };

 public:
  /// A directory as it was marked when somebody set out to sync it.
  struct Marked {
    std::string directory;
    Mark mark;
  };
  /// Those that SyncTree would sync now, for a caller that syncs them itself: with a sync that
  /// begins after this call, and tells Synced of each that succeeded.
  std::vector<Marked> MarkedIn(std::string_view prefix);
  void Synced(const Marked& marked);

 private:
  void MarkLocked(std::string_view directory) REQUIRES(mu_);
  void SyncedLocked(const std::string& directory, const Mark& before) REQUIRES(mu_);
  Status SyncOne(const std::string& directory, std::string_view why) REQUIRES(flush_mu_);

  Fs* const fs_;
  const std::string root_;

  /// Held through a whole flush, so that a second caller does not find the marks gone and return
  /// while the syncs that cover its names are still running. Taken before mu_.
  Mutex flush_mu_;
  Mutex mu_;
  std::uint64_t changes_ GUARDED_BY(mu_) = 0;
  std::map<std::string, Mark, std::less<>> dirty_ GUARDED_BY(mu_);
  std::set<std::string, std::less<>> durable_ GUARDED_BY(mu_);  // directories by their own name
};

}  // namespace cairn

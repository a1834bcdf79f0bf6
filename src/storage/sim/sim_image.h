#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "storage/memory/paged_bytes.h"
#include "storage/sim/sim_fs.h"

namespace cairn {

/// What a simulated disk holds. Only sim_fs.cc and sim_crash.cc look inside.

/// A write or truncation of a file that no Sync has covered yet.
struct SimPendingWrite {
  std::uint64_t id = 0;  // among the changes of the disk
  bool truncate = false;
  std::uint64_t offset = 0;                             // of a write; the new size of a truncation
  std::shared_ptr<const std::vector<std::byte>> bytes;  // shared by all images that hold the write

  void ApplyTo(PagedBytes* content) const {
    if (truncate) {
      content->Resize(offset);
    } else {
      content->Write(offset, *bytes);
    }
  }
};

/// A change of a directory's entries that no SyncDirectory has covered yet.
struct SimPendingEntry {
  enum class Kind {
    kSet,     // create, link, mkdir, or the arrival of a rename from elsewhere
    kRemove,  // unlink, rmdir, or the departure of a rename
    kMove,    // rename inside the directory: one change, atomic
  };
  Kind kind = Kind::kSet;
  std::uint64_t id = 0;  // among the changes of the disk
  std::string name;
  std::string from;         // kMove: the old name
  std::uint64_t inode = 0;  // kSet, kMove

  void ApplyTo(std::map<std::string, std::uint64_t>* entries) const {
    if (kind == Kind::kRemove) {
      entries->erase(name);
      return;
    }
    if (kind == Kind::kMove) entries->erase(from);
    (*entries)[name] = inode;
  }
};

struct SimInode {
  std::uint64_t number = 0;
  bool is_directory = false;
  std::uint64_t epoch = 0;  // written in place only by the file system whose epoch this is
  std::uint64_t links = 0;  // names in the live view

  // Files.
  PagedBytes live;
  PagedBytes durable;
  std::vector<SimPendingWrite> pending_writes;
  bool diverged = false;  // a failed sync dropped writes: live is not durable + pending any more
  std::uint64_t allocated = 0;

  // Directories.
  std::map<std::string, std::uint64_t> entries;
  std::map<std::string, std::uint64_t> durable_entries;
  std::vector<SimPendingEntry> pending_entries;

  std::uint64_t charged_bytes() const { return live.size() > allocated ? live.size() : allocated; }
};

inline constexpr std::uint64_t kSimRootInode = 1;

/// The whole disk at an instant, with what was durable and what was not. Immutable.
struct SimImage {
  SimFs::Options options;
  std::uint64_t next_inode = kSimRootInode + 1;
  std::map<std::uint64_t, std::shared_ptr<SimInode>> inodes;  // never written through an image
};

/// The disk after a power loss: what `mode` keeps of the pending changes is durable, the rest gone.
SimImage ImageAfterCrash(const SimImage& image, CrashMode mode, std::uint64_t seed);

}  // namespace cairn

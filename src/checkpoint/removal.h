#pragma once

#include <string>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "checkpoint/generation.h"
#include "checkpoint/repository.h"

namespace cairn {

/// Appends a note to the checkpoint `id` in `directory` under the next free number; returns that
/// number. NotFound when the checkpoint is gone; Aborted when a removal was first.
Result<std::uint64_t> AppendNote(const Environment& env, const std::string& directory,
                                 const std::string& id, NoteRecord note);

struct RemovalOptions {
  std::vector<std::string> kept;  // paths that live manifests refer to
  std::string pool;               // "" or a directory for recycled files
  std::uint64_t pool_bytes = 0;   // room left in the pool
  std::uint64_t pool_min_file = 1u << 20;
  /// By its scores it was chosen, or they are kept elsewhere: it is not removed when it has some
  /// that `checkpoint` does not know.
  bool by_score = false;
};

struct Removed {
  /// False: pinned or scored meanwhile, and left alone. True also: it was gone.
  bool removed = false;
  std::vector<ObjectInfo> pooled;
};

/// Removes a checkpoint as its owner (docs/protocol.md, "Removing"). Aborted when overtaken.
Result<Removed> RemoveCheckpoint(const Environment& env, const Generation& generation,
                                 const Checkpoint& checkpoint, const RemovalOptions& options);

}  // namespace cairn

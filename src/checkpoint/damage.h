#pragma once

#include <optional>
#include <string>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

namespace cairn {

/// What somebody who could not restore a checkpoint leaves for those who come after: a note, which
/// needs no ownership. `repository`: a path or URL.
Status NoteDamaged(const std::string& repository, const std::string& id, const std::string& reason);

/// The newest checkpoint of a repository whose files are all there with their sizes, and which
/// nobody rightly reported as damaged; the others are passed over with a warning. nullopt: nothing
/// was ever committed. Corruption: there are checkpoints, and none is whole.
Result<std::optional<CheckpointInfo>> NewestWhole(const std::string& repository);

}  // namespace cairn

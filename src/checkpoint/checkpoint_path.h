#pragma once

#include <string>

#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "checkpoint/repository.h"
#include "storage/open_store.h"

namespace cairn {

/// A checkpoint named by the path or URL of its directory, in a repository or standing alone.
struct PlacedCheckpoint {
  Environment env;  // of the directory above it
  Checkpoint checkpoint;
};

/// NotFound when the directory is no checkpoint (it has no manifest). In a repository, `counts` and
/// the like are judged as a reader of it judges them.
Result<PlacedCheckpoint> ReadCheckpointAt(const std::string& path);

/// True when the place (a path or URL) is a repository: it has the record of one. False for what is
/// not there; an error when nobody can tell.
Result<bool> IsRepository(const std::string& path);

/// True when the directory holds a manifest and no repository record: a checkpoint by itself.
bool IsCheckpointDirectory(const std::string& path);

/// The repository that a checkpoint's directory lies in, and the directory's name; nothing is
/// looked at, links stay.
Result<Place> PlaceOfCheckpoint(const std::string& path);

/// InvalidArgument, without repeating the whole of it, for a path that no file system takes: empty,
/// too long, with a NUL.
Status CheckPath(const std::string& path);

/// The environment of an existing directory; never makes it.
Result<Environment> ExistingDirectory(const std::string& path);

}  // namespace cairn

#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <cairn/status.h>

#include "base/ids.h"
#include "storage/deep_listing.h"
#include "storage/store.h"

namespace cairn {

/// Shelves: copies of manifests, many in one object (docs/format/records.md, "Shelf"). On a bucket a
/// listing of checkpoints would fetch one object for each; with shelves it fetches one for hundreds.
/// They are never the truth: a copy counts only while the store's tag of the manifest is the one it
/// was copied with, and a shelf that is missing or damaged costs time and nothing else.

/// The bytes of manifests, by their names in the repository.
using ShelvedManifests = std::unordered_map<std::string, std::string>;

/// The manifests on the shelves that `all` (a listing of the whole repository) names, as far as
/// they are what lies there. What cannot be read is left out.
ShelvedManifests ReadShelves(Store* store, const std::vector<TaggedObject>& all);

/// Puts manifests on new shelves where enough are on none, and deletes shelves of which nothing is
/// left. For the owner of a repository; nothing to do on stores that are no DeepListingStore.
Status TidyShelves(Store* store, IdSource* ids);

}  // namespace cairn

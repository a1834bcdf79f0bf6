#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include <cairn/status.h>

#include "base/ids.h"
#include "storage/deep_listing.h"
#include "storage/store.h"

namespace cairn {

/// Shelves: copies of manifests, many in one object (docs/format/records.md, "Shelf"). On a bucket
/// a listing of checkpoints would fetch one object for each; with shelves it fetches one for
/// hundreds. They are never the truth: a copy counts only while the store's tag of the manifest is
/// the one it was copied with, and a shelf that is missing or damaged costs time and nothing else.

/// A copy, and the tag of what it was copied from.
struct ShelvedManifest {
  std::string tag;
  std::string bytes;
};
/// By the manifests' names in the repository.
using ShelvedManifests = std::unordered_map<std::string, ShelvedManifest>;

/// The manifests on the shelves that `all` (a listing of the whole repository) names, as far as
/// they are what lay there when it was made. What cannot be read is left out. `compare_tags`: false
/// only where a test leaves that rule out.
ShelvedManifests ReadShelves(Store* store, const std::vector<TaggedObject>& all, bool compare_tags);

/// Leaves those that were still there, unchanged, when `all` was listed.
void KeepCurrent(const std::vector<TaggedObject>& all, bool compare_tags,
                 ShelvedManifests* manifests);

/// Objects of a repository up to which whole listings are worth it.
std::size_t DeepListingLimit(std::size_t directories);

/// Saves after which the owner should tidy up again; 0: never, on a store without shelves.
std::size_t TidyEvery(Store* store);

/// Puts manifests on new shelves where enough are on none, and deletes shelves of which little is
/// left, damaged ones too. For the owner of a repository; nothing to do on stores that are no
/// DeepListingStore. A failure leaves whole shelves, and copies that are on two of them at worst.
Status TidyShelves(Store* store, IdSource* ids);

}  // namespace cairn

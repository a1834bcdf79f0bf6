#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// An object with the store's own mark of its content: as long as the tag is the same, so are the
/// bytes. "" where the store has none.
struct TaggedObject {
  std::string name;
  std::uint64_t bytes = 0;
  std::string tag;
};

/// From when on whole listings, and what they make possible, are worth their requests.
struct DeepListingCosts {
  /// So many directories: one listing of everything costs less than one of each. 0: never.
  std::size_t many_directories = 65;
  /// So many small objects are worth a copy of all in one.
  std::size_t many_objects = 256;
};

/// An ability that only some stores have: to list whole trees in few requests. Apart from Store, as
/// AppendingStore is.
class DeepListingStore {
 public:
  virtual ~DeepListingStore() = default;
  virtual DeepListingCosts listing_costs() const { return {}; }
  /// All objects at and below `prefix` ("" = all), sorted by name; the store's own are left out.
  /// Asked for page by page: what changes meanwhile is seen as it was when its page came, so that
  /// of two objects each may be older than the other. ResourceExhausted when there are more than
  /// `limit`, before all of them were asked for; Unimplemented by a decorator of a store that
  /// cannot.
  virtual Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                                      std::size_t limit) = 0;
  /// The same of everything. `directories`: what stands directly under the root, as far as the
  /// caller knows; a store may list parts of it side by side, each directory in one part.
  virtual Result<std::vector<TaggedObject>> ListAll(const std::vector<std::string>& directories,
                                                    std::size_t limit) {
    static_cast<void>(directories);
    return ListBelow("", limit);
  }
};

}  // namespace cairn

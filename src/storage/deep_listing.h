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

/// An ability that only some stores have: to list whole trees in few requests. Apart from Store, as
/// AppendingStore is.
class DeepListingStore {
 public:
  virtual ~DeepListingStore() = default;
  /// All objects at and below `prefix` ("" = all), sorted by name; the store's own are left out.
  /// ResourceExhausted when there are more than `limit`, before all of them were asked for.
  virtual Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                                      std::size_t limit) = 0;
};

}  // namespace cairn

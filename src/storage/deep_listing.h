#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// An ability that only some stores have: to list whole trees in few requests. Apart from Store, as
/// AppendingStore is.
class DeepListingStore {
 public:
  virtual ~DeepListingStore() = default;
  /// All objects at and below `prefix` ("" = all), sorted by name; the store's own are left out.
  /// ResourceExhausted when there are more than `limit`, before all of them were asked for.
  virtual Result<std::vector<ObjectInfo>> ListBelow(const std::string& prefix,
                                                    std::size_t limit) = 0;
};

}  // namespace cairn

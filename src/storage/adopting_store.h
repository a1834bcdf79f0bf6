#pragma once

#include <string>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// An ability that only some stores have: to give bytes that lie there another place without moving
/// them through the caller (a link, a copy made by the server, a rename). Apart from Store, as
/// AppendingStore is.
class AdoptingStore {
 public:
  virtual ~AdoptingStore() = default;
  /// Makes `to`, a free name, an object with the bytes that `from` has; `from` may be gone then.
  /// The bytes are durable on return, the name after SyncNames. NotFound when there is no `from`,
  /// AlreadyExists when `to` is taken (as far as the store can tell; else it is replaced), and
  /// Unimplemented or ResourceExhausted where this object has to be moved after all. After another
  /// error `to` may be there.
  virtual Status Adopt(const std::string& from, const std::string& to) = 0;
};

/// The store's ability to do so, or null.
inline AdoptingStore* FindAdopting(Store* store) { return dynamic_cast<AdoptingStore*>(store); }

}  // namespace cairn

#include "storage/append_object.h"

#include "storage/store.h"

namespace cairn {

AppendingStore* FindAppending(Store* store) { return dynamic_cast<AppendingStore*>(store); }

}  // namespace cairn

#include "storage/remove_under.h"

#include "base/status_macros.h"

namespace cairn {
namespace {

Status RemoveObjects(Store* store, const std::string& prefix) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    const Status gone = store->Delete(object.name);
    if (!gone.ok() && !gone.Is(Code::kNotFound)) return gone;
  }
  for (const std::string& inner : listing.prefixes) RETURN_IF_ERROR(RemoveObjects(store, inner));
  return Status::Ok();
}

}  // namespace

Status RemoveUnder(Store* store, const std::string& prefix) {
  RETURN_IF_ERROR(RemoveObjects(store, prefix));
  return store->PruneDirectories(prefix);
}

}  // namespace cairn

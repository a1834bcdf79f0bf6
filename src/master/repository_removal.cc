#include "master/repository_removal.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/status_macros.h"
#include "storage/open_store.h"
#include "trial/trial_config.h"

namespace cairn::master {
namespace {

Status RemoveUnder(Store* store, const std::string& prefix) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    const Status gone = store->Delete(object.name);
    if (!gone.ok() && !gone.Is(Code::kNotFound)) return gone;
  }
  for (const std::string& inner : listing.prefixes) RETURN_IF_ERROR(RemoveUnder(store, inner));
  return Status::Ok();
}

}  // namespace

Status RemoveRepositories(const std::string& storage, const std::string& experiment) {
  if (storage.empty() || !IsTrialId(experiment)) {
    return InvalidArgumentError("repositories to remove: no such place");
  }
  const std::string where = fmt::format("{}/{}", storage, experiment);
  if (!IsRemote(where)) {
    ASSIGN_OR_RETURN(const std::string path, LocalPath(where));
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return error ? UnavailableError(fmt::format("{}: {}", path, error.message())) : Status::Ok();
  }
  auto store = OpenStore(where, {.create = false});
  if (store.status().Is(Code::kNotFound)) return Status::Ok();
  RETURN_IF_ERROR(store.status());
  RETURN_IF_ERROR(RemoveUnder(store->get(), ""));
  return (*store)->PruneDirectories("");
}

}  // namespace cairn::master

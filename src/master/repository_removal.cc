#include "master/repository_removal.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/status_macros.h"
#include "storage/open_store.h"
#include "storage/remove_under.h"
#include "trial/trial_config.h"

namespace cairn::master {

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
  return RemoveUnder(store->get(), "");
}

}  // namespace cairn::master

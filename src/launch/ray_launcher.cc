#include "launch/ray_launcher.h"

#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "launch/ray_client.h"
#include "launch/ray_site.h"
#include "launch/spawn_shim.h"

namespace cairn {

Status RayLauncherOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("directory must not be empty");
  if (slots < 0) return InvalidArgumentError("slots must not be negative");
  if (!(calls_per_second > 0)) return InvalidArgumentError("calls_per_second must be positive");
  if (poll.count() <= 0 || look.count() <= 0) {
    return InvalidArgumentError("poll and look must be positive");
  }
  if (warning.count() < 0 || keep_jobs < 0) {
    return InvalidArgumentError("warning and keep_jobs must not be negative");
  }
  return Status::Ok();
}

Result<std::unique_ptr<Launcher>> OpenRayLauncher(RayLauncherOptions options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(RayAddress address, FindRay(options.address, options.token_file));
  ASSIGN_OR_RETURN(std::string shim, FindShim(options.shim));
  std::error_code error;
  shim = std::filesystem::absolute(shim, error).string();
  ASSIGN_OR_RETURN(OwnedFd lock, LockLaunches(&options.directory, options.clock));
  ASSIGN_OR_RETURN(std::unique_ptr<RayClient> client, RayClient::Open(std::move(address)));
  auto launcher = std::make_unique<RayLauncher>(std::move(options), std::move(shim),
                                                std::move(client), std::move(lock));
  RETURN_IF_ERROR(launcher->Begin());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

void TakeRayOptions(std::map<std::string, std::string>* resources, RayLauncherOptions* options) {
  const auto take = [&](const char* name, std::string* into) {
    const auto found = resources->find(name);
    if (found == resources->end()) return;
    *into = found->second;
    resources->erase(found);
  };
  take("address", &options->address);
  take("token_file", &options->token_file);
}

}  // namespace cairn

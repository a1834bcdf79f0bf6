#include "launch/slurm_launcher.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "launch/slurm_programs.h"
#include "launch/slurm_rest.h"
#include "launch/slurm_site.h"
#include "launch/spawn_shim.h"

namespace cairn {

Status SlurmLauncherOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("directory must not be empty");
  if (slots < 0) return InvalidArgumentError("slots must not be negative");
  if (!(calls_per_second > 0)) return InvalidArgumentError("calls_per_second must be positive");
  if (poll.count() <= 0 || look.count() <= 0) {
    return InvalidArgumentError("poll and look must be positive");
  }
  return Status::Ok();
}

namespace {

Result<std::unique_ptr<SlurmClient>> OpenClient(const SlurmLauncherOptions& options) {
  const char* asked = std::getenv("CAIRN_SLURMRESTD");
  const std::string rest =
      options.rest.empty() && options.programs.empty() && asked != nullptr ? asked : options.rest;
  return rest.empty() ? FindSlurmPrograms(options.programs) : OpenSlurmRest(rest);
}

}  // namespace

Result<std::unique_ptr<Launcher>> OpenSlurmLauncher(SlurmLauncherOptions options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(auto client, OpenClient(options));
  ASSIGN_OR_RETURN(std::string shim, FindShim(options.shim));
  std::error_code error;
  shim = std::filesystem::absolute(shim, error).string();
  ASSIGN_OR_RETURN(OwnedFd lock, LockLaunches(&options.directory, options.clock));
  std::filesystem::create_directories(options.directory + kSlurmOutputs, error);
  if (error) {
    return UnavailableError("make " + options.directory + kSlurmOutputs + ": " + error.message());
  }
  auto launcher = std::make_unique<SlurmLauncher>(std::move(options), std::move(shim),
                                                  std::move(client), std::move(lock));
  RETURN_IF_ERROR(launcher->Begin());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn

#include "checkpoint/checkpoint_path.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "format/json.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxComponent = 255;

/// The repository's place and the directory's name, with links resolved: "..", and a link to a
/// checkpoint, lead to the repository that it is in.
Result<Place> ResolvedPlace(const std::string& path) {
  if (IsRemote(path)) return SplitRemote(path);
  ASSIGN_OR_RETURN(const std::string local, LocalPath(path));
  std::error_code error;
  const std::filesystem::path clean = std::filesystem::canonical(local, error);
  if (error) return PermissionDeniedError("\"" + path + "\": " + error.message());
  return Place{clean.parent_path().string(), clean.filename().string()};
}

}  // namespace

Result<Place> PlaceOfCheckpoint(const std::string& path) {
  if (IsRemote(path)) return SplitRemote(path);
  ASSIGN_OR_RETURN(const std::string local, LocalPath(path));
  std::error_code error;
  std::filesystem::path clean = std::filesystem::absolute(local, error);
  // Behind a symbolic link ".." is where the link leads.
  const bool dots = std::find(clean.begin(), clean.end(), "..") != clean.end();
  const std::filesystem::path real =
      dots ? std::filesystem::weakly_canonical(clean, error) : std::filesystem::path();
  clean = (dots && !error ? real : clean).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  return Place{clean.parent_path().string(), clean.filename().string()};
}

Status CheckPath(const std::string& path) {
  if (path.empty()) return InvalidArgumentError("the directory's name is empty");
  if (path.find('\0') != path.npos) {
    return InvalidArgumentError("the directory's name contains a NUL");
  }
  if (IsRemote(path)) return Status::Ok();  // its store knows what it can hold
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  if (path.size() >= PATH_MAX || longest > kMaxComponent) {
    return InvalidArgumentError(QuoteForMessage(path.substr(0, 40) + "…") +
                                " is too long: " + std::to_string(path.size()) +
                                " bytes; a path has at most " + std::to_string(PATH_MAX - 1) +
                                ", a name in it at most " + std::to_string(kMaxComponent));
  }
  return Status::Ok();
}

Result<Environment> ExistingDirectory(const std::string& path) {
  RETURN_IF_ERROR(CheckPath(path));
  if (IsRemote(path)) return EnvironmentAt(path, {.create = false});
  ASSIGN_OR_RETURN(const std::string local, LocalPath(path));
  std::error_code error;
  const auto status = std::filesystem::status(local, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return NotFoundError("there is no directory \"" + path + "\"");
  }
  if (!error && !std::filesystem::is_directory(status)) {
    return InvalidArgumentError("\"" + path + "\" is a file, not a directory");
  }
  return EnvironmentAt(path, {.create = false});
}

Result<bool> IsRepository(const std::string& path) {
  const auto env = ExistingDirectory(path);
  // A file is none either.
  if (env.status().Is(Code::kNotFound) || env.status().Is(Code::kInvalidArgument)) return false;
  if (!env.ok()) return env.status();
  const auto record = env->store->Stat(std::string(names::kRepository));
  if (record.status().Is(Code::kNotFound)) return false;
  if (!record.ok()) return record.status();
  return true;
}

bool IsCheckpointDirectory(const std::string& path) {
  const auto env = EnvironmentAt(path, {.create = false});
  return env.ok() && env->store->Stat(std::string(names::kManifest)).ok() &&
         !env->store->Stat(std::string(names::kRepository)).ok();
}

Result<PlacedCheckpoint> ReadCheckpointAt(const std::string& path) {
  RETURN_IF_ERROR(ExistingDirectory(path).status());
  ASSIGN_OR_RETURN(const Place place, ResolvedPlace(path));
  PlacedCheckpoint placed;
  ASSIGN_OR_RETURN(placed.env, EnvironmentAt(place.where, {.create = false}));
  const std::string& name = place.name;
  const auto committed = placed.env.store->Stat(names::Path(name, names::kManifest));
  if (committed.status().Is(Code::kNotFound)) {
    return NotFoundError("\"" + path + "\" is not a checkpoint (it has no manifest.json)");
  }
  if (!committed.ok()) return committed.status();
  RepositoryReader reader(placed.env.store.get());
  if (placed.env.store->Stat(std::string(names::kRepository)).ok()) {
    ASSIGN_OR_RETURN(RepositoryView view, reader.Read());
    for (Checkpoint& checkpoint : view.checkpoints) {
      if (checkpoint.directory != name) continue;
      placed.checkpoint = std::move(checkpoint);
      return placed;
    }
  }
  ASSIGN_OR_RETURN(Manifest manifest, reader.ReadManifest(name));
  placed.checkpoint.directory = name;
  placed.checkpoint.manifest = std::make_shared<const Manifest>(std::move(manifest));
  ASSIGN_OR_RETURN(placed.checkpoint.notes, reader.ReadNotes(name, placed.checkpoint.manifest->id));
  return placed;
}

}  // namespace cairn

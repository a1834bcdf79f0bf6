#include "checkpoint/checkpoint_path.h"

#include <climits>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxComponent = 255;

bool IsFile(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

}  // namespace

Status CheckPath(const std::string& path) {
  if (path.empty()) return InvalidArgumentError("the directory's name is empty");
  if (path.find('\0') != path.npos) {
    return InvalidArgumentError("the directory's name contains a NUL");
  }
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
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return NotFoundError("there is no directory \"" + path + "\"");
  }
  if (!error && !std::filesystem::is_directory(status)) {
    return InvalidArgumentError("\"" + path + "\" is a file, not a directory");
  }
  return LocalEnvironment(path, /*create=*/false);
}

bool IsCheckpointDirectory(const std::string& path) {
  const std::filesystem::path directory(path);
  return IsFile(directory / names::kManifest) && !IsFile(directory / names::kRepository);
}

Result<PlacedCheckpoint> ReadCheckpointAt(const std::string& path) {
  RETURN_IF_ERROR(ExistingDirectory(path).status());
  // Links resolved: "..", and a link to a checkpoint, lead to the repository that it is in.
  std::error_code error;
  const std::filesystem::path clean = std::filesystem::canonical(path, error);
  if (error) return PermissionDeniedError("\"" + path + "\": " + error.message());
  if (!IsFile(clean / names::kManifest)) {
    return NotFoundError("\"" + path + "\" is not a checkpoint (it has no manifest.json)");
  }
  PlacedCheckpoint placed;
  ASSIGN_OR_RETURN(placed.env, LocalEnvironment(clean.parent_path().string(), /*create=*/false));
  const std::string name = clean.filename().string();
  RepositoryReader reader(placed.env.store.get());
  if (IsFile(clean.parent_path() / names::kRepository)) {
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

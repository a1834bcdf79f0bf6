#include "master/repository_removal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "storage/open_store.h"
#include "storage/remove_under.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

Status RemoveLocal(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> inside;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    // What says whose it is goes last.
    if (at->path().filename() != names::kRepository) inside.push_back(at->path());
  }
  for (const fs::path& one : inside) {
    if (!error) fs::remove_all(one, error);
  }
  if (!error) fs::remove_all(path, error);
  if (error) return UnavailableError(fmt::format("{}: {}", path, error.message()));
  return Status::Ok();
}

/// Of a removal, also of one that was cut off: its directory, and the experiment's when that was
/// the last one in it.
void RemoveEmpty(const std::string& repository) {
  const auto path = LocalPath(repository);
  if (IsRemote(repository) || !path.ok()) return;
  // Neither goes while something is in it, nor for a link to a disk that is not mounted.
  if (rmdir(path->c_str()) != 0 && errno != ENOENT) return;
  rmdir(fs::path(*path).parent_path().c_str());
}

Result<RepositoryRecord> RecordIn(const Result<std::unique_ptr<Store>>& store) {
  RETURN_IF_ERROR(store.status());
  return RepositoryReader(store->get()).ReadRecord();
}

Status RemoveRemote(Store* store) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(""));
  for (const std::string& prefix : listing.prefixes) RETURN_IF_ERROR(RemoveUnder(store, prefix));
  return RemoveUnder(store, "");
}

}  // namespace

Status RemoveRepository(const std::string& repository, const std::string& job) {
  auto store = OpenStore(repository, {.create = false});
  const Result<RepositoryRecord> record = RecordIn(store);
  if (record.status().Is(Code::kNotFound)) {
    RemoveEmpty(repository);
    return Status::Ok();
  }
  RETURN_IF_ERROR(record.status());
  if (!job.empty() && record->job != job) {
    LogWarning(fmt::format("{} belongs to another job ({}): it stays", repository, record->job));
    return Status::Ok();
  }
  if (IsRemote(repository)) return RemoveRemote(store->get());
  ASSIGN_OR_RETURN(const std::string path, LocalPath(repository));
  RETURN_IF_ERROR(RemoveLocal(path));
  RemoveEmpty(repository);
  return Status::Ok();
}

}  // namespace cairn::master

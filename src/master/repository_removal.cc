#include "master/repository_removal.h"

#include <fmt/format.h>

#include <filesystem>
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
  fs::remove(fs::path(path).parent_path(), error);  // the experiment's, when it was the last
  return Status::Ok();
}

Status RemoveRemote(Store* store) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(""));
  for (const std::string& prefix : listing.prefixes) RETURN_IF_ERROR(RemoveUnder(store, prefix));
  return RemoveUnder(store, "");
}

}  // namespace

Status RemoveRepository(const std::string& repository, const std::string& job) {
  auto store = OpenStore(repository, {.create = false});
  if (store.status().Is(Code::kNotFound)) return Status::Ok();
  RETURN_IF_ERROR(store.status());
  const auto record = RepositoryReader(store->get()).ReadRecord();
  if (record.status().Is(Code::kNotFound)) return Status::Ok();
  RETURN_IF_ERROR(record.status());
  if (!job.empty() && record->job != job) {
    LogWarning(fmt::format("{} belongs to another job ({}): it stays", repository, record->job));
    return Status::Ok();
  }
  if (IsRemote(repository)) return RemoveRemote(store->get());
  ASSIGN_OR_RETURN(const std::string path, LocalPath(repository));
  return RemoveLocal(path);
}

}  // namespace cairn::master

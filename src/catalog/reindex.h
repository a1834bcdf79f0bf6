#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "catalog/catalog.h"
#include "trial/repository_access.h"

namespace cairn {

struct ReindexOptions {
  /// Directories or URLs under which trials keep their repositories: <root>/<experiment>/<trial>.
  std::vector<std::string> roots;
  /// Roots inside it are recorded as such (InDataDirectory). "": there is none.
  std::string data_directory;
  RepositoryAccess* repositories = nullptr;  // borrowed
};

struct ReindexReport {
  std::uint64_t repositories = 0;  // that were read
  std::uint64_t experiments_added = 0;
  std::uint64_t trials_added = 0;
  std::uint64_t checkpoints_added = 0;
  std::uint64_t checkpoints_removed = 0;  // known as COMPLETED, but gone from the storage
  std::vector<std::string> problems;      // what could not be read, and why; the rest was done
};

/// Brings the catalog in line with the storage, which is the truth: a lost database is made anew
/// from the repositories, an old backup learns what came after it.
///
/// A repository belongs to the trial that has its job; one of a record without jobs to the trial of
/// its name. Found trials that are not known are created as detached and PAUSED: a repository does
/// not say how they were started, but they can be looked at, downloaded, continued as new, and
/// deleted. Experiments whose name is a number get that number. Where it is taken (two records
/// counted to it), or the directory has another name for that reason, they get the next ones that
/// are free. Metrics and logs are not in the storage and do not come back. Trials with a living run
/// are left to their engine. Everything is appended as events, so doing it twice changes nothing.
///
/// The catalog must be owned and no engine work on it.
Result<ReindexReport> Reindex(Catalog* catalog, const ReindexOptions& options);

}  // namespace cairn

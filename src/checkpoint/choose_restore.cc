#include "checkpoint/choose_restore.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/chain.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "checkpoint/restore_point.h"

namespace cairn {
namespace {

/// "" when every file is there with its size, otherwise what is wrong.
Result<std::string> FindMissing(Store* store, const Checkpoint& checkpoint) {
  for (const ManifestFile& file : checkpoint.manifest->files) {
    const std::string path =
        file.ref.empty() ? names::Path(checkpoint.directory, file.path) : file.ref;
    const auto stat = store->Stat(path);
    if (!stat.ok() && !stat.status().Is(Code::kNotFound)) return stat.status();
    if (!stat.ok()) return path + " is missing";
    if (stat->bytes != file.hash.bytes) return path + " has another size";
  }
  return std::string();
}

}  // namespace

Result<std::string> FindDamage(Store* store, const Checkpoint& checkpoint) {
  auto point = OpenRestorePoint::Open(store, {&checkpoint});
  if (!point.ok()) {
    // Only what the bytes are to blame for: a good checkpoint is not passed over for want of a
    // file descriptor.
    const bool damaged = point.status().Is(Code::kCorruption) ||
                         point.status().Is(Code::kNotFound) ||
                         point.status().Is(Code::kInvalidArgument);
    if (!damaged) return point.status();
    return std::string(point.status().message());
  }
  std::vector<VerifyProblem> problems;
  RETURN_IF_ERROR(VerifyFiles(store, *point->tip(), {}, &problems).status());
  return problems.empty() ? std::string() : problems.front().what;
}

Result<const Checkpoint*> ChooseRestore(Store* store, const std::vector<Checkpoint>& sealed) {
  const ChainIndex index(sealed);
  std::set<const Checkpoint*> bad;  // damage of a base is looked for once
  for (auto it = sealed.rbegin(); it != sealed.rend(); ++it) {
    const auto chain = index.Resolve(*it);
    if (!chain.ok()) {
      LogWarning(it->directory + " is passed over: it " + std::string(chain.status().message()));
      continue;
    }
    std::string problem;
    for (const Checkpoint* checkpoint : *chain) {
      if (bad.contains(checkpoint)) problem = checkpoint->directory + " is damaged";
      if (problem.empty()) {
        ASSIGN_OR_RETURN(problem, FindMissing(store, *checkpoint));
      }
      if (problem.empty() && it->reported_damaged) {
        ASSIGN_OR_RETURN(problem, FindDamage(store, *checkpoint));
      }
      if (problem.empty()) continue;
      bad.insert(checkpoint);
      break;
    }
    if (problem.empty()) return &*it;
    LogWarning(it->directory + " is passed over: " + problem);
  }
  return nullptr;
}

}  // namespace cairn
